"""A stitching whose process sleeps right before its commit, while its inputs change: no row comes back or is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from phantombase.compactor_daemon.restoring.rollback import roll_back_newest
from phantombase.timeline.errors import ConflictError
from phantombase.timeline.storage.contract import Storage
from phantombase.writer_hooks.options import Operation
from tests.stitching.test_stitch import VERSIONS, begin, hidden, small_files, stitch
from tests.support.archived_tables import LOCK, one_row, overwrite, upsert
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage
from tests.support.written_tables import check_nothing_left, read_rows

Do = Callable[[], object]


def around_the_commit(path: Path, before: Do, after: Do = lambda: None) -> Storage:
    """A storage of a stitching beside whose put of the completed file something is done."""

    def hook(call: Call) -> object:
        completes = call.name == "put_if_absent" and call.path.endswith(".replacecommit")
        if not completes:
            return call.do()
        hidden(path, before)
        done = call.do()
        after()
        return done

    return HookedStorage(open_table(path).storage, hook)


def built_upon(path: Path, before: Do, after: Do) -> str:
    """A stitching beside whose commit this is done, so that the commit stays; its error."""
    with pytest.raises(ConflictError, match="so the commit stays") as caught:
        stitch(path, around_the_commit(path, before, after))
    return str(caught.value)


@VERSIONS
@pytest.mark.parametrize("operation", [Operation.UPSERT, Operation.INSERT_OVERWRITE])
def test_inputs_that_another_write_changed(version: int, operation: Operation, tmp_path: Path) -> None:
    """The write, as some of Hudi's, asks for no pending plan. The commit goes again, and with it all that was made."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    do = upsert if operation is Operation.UPSERT else overwrite
    storage = around_the_commit(path, lambda: do(path, one_row("k1", 100)))
    with pytest.raises(ConflictError, match="right before its commit"):
        stitch(path, storage)
    expected = {**rows, "k1": (100, 100.0)} if operation is Operation.UPSERT else {"k1": (100, 100.0)}
    assert read_rows(path) == expected
    check_nothing_left(path)
    upsert(path, one_row("k2", 200))
    assert read_rows(path) == {**expected, "k2": (200, 200.0)}


@VERSIONS
def test_an_input_that_was_rolled_back(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    rows = small_files(path, version)
    newest = max(open_table(path).load_timeline().completed_writes)
    storage = around_the_commit(path, lambda: roll_back_newest(open_table(path), type(LOCK)("another"), newest))
    with pytest.raises(ConflictError, match=f"the rollback of {newest}"):
        stitch(path, storage)
    assert read_rows(path) == {key: row for key, row in rows.items() if key != "k3"}
    check_nothing_left(path)


@VERSIONS
def test_what_others_have_built_upon_stays(version: int, tmp_path: Path) -> None:
    """A row of a later write lies on the new file group: without the commit it would be lost."""
    path = tmp_path / "trips"
    rows = small_files(path, version)
    error = built_upon(path, lambda: overwrite(path, one_row("new", 100)), lambda: upsert(path, one_row("k3", 300)))
    assert "compactor-daemon rollback" in error
    assert read_rows(path) == {**rows, "new": (100, 100.0), "k3": (300, 300.0)}  # the error says that some came back


@VERSIONS
def test_what_is_replaced_again_stays(version: int, tmp_path: Path) -> None:
    """Without the commit the rows of its inputs would come back."""
    path = tmp_path / "trips"
    small_files(path, version)
    built_upon(path, lambda: upsert(path, one_row("k1", 100)), lambda: overwrite(path, one_row("only", 100)))
    assert read_rows(path) == {"only": (100, 100.0)}


@VERSIONS
def test_a_write_that_may_build_upon_it(version: int, tmp_path: Path) -> None:
    """A pending write may have looked for its keys while the commit was there."""
    path = tmp_path / "trips"
    small_files(path, version)
    storage = around_the_commit(path, lambda: overwrite(path, one_row("new", 100)), lambda: begin(path, "deltacommit"))
    with pytest.raises(ConflictError, match="is pending, which may write to its files"):
        stitch(path, storage)
