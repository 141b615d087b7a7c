"""Command line options that several commands share, and the checks of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from phantombase.timeline.clock.options import ClockOptions
from phantombase.timeline.errors import UsageError
from phantombase.timeline.locks.table_lock import STORAGE, ProcessLock, TableLock, parse_lock, table_lock
from phantombase.timeline.locks.zookeeper_check import check_usable
from phantombase.timeline.locks.zookeeper_lock import ZooKeeperLock
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.open_storage import whole_path
from phantombase.timeline.storage.storage_options import parse_pairs
from phantombase.timeline.table.table import Table

from ..hudi_names import contradiction
from ..options import AttemptOptions, ExecuteOptions

OUTPUT, EXECUTE, ATTEMPT, CLOCK = OutputOptions(), ExecuteOptions(), AttemptOptions(), ClockOptions()
"""The defaults, from the dataclasses that define the options."""

TablePath = Annotated[
    str,
    typer.Argument(metavar="TABLE", parser=whole_path, help="base path of the table: the folder that holds .hoodie"),
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="an option of the object store, such as region=eu-west-1"),
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]
Lock = Annotated[
    str | None,
    typer.Option(
        metavar="LOCK",
        help="table lock that every writer and scheduler of the table shares: file:PATH, "
        "zookeeper:HOST:PORT[,HOST:PORT]/BASE/PATH/KEY, as Hudi's ZookeeperBasedLockProvider, or storage: in the "
        "table's own storage, on S3, GCS and Azure as Hudi's StorageBasedLockProvider; not on HDFS. {name} in it is "
        "the table's name",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="check everything, show what would be done, change nothing")]
SoleWriter = Annotated[
    bool, typer.Option(help="no other process writes to the table, or requests compactions, while this runs")
]


def check_writers_known(lock: str | None, sole_writer: bool, what: str, todo: str) -> None:
    """UsageError unless exactly one is given: a `lock` that all other writers share, or `sole_writer`.

    `what`: the first line of the error, `todo`: its advice.
    """
    if (lock is None) == (not sole_writer):
        raise UsageError(
            what,
            expected="one of --lock and --sole-writer",
            found="both" if sole_writer else "neither",
            todo=todo,
        )


def open_to_change(
    table: str,
    storage_option: list[str] | None,
    lock: str | None,
    sole_writer: bool,
    what: str,
    todo: str,
    *,
    clock: ClockOptions = CLOCK,
    dry_run: bool = False,
) -> tuple[Table, TableLock]:
    """The table that a command changes, and its lock. UsageError: see `check_writers_known`.

    A dry run takes no lock, so none need be known, and leaves nothing in the table, not even the lock's file.
    """
    if not dry_run or (lock is not None and sole_writer):
        check_writers_known(lock, sole_writer, what, todo)
    opened = Table.open(table, parse_pairs(storage_option)).with_clock(clock)
    return opened, lock_of(opened.storage, lock, sole_writer, dry_run)


def lock_of(storage: Storage, lock: str | None, sole_writer: bool, dry_run: bool) -> TableLock:
    """The table lock of a command; that of a dry run is this process's. LockError: its servers cannot be reached."""
    if dry_run:
        return ProcessLock(storage.location)
    check_reachable(lock)
    return table_lock(storage, lock, sole_writer=sole_writer)


def check_reachable(lock: str | None) -> None:
    """LockError: the named lock cannot be used. Asked before work whose end needs the lock."""
    named = parse_lock(lock) if lock not in (None, STORAGE) else None
    if isinstance(named, ZooKeeperLock):
        check_usable(named)


def typed_options(ctx: typer.Context, names: Iterable[str]) -> tuple[str, ...]:
    """The options of these parameters that were typed: a file or a variable may have one for other commands."""
    sources = {name: ctx.get_parameter_source(name) for name in names}
    typed = (name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")
    return tuple(f"--{name.replace('_', '-')}" for name in typed)


def merge_options(names: Mapping[str, str], *sources: Mapping[str, Any]) -> dict[str, Any]:
    """Options from several sources in one. `names`: how errors name them.

    UsageError: two sources give an option different values.
    """
    found: dict[str, Any] = {}
    for one in sources:
        if differing := [name for name in one if name in found and found[name] != one[name]]:
            first = differing[0]
            raise contradiction(names[first], _plain(found[first]), f"{names[first]} by --conf", _plain(one[first]))
        found |= one
    return found


def _plain(value: Any) -> str:
    return str(getattr(value, "value", value))
