"""Tables with small files, for clusterings."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

from phantombase.compactor_daemon.clustering.cluster import ClusterResult, cluster_table
from phantombase.compactor_daemon.clustering.pending import pending_clusterings
from phantombase.timeline.clustering.options import ClusterOptions, Copy
from phantombase.timeline.errors import ConflictError
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.view.view import is_replaced
from phantombase.writer_hooks.options import WriteOptions
from tests.support.archived_tables import compact, one_row, upsert
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.golden_tables import unzip_golden
from tests.support.tables import LOCK
from tests.support.written_tables import Rows, read_rows, written_table

WRITES = WriteOptions(slots=1, small_file_bytes=0)
TWO = ClusterOptions(min_files=2, wait_s=0)
COPIED = replace(TWO, copy=Copy.FORCE)
OUTPUT = OutputOptions(memory_limit=32 << 20)


def small_files(path: Path, version: int, files: int = 4) -> Rows:
    """As many file groups, each a base file of one row; the rows."""
    written_table(path, version, one_row("k0", 0), WRITES)
    for number in range(1, files):
        upsert(path, one_row(f"k{number}", number))
    return read_rows(path)


def cluster(path: Path, storage: Storage | None = None, options: ClusterOptions = TWO) -> ClusterResult:
    return cluster_table(open_table(path, storage), options, LOCK, output=OUTPUT, threads=1)


def golden_small_files(name: str, tmp_path: Path) -> Path:
    """A compacted golden table, and three writes of its rows under new keys."""
    path = unzip_golden(name, tmp_path)
    batch = read_table(open_table(path))
    batch = batch.select([column for column in batch.column_names if not column.startswith("_hoodie")])
    compact(path)
    for number in range(3):
        keys = pc.binary_join_element_wise(batch["id"], str(number), "-")
        upsert(path, batch.set_column(0, "id", keys))
    return path


def living(path: Path) -> list[str]:
    """File ids that are not replaced."""
    view = open_table(path).load_view()
    return [g.file_id for g in view.groups if g.slices and not is_replaced(g, view.facts)]


def request(path: Path, *, alive: bool = True, options: ClusterOptions = TWO) -> str:
    """Leaves a requested clustering, of a process that died behind the request, or seems to live; its instant."""

    dead: list[str] = []

    def hook(call: Call) -> object:
        if dead or (call.name == "open_output" and "/writes/" in call.path):
            dead.append(call.path)
            raise ProcessDied(call.path)
        return call.do()

    with pytest.raises(ProcessDied):
        cluster(path, HookedStorage(open_table(path).storage, hook), options)
    if not alive:
        forget_heartbeats(path)
    (pending,) = pending_clusterings(open_table(path), open_table(path).load_timeline())
    return pending.time


def forget_heartbeats(path: Path) -> None:
    """A process that died in this test is this process, which is alive."""
    shutil.rmtree(path / ".hoodie" / ".heartbeat", ignore_errors=True)


def hidden(path: Path, do: Callable[[], object]) -> None:
    """Does something that does not see the pending clustering, as a writer that loaded its plans before."""
    (pending,) = pending_clusterings(open_table(path), open_table(path).load_timeline())
    aside = {p: p.read_bytes() for p in (path / ".hoodie").rglob(f"{pending.time}.*") if p.is_file()}
    for p in aside:
        p.unlink()
    do()
    for p, data in aside.items():
        p.write_bytes(data)


def begin(path: Path, action: str) -> None:
    """Begins a write, as one that does not ask for clusterings."""
    table = open_table(path)
    began = table.next_time(table.load_timeline())
    for state in ("requested", "inflight"):
        (path / table.config.timeline_folder / f"{began}.{action}.{state}").write_bytes(b"")


def clustered(path: Path) -> str:
    done = cluster(path).done
    assert done is not None
    return done.instant


Do = Callable[[], object]


def around_the_commit(path: Path, before: Do, after: Do = lambda: None) -> Storage:
    """A storage of a clustering beside whose put of the completed file something is done."""

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
    """A clustering beside whose commit this is done, so that the commit stays; its error."""
    with pytest.raises(ConflictError, match="so the commit stays") as caught:
        cluster(path, around_the_commit(path, before, after))
    return str(caught.value)
