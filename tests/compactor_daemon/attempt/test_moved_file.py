"""Two publishers on a storage that moves what it places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.attempt.compact_instant import pending_instants
from phantombase.compactor_daemon.attempt.publish import place
from phantombase.timeline.storage.local import LocalStorage
from tests.support.compaction_steps import decided, open_table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import unzip_golden


def test_a_file_that_another_moved_meanwhile_is_not_merged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the looks for its final and for its staged name; found by the simulation (468, moved files)."""
    path = unzip_golden("v9_pending", tmp_path)
    table = open_table(path)
    (instant,) = pending_instants(table)
    go = decided(table, instant)
    one, other = go.placements[0], LocalStorage(str(path))

    def hook(call: Call) -> Any:
        if call.name == "find" and call.path == one.staged and other.place(one.staged, one.final):
            other.delete(one.staged)
        return call.do()

    merged: list[object] = []
    monkeypatch.setattr("phantombase.compactor_daemon.attempt.publish.merge_again", lambda *of: merged.append(of))
    place(open_table(path, HookedStorage(other, hook)), go, one)
    assert merged == []
    assert (path / one.final).stat().st_size == one.size
