"""Sections under the table lock: how each is opened, what refuses one, and that a change needs the lock."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from phantombase.timeline.errors import ConflictError, LockError, TableChangedError
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.rollback_plan import RollbackPlan, encode_rollback_plan
from phantombase.timeline.locks.section import Section
from phantombase.timeline.storage.contract import PrefixStorage, Storage
from phantombase.timeline.storage.folders import HOODIE
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.in_progress import Guard, check_lock, exclusive, refuse_in_progress, regardless
from phantombase.timeline.table.table import Table
from tests.project.rooms import modules
from tests.support.compaction_steps import open_table
from tests.support.evolved_tables import changed, digest
from tests.support.failing_storage import Call, HookedStorage
from tests.support.faults import LockLostAt
from tests.support.golden_tables import LOCK, unzip_golden

LATE = "29990101000000000"
ALL = dict.fromkeys(Guard, "the test asks for one guard at a time")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of version 9 that nothing is in progress on."""
    return open_table(unzip_golden("v9_plain", tmp_path))


def upgrade(table: Table) -> None:
    """A file of the timeline is in the folder of version 6."""
    table.storage.put_if_absent(f"{HOODIE}/{LATE}.deltacommit.requested", b"")


def restore(table: Table) -> None:
    """A restore is pending."""
    table.storage.put_if_absent(f"{table.config.timeline_folder}/{LATE}.restore.requested", b"")


def rollback(table: Table) -> None:
    """A rollback of the newest write is pending, and has undone nothing."""
    newest = table.load_timeline().completed[-1]
    plan = RollbackPlan(target=newest.requested_time, action=newest.action, doomed=(), revoked=())
    requested = Instant(requested_time=LATE, action="rollback", state=State.REQUESTED)
    table.storage.put_if_absent(table.instant_path(requested), encode_rollback_plan(plan, table.storage.base_path))


def settings(table: Table) -> None:
    """The table was downgraded."""
    changed(Path(table.storage.base_path), {"hoodie.table.version": "8"})


REFUSED: dict[Guard, tuple[Callable[[Table], None], type[ConflictError], str]] = {
    Guard.UPGRADE: (upgrade, ConflictError, "is being upgraded or downgraded"),
    Guard.RESTORE: (restore, ConflictError, "a restore of the table is in progress"),
    Guard.ROLLBACK: (rollback, ConflictError, "the rollback of a completed write is in progress"),
    Guard.SETTINGS: (settings, TableChangedError, "upgraded or downgraded since this action began"),
}


@pytest.mark.parametrize("guard", Guard)
def test_each_guard_refuses_a_section_unless_it_is_named(guard: Guard, table: Table) -> None:
    prepare, error, text = REFUSED[guard]
    prepare(table)
    alone = {other: why for other, why in ALL.items() if other is not guard}
    for allow in ({}, alone):
        with pytest.raises(error, match=text), exclusive(table, LOCK, "test", allow):
            raise AssertionError("the section was opened")
    if guard is not Guard.SETTINGS:
        with pytest.raises(error, match=text):
            refuse_in_progress(table.snapshot(), alone)
    with exclusive(table, LOCK, "test", {guard: ALL[guard]}) as held:
        assert held.config == table.snapshot().config


def test_without_a_section_an_upgrade_that_begins_behind_the_question_takes_nothing_away(table: Table) -> None:
    """The step goes on with the timeline of before, or is refused."""
    path, whole = Path(table.storage.base_path), table.load_timeline()

    def begins(call: Call) -> object:
        found = call.do()
        if call.name == "list" and call.path == HOODIE:
            for file in (path / table.config.timeline_folder).glob("*.*"):
                file.rename(path / HOODIE / file.name)
        return found

    seen = table.on_storage(HookedStorage(table.storage, begins)).snapshot(same_settings=True, cached=False)
    refuse_in_progress(seen)
    assert seen.timeline == whole
    with pytest.raises(ConflictError, match="is being upgraded or downgraded"):
        refuse_in_progress(table.snapshot())


@pytest.mark.parametrize("cached", [False, True])
def test_a_section_reads_what_is_there_under_the_lock(table: Table, *, cached: bool) -> None:
    before = table.load_timeline()
    restore(table)
    with exclusive(table, LOCK, "test", ALL, cached=cached) as held:
        assert len(held.timeline.instants) == len(before.instants) + 1
        assert held.timeline is held.timeline


