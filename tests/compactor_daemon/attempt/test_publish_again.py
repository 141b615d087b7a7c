"""A publisher for which the lock came late, or was lost: what it saw or placed before is not true any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phantombase.compactor_daemon.attempt.publish import publish
from phantombase.timeline.format.commit_metadata import decode, encode
from phantombase.timeline.format.instant import Instant, State, later
from phantombase.timeline.locks.section import Section
from tests.support.compaction_steps import base_files, open_table, run_all
from tests.support.failing_storage import Call, HookedStorage
from tests.support.moved_tables import LOCK, decision, others
from tests.support.tables import one_of
from tests.support.written_tables import read_rows


@one_of("version", 9, 6)
def test_what_was_removed_before_it_had_the_lock_is_placed_again(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    go = decision(path, version)
    wanted = read_rows(path)

    class Late:
        """Another process removes the files while the lock is waited for."""

        @contextmanager
        def hold(self, purpose: str) -> Iterator[Section]:
            for placement in go.placements:
                (path / placement.final).unlink()
            with LOCK.hold(purpose) as section:
                yield section

    publish(open_table(path), go, Late())
    assert base_files(path, go.instant)
    assert read_rows(path) == wanted


@one_of("version", 6, 9)
def test_what_another_publisher_has_completed_since_is_not_removed(version: int, tmp_path: Path) -> None:
    """A foreign commit was there when the section began; now it is gone, and the decision is completed."""
    path = tmp_path / "t"
    go = decision(path, version)
    wanted = read_rows(path)
    table = open_table(path)
    time = later(go.completion_time, 5) if go.completion_time is not None else None
    foreign = Instant(requested_time=go.instant, action="commit", state=State.COMPLETED, completion_time=time)
    file = path / table.instant_path(foreign)
    file.write_bytes(encode(others(decode(go.content, go.completed_path)), table.layout.encoding))
    left = ["foreign"]

    def hook(call: Call) -> Any:
        found = call.do()
        if (call.name, call.path) == ("read", table.instant_path(foreign)) and left:
            left.clear()
            file.unlink()
            run_all(open_table(path))
        return found

    publish(open_table(path, HookedStorage(table.storage, hook)), go, LOCK)
    assert base_files(path, go.instant)
    assert read_rows(path) == wanted
