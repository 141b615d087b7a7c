"""A decision that fell behind its entry in the metadata table: whatever dies, that table forgets it in the end."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from phantombase.compactor_daemon.attempt.publish import publish
from phantombase.compactor_daemon.attempt.retire import finish_completed
from phantombase.timeline.errors import MalformedError, PhantombaseError
from phantombase.timeline.metadata_table import commit
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from tests.support.compaction_steps import decided, open_table
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.faults import died_or_ended
from tests.support.golden_tables import unzip_golden
from tests.support.moved_tables import LOCK
from tests.support.selection import deep
from tests.support.tables import one_of


@pytest.fixture(params=["v9", deep("v8"), deep("v6")])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A publisher died right before the completed commit, and the plan is gone."""
    path = unzip_golden(f"{request.param}_with_metadata_table", tmp_path)
    (plan,) = open_table(path).load_timeline().pending_compactions
    go = decided(open_table(path), plan.requested_time)

    def dies(call: Call) -> object:
        if call.name == "put_if_absent" and call.path == go.completed_path:
            raise ProcessDied(call.path)
        return call.do()

    with pytest.raises(ProcessDied):
        publish(open_table(path, HookedStorage(LocalStorage(str(path)), dies)), go, LOCK)
    assert all((path / one.final).exists() for one in go.placements)
    for file in (path / ".hoodie").rglob(f"{plan.requested_time}.compaction.*"):
        file.unlink()
    return path


def test_a_death_at_a_storage_call(path: Path) -> None:
    def finish(storage: Storage) -> object:
        return finish_completed(open_table(Path(storage.base_path), storage), LOCK)

    for copy in died_or_ended(path, finish):
        finish_completed(open_table(copy), LOCK)
        table = open_table(copy)
        assert validate(table).differences == ()
        assert not [f for f in copy.rglob("*.parquet") if "-990000000_" in f.name]


@one_of("path", "v6", "v9", "v8", indirect=True)
def test_files_go_also_where_it_cannot_be_forgotten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers would take them once archiving has passed the instant."""

    def cannot(*_: object) -> None:
        raise MalformedError("the metadata table was compacted with an instant that never completed")

    monkeypatch.setattr(commit, "forget", cannot)
    with suppress(PhantombaseError):
        finish_completed(open_table(path), LOCK)
    assert not [f for f in path.rglob("*.parquet") if "-990000000_" in f.name]