CHANGES: dict[str, Callable[[Storage], object]] = {
    "open_output": lambda s: s.open_output("new"),
    "put_if_absent": lambda s: s.put_if_absent("new", b""),
    "make_folder": lambda s: s.make_folder("new"),
    "place": lambda s: s.place(".hoodie/hoodie.properties", "new"),
    "overwrite": lambda s: s.overwrite(".hoodie/hoodie.properties", b""),
    "delete": lambda s: s.delete(".hoodie/hoodie.properties"),
    "delete_all": lambda s: s.delete_all([".hoodie/hoodie.properties"]),
    "delete_folder": lambda s: s.delete_folder(".hoodie"),
    "delete_empty_folder": lambda s: s.delete_empty_folder(".hoodie"),
    "set_modified": lambda s: s.set_modified(".hoodie/hoodie.properties", 0),
}
OTHERS = {
    *("base_path", "is_file_system", "own_lock", "names_at_once", "location", "hold", "verify"),
    *("list", "list_below", "find", "read", "open_input"),
    *("close_output", "abort_output"),  # of an output whose name no other process knows
}


def test_every_operation_of_a_storage_is_a_change_or_not() -> None:
    assert {name for name in vars(Storage) if not name.startswith("_")} == CHANGES.keys() | OTHERS


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("below", ["table", "snapshot", "metadata"])
def test_a_change_asks_the_lock_first(change: str, below: str, table: Table) -> None:
    path = Path(table.storage.base_path)
    before = digest(path)
    with exclusive(table, LockLostAt(0), "test", ALL, cached=below == "snapshot") as held:
        now: Storage = held.storage if below != "metadata" else PrefixStorage(held.storage, "a")
        with pytest.raises(LockError, match="lost in the section to test"):
            CHANGES[change](now)
        assert held.timeline.instants == table.load_timeline().instants
    assert digest(path) == before


def test_an_empty_list_of_files_is_no_change(table: Table) -> None:
    lock = LockLostAt(9)
    with exclusive(table, lock, "test") as held:
        held.storage.delete_all([])
    assert lock.asked == 0


def test_the_lock_is_asked_once_for_a_change(table: Table) -> None:
    lock = LockLostAt(9)
    with exclusive(table, lock, "test", cached=True) as held:
        PrefixStorage(held.snapshot().storage, "a").put_if_absent("b", b"")
    assert lock.asked == 1


def test_nothing_is_changed_after_a_section(table: Table) -> None:
    """The lock may be another's by then."""
    with exclusive(table, LOCK, "test") as held:
        held.storage.put_if_absent("inside", b"")
    with pytest.raises(LockError):
        held.storage.put_if_absent("outside", b"")
    regardless(held).storage.put_if_absent("outside", b"")


def test_a_step_that_must_run_without_the_lock_says_so(table: Table) -> None:
    with exclusive(table, LockLostAt(0), "test", cached=True) as held:
        with pytest.raises(LockError):
            check_lock(held)
        free = regardless(replace(held, storage=PrefixStorage(held.storage, "a")))
        assert free.storage.put_if_absent("b", b"")
        check_lock(free)
    assert table.storage.find("a/b") is not None


def test_the_clock_of_the_storage_is_read_without_the_lock(table: Table) -> None:
    """The object that shows it is removed, and ZooKeeper is not asked twice for each new instant."""
    before = digest(Path(table.storage.base_path))
    lock = LockLostAt(0)
    with exclusive(table, lock, "test", cached=True) as held:
        storage_ms(held.storage)
        storage_ms(PrefixStorage(held.storage, HOODIE))
    assert lock.asked == 0
    assert digest(Path(table.storage.base_path)) == before


def test_a_section_that_is_refused_gives_the_lock_back(table: Table) -> None:
    held = []

    class Lock:
        @contextmanager
        def hold(self, purpose: str) -> Iterator[Section]:
            held.append(purpose)
            try:
                yield Section(purpose=purpose, lock="", is_held=lambda: True)
            finally:
                held.remove(purpose)

    restore(table)
    with pytest.raises(ConflictError), exclusive(table, Lock(), "test"):
        raise AssertionError("the section was opened")
    assert held == []


# --- all sections of the product ------------------------------------------------------------------------------------


def sections() -> Iterator[tuple[str, ast.With, ast.Call]]:
    """Each `with exclusive(...)` of the product: its module, the statement, the call."""
    for module, path in modules().items():
        if "exclusive(" in (text := path.read_text()):
            for node in (one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.With)):
                for item in node.items:
                    call = item.context_expr
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "exclusive":
                        yield module, node, call


