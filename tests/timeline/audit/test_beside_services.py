"""An audit beside table services: at whichever of its calls they run, it raises no false alarm."""

from __future__ import annotations

import shutil
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.cleaning.options import CleanOptions
from phantombase.timeline.storage.local import LocalStorage
from tests.support.archived_tables import LOCK, compact, long_table, one_row, upsert
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.interleaving import serial_pools
from tests.support.selection import deep


@pytest.mark.parametrize("version", [9, deep(8), deep(6)])
def test_a_newer_compaction_and_a_clean(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They remove the file that is audited, which was the newest when the audit began."""
    serial_pools(monkeypatch)
    made, path = tmp_path / "made/trips", tmp_path / "audited/trips"
    made.parent.mkdir()
    long_table(made, version, 4)
    (instant,) = audited_instants(open_table(made))
    for at in count(2):
        shutil.rmtree(path.parent, ignore_errors=True)
        shutil.copytree(made, path)
        hit: list[Call] = []

        def hook(call: Call, at: int, hit: list[Call]) -> Any:
            if call.number == at:
                hit.append(call)
                compact(path)
                upsert(path, one_row("k1", 100))
                clean_table(open_table(path), CleanOptions(retain=1, floor_s=0), LOCK)
            return call.do()

        found = audit(open_table(path, HookedStorage(LocalStorage(str(path)), partial(hook, at=at, hit=hit))), instant)
        assert found.good, f"services at call {at}: {found}"
        if not hit:
            assert at > 10
            break
