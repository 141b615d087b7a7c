"""Table locks in this process and in a file: who is kept out, and what is said when the lock cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from phantombase.timeline.errors import LockError, UsageError
from phantombase.timeline.format.table_config import PROPERTIES, TableConfig, checksum
from phantombase.timeline.locks.table_lock import FileLock, ProcessLock, StorageLock, TableLock, parse_lock, table_lock
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.table.table import Table
from tests.support.golden_tables import unzip_golden
from tests.support.selection import for_each

PROVIDERS = pytest.mark.parametrize("provider", [ProcessLock, FileLock])


def is_free(lock: TableLock) -> bool:
    """Whether another thread gets in at once."""

    def try_it() -> bool:
        try:
            with lock.hold("try it"):
                return True
        except LockError:
            return False

    with ThreadPoolExecutor(1) as other:
        return other.submit(try_it).result()


@PROVIDERS
def test_one_section_at_a_time_under_one_name(provider: type[ProcessLock | FileLock], tmp_path: Path) -> None:
    """Also under another value with the same name, as each run makes its own; another name is another lock."""
    name = str(tmp_path / "lock")
    with provider(name, 0.05).hold("hold it"):
        assert not is_free(provider(name, 0.05))
        assert is_free(provider(f"{name}-of-another-table", 0.05))
    assert is_free(provider(name, 0.05))


@PROVIDERS
def test_a_section_that_failed_is_left(provider: type[ProcessLock | FileLock], tmp_path: Path) -> None:
    lock = provider(str(tmp_path / "lock"), 0.05)
    with pytest.raises(KeyError), lock.hold("fail"):
        raise KeyError
    assert is_free(lock)


@PROVIDERS
def test_not_free_in_time_is_an_error_with_the_purpose(provider: type[ProcessLock | FileLock], tmp_path: Path) -> None:
    """The section is not entered."""
    name = str(tmp_path / "lock")
    entered: list[str] = []

    def enter() -> None:
        with provider(name, 0.05).hold("decide"):
            entered.append("decide")

    with provider(name).hold("hold it"), ThreadPoolExecutor(1) as other, pytest.raises(LockError, match="to decide"):
        other.submit(enter).result(60)
    assert entered == []


def test_a_file_is_left_by_another_thread_than_the_one_that_entered(tmp_path: Path) -> None:
    """As a claim is, which a daemon's worker takes and its loop may give back."""
    lock, held = FileLock(str(tmp_path / "lock"), 0.05), ExitStack()
    with ThreadPoolExecutor(1) as other:
        other.submit(held.enter_context, lock.hold("work")).result()
    assert not is_free(lock)
    held.close()
    assert is_free(lock)


def test_a_file_keeps_another_process_out(tmp_path: Path) -> None:
    """And lets it in when the holder is killed."""
    lock = FileLock(str(tmp_path / "lock"), 0.05)
    code = (
        "import sys, time; from phantombase.timeline.locks.table_lock import FileLock\n"
        "with FileLock(sys.argv[1]).hold('work'): print('in', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, lock.path], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"in\n"
        assert not is_free(lock)
        with pytest.raises(LockError, match=f"held by process {child.pid}: ") as busy, lock.hold("try"):
            pytest.fail("entered")
        assert (busy.value.path, busy.value.what) == (lock.path, "could not take the table lock to try")
        child.kill()
        child.wait()
        assert is_free(lock)


def test_a_file_that_cannot_be_used_lets_nobody_in(tmp_path: Path) -> None:
    """Its folder is a file, say: that is no free lock."""
    (tmp_path / "file").touch()
    with pytest.raises(LockError, match="cannot be used"), FileLock(str(tmp_path / "file" / "lock")).hold("try"):
        pytest.fail("entered")


def test_all_processes_of_a_table_have_the_same_lock(tmp_path: Path) -> None:
    """The named one, else a file in the table that no process has to itself."""
    path = str(tmp_path / "table")
    storage = open_storage(path)
    assert table_lock(storage, None) == table_lock(open_storage(f"file://{path}"), None)
    assert str(os.getpid()) not in f"{table_lock(open_storage('/t'), None)}"
    assert table_lock(storage, "file:/elsewhere") == FileLock("/elsewhere")
    with table_lock(storage, None).hold("make the folder too"):
        assert not is_free(FileLock(f"{path}/.hoodie/.phantombase/table.lock", 0.05))
        waits = replace(cast(StorageLock, table_lock(storage, None)), timeout_s=0.05)
        with pytest.raises(LockError, match=f"held by process {os.getpid()}: "), waits.hold("try"):
            pytest.fail("entered")


def test_a_name_in_a_lock_is_that_of_the_table(tmp_path: Path) -> None:
    """One text for a daemon, commands and writers of many tables: taken as it stands, it would be a lock of its own."""
    table = unzip_golden("v9_plain", tmp_path)
    name = Table.open(str(table)).config.name
    assert table_lock(open_storage(str(table)), "file:/locks/{name}.lock") == FileLock(f"/locks/{name}.lock")
    held = table_lock(open_storage(str(table)), "zookeeper:zk:2181/locks/{name}")
    assert held == parse_lock(f"zookeeper:zk:2181/locks/{name}")


@pytest.mark.parametrize("name", ["../../elsewhere", "a/b", ".."])
def test_a_name_that_leads_elsewhere_is_no_part_of_a_lock(name: str, tmp_path: Path) -> None:
    table = unzip_golden("v9_plain", tmp_path)
    config = Table.open(str(table)).config
    given = {"hoodie.table.name": name, "hoodie.table.checksum": str(checksum(config.database, name))}
    renamed = TableConfig(properties={**config.properties, **given})
    (table / PROPERTIES).write_bytes(renamed.dump())
    with pytest.raises(UsageError, match="cannot be a part of a lock"):
        table_lock(open_storage(str(table)), "file:/locks/{name}.lock")


@for_each(["file:orders.lock", "file:./l", "file://host/l", "file:{name}.lock"])
def test_a_lock_file_is_absolute(text: str) -> None:
    """Relative to the working directory, two processes with one setting would each have a lock of their own."""
    with pytest.raises(UsageError, match=r"another one in each working directory.*expected file:/PATH"):
        parse_lock(text)
    assert parse_lock("file:///locks/l") == FileLock("/locks/l")


def test_the_folder_of_a_lock_file_is_there(tmp_path: Path) -> None:
    """A typing error in the path would be a lock that nobody else takes."""
    with pytest.raises(LockError, match=r"its folder does not exist.*make the folder"):
        FileLock(str(tmp_path / "lokcs" / "l")).hold("try").__enter__()
    assert list(tmp_path.iterdir()) == []


@for_each(["", "file", "file:", "flie:/tmp/lock", ":/tmp/lock"])
def test_a_provider_nobody_knows_is_refused(text: str) -> None:
    """Taken for a file it would keep nobody out."""
    with pytest.raises(UsageError, match="unknown lock provider"):
        parse_lock(text)


def test_threads_of_one_lock_are_never_inside_together() -> None:
    inside, most = 0, 0
    lock = ProcessLock("never together")

    def work(_: int) -> None:
        nonlocal inside, most
        with lock.hold("count"):
            inside += 1
            most = max(most, inside)
            threading.Event().wait(0.001)
            inside -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(20)))
    assert (inside, most) == (0, 1)