ASKED = {
    "archive instants": "UPGRADE RESTORE",
    "begin a batch of a stream": "SETTINGS UPGRADE",
    "begin a {opening.action}": "UPGRADE RESTORE ROLLBACK",
    "change the policies": "UPGRADE RESTORE ROLLBACK",
    "complete a clean": "SETTINGS UPGRADE",
    "complete a {job.name}": "",
    "complete the rollback of {plan.target}": "SETTINGS UPGRADE",
    "decide a {job.name}": "",
    "delete a savepoint": "UPGRADE",
    "drop the metadata table": "UPGRADE",
    "give up a clustering of Hudi": "SETTINGS UPGRADE RESTORE",
    "go on with a clean": "SETTINGS UPGRADE RESTORE",
    "make a savepoint": "UPGRADE RESTORE ROLLBACK",
    "merge files of the history": "SETTINGS UPGRADE",
    "note why an index is not built": "UPGRADE RESTORE ROLLBACK",
    "plan a clean": "UPGRADE RESTORE ROLLBACK",
    "plan a clustering": "UPGRADE RESTORE ROLLBACK",
    "remove a rollback that has undone nothing": "UPGRADE",
    "remove a stale plan": "",
    "remove a torn plan": "UPGRADE",
    "remove files of a decision": "",
    "remove what is left of a clustering": "UPGRADE",
    "request the rollback of {target}": "SETTINGS UPGRADE",
    "restore the table": "UPGRADE",
    "retract a stale clustering": "UPGRADE",
    "retract a stale commit": "",
    "revert a decision": "",
    "schedule a compaction": "UPGRADE RESTORE ROLLBACK",
    "serve the metadata table": "UPGRADE",
    "skip a batch of a stream": "SETTINGS UPGRADE",
    "cancel a clustering": "SETTINGS UPGRADE RESTORE",
    "cancel an unreadable decision": "UPGRADE RESTORE",
    "roll back {instant}": "SETTINGS UPGRADE RESTORE",
    "take out expression indexes that only Hudi builds": "UPGRADE RESTORE ROLLBACK",
    "take partitions out of the metadata table": "UPGRADE RESTORE ROLLBACK",
    "purpose": "UPGRADE RESTORE",  # unschedule a compaction, or replace its plan
    "write a completed file again": "SETTINGS UPGRADE RESTORE",
}
"""The guards of each section that leaves one out. Sections of a decision ask `validity` for them."""


def test_every_section_names_what_it_leaves_out_and_why() -> None:
    found = dict[str, str]()
    for module, _, call in sections():
        allow = [*call.args[3:4], *(k.value for k in call.keywords if k.arg == "allow")]
        own = vars(importlib.import_module(f"phantombase.{module}"))
        reasons = eval(ast.unparse(allow[0]), own) if allow else {}
        assert all(isinstance(guard, Guard) and len(why.split()) > 3 for guard, why in reasons.items()), module
        purpose = ast.unparse(call.args[2]).lstrip("f").strip("'")
        asked = " ".join(guard.name for guard in Guard if guard not in reasons)
        assert found.setdefault(purpose, asked) == asked
    assert {purpose: asked for purpose, asked in found.items() if len(asked.split()) < len(Guard)} == ASKED


def test_no_section_is_opened_or_asked_in_another_way() -> None:
    """A lock of the table is held by `exclusive` alone, and asked by the storage of a section."""
    wrong = []
    for module, path in modules().items():
        if module.startswith(("timeline.locks.", "timeline.storage.")) or module == "timeline.table.in_progress":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and re.fullmatch(r"(\w+\.)?lock\.hold", ast.unparse(node.func)):
                wrong.append(f"{module}:{node.lineno}: a lock is held")
            elif isinstance(node, ast.ImportFrom) and {one.name for one in node.names} & {"Section", "GuardedStorage"}:
                wrong.append(f"{module}:{node.lineno}: a section is passed on")
    assert wrong == []


def test_a_section_is_left_with_its_table() -> None:
    """Its body uses the table of the section, never the one before it. What follows changes nothing through that of
    the section, whose storage refuses it."""
    wrong = []
    for module, node, call in sections():
        outer, where = ast.unparse(call.args[0]), f"{module}:{node.lineno}"
        if not outer.isidentifier():
            continue
        is_bound = any(one.optional_vars and ast.unparse(one.optional_vars) == outer for one in node.items)
        names = [one.id for stay in node.body for one in ast.walk(stay) if isinstance(one, ast.Name)]
        if not is_bound and outer in names:
            wrong.append(f"{where}: {outer} of before the section is used in it")
        text = modules()[module].read_text()
        functions = (one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.FunctionDef))
        function = next(one for one in functions if one.lineno < node.lineno <= (one.end_lineno or 0))
        after = "\n".join(text.splitlines()[node.end_lineno : function.end_lineno])
        after = re.split(rf"\b{outer} = ", after)[0]
        if is_bound and re.search(rf"(?<!regardless\()\b{outer}\b(?!=|\.storage\.base_path)", after):
            wrong.append(f"{where}: {outer} of the section is used after it")
    assert wrong == []
