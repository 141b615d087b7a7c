"""Options that several commands share: the table that a command changes, its lock, and options under Hudi's names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import PhantombaseError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.instants.triggers import TriggerOptions
from phantombase.timeline.locks.heartbeat import process_name
from phantombase.timeline.locks.pause import refuse_paused
from phantombase.timeline.locks.table_lock import (
    STORAGE,
    ProcessLock,
    TableLock,
    check_writers_known,
    kept_lock,
    parse_lock,
    table_lock,
)
from phantombase.timeline.locks.zookeeper_lock import ZooKeeperLock, check_usable
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage.open_storage import full_path, open_storage
from phantombase.timeline.storage.storage_options import StorageOptions, parse_pairs
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.command import Merged, OtherNames, SharedOptions, StorageOption, command
from phantombase.timeline.terminal.option_group import names_of
from phantombase.timeline.terminal.settings import plain as plain_setting
from phantombase.timeline.terminal.settings import read_file

from ..hudi_names import contradiction
from ..options import AttemptOptions, ExecuteOptions
from ..services.hudi_conf import KINDS, command_conf, conf_fields, conf_names
from ..services.options import NO_POLICIES, Policies, Service, by_hand, has_policies, policy_names, read_policies
from ..services.serve import ServiceDone, note_runs
from .fleet_flags import CATALOG, CatalogFlags

_log = get_logger()
OUTPUT, EXECUTE, ATTEMPT, CLOCK = OutputOptions(), ExecuteOptions(), AttemptOptions(), ClockOptions()
"""The defaults, from the dataclasses that define the options."""
TablePath = Annotated[
    str,
    typer.Argument(metavar="TABLE", callback=full_path, help="base path of the table: the folder that holds .hoodie"),
]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange(SharedOptions):
    """The table that a command changes, under which lock, and whether the command only shows what it would do."""

    table: TablePath
    dry_run: DryRun = False
    lock: Lock = None
    sole_writer: SoleWriter = False
    clock: ClockOptions = CLOCK
    storage_option: StorageOption = None

    def open(
        self,
        who: str,
        todo: str,
        execute: ExecuteOptions = EXECUTE,
        *,
        service: Service | None = None,
        any_type: bool = False,
    ) -> tuple[Table, TableLock]:
        """The table and its lock. `execute`: may have settings of Hadoop. `service`: what the command runs, if a pause
        holds it (PausedError). `any_type`: the table may be COPY_ON_WRITE: its files stay as they are. UsageError: see
        `check_writers_known`. A dry run takes no lock, so none need be known, and leaves nothing in the table, not even
        the lock's file."""
        if not self.dry_run or (self.lock is not None and self.sole_writer):
            check_writers_known(self.lock, self.sole_writer, who, todo)
        opened = self.opened(execute, any_type=any_type)
        if service is not None and not self.dry_run:
            refuse_paused(opened.storage, service.value)
        return opened, self.lock_of(opened)

    def opened(self, execute: ExecuteOptions = EXECUTE, *, any_type: bool = False) -> Table:
        given = StorageOptions.of(parse_pairs(self.storage_option)).over(execute.hadoop_conf)
        copied = any_type and not Table.open(self.table, given, reading=True).config.has_logs
        return Table.open(self.table, given, reading=copied).with_clock(self.clock)

    def lock_of(self, opened: Table) -> TableLock:
        """The lock; that of a dry run is this process's. LockError: its servers cannot be reached."""
        if self.dry_run:
            return ProcessLock(opened.storage.location)
        check_reachable(self.lock)
        return table_lock(opened.storage, self.lock, sole_writer=self.sole_writer)

    def served(self, table: Table, service: Service, done: Any) -> dict[str, Any]:
        """As `row`; a series of failed runs of the service by daemons has ended."""
        if not self.dry_run:
            with suppress(PhantombaseError):  # it is done; a daemon does it once more
                note_runs(table.storage, process_name(), [ServiceDone(service=service, what="done")], inline=True)
        return self.row(done)

    def row(self, done: Any) -> dict[str, Any]:
        """The report's data: the table, whether nothing was changed, and what was done, a dataclass or a mapping."""
        return {"table": self.table, "dry_run": self.dry_run, **(done if isinstance(done, dict) else asdict(done))}


def check_reachable(lock: str | None) -> None:
    """LockError: the named lock cannot be used. Asked before work whose end needs the lock."""
    named = parse_lock(lock) if lock not in (None, STORAGE) else None
    if isinstance(named, ZooKeeperLock):
        check_usable(named)


def typed_names(ctx: typer.Context, names: Iterable[str]) -> tuple[str, ...]:
    """Those of these parameters that were typed: a file or a variable may have one for other commands."""
    sources = {name: ctx.get_parameter_source(name) for name in names}
    return tuple(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")


def typed_options(ctx: typer.Context, names: Iterable[str]) -> tuple[str, ...]:
    """`typed_names` as options."""
    return tuple(f"--{name.replace('_', '-')}" for name in typed_names(ctx, names))


def named_first(ctx: typer.Context, named: list[str], catalog: CatalogFlags) -> tuple[list[str], CatalogFlags]:
    """Tables on the command line prevail over the root, catalog or tables of `[run]` in a file."""
    if named and not typed_options(ctx, ("root", "catalog", "include", "exclude")):
        return named, CATALOG
    path = ctx.params.get("config")
    if not named and path and (catalog.root, catalog.catalog) == (None, None):
        of_run = plain_setting(read_file(path).get("run", {}).get("tables", []))
        named = of_run if isinstance(of_run, list) else [of_run]
    return named, catalog


def name_idle(options: TriggerOptions, *, counts_commits: bool = False) -> None:
    """Warns of options that this request does not use. `counts_commits`: archiving counts delta commits, too."""
    idle = [name for name in options.idle if name != "max_delta_commits" or not counts_commits]
    if idle:
        names = " ".join(name.removesuffix("_s").replace("_", "-") for name in idle)
        _log.warning("options_without_effect", of=names)


def check_idle(
    ctx: typer.Context,
    chosen: frozenset[Service],
    given: Mapping[str, Any],
    requests: ScheduleOptions,
    *,
    schedule: bool,
) -> None:
    """Options of what does not run: UsageError if they were typed; those of a file are for other commands, too."""
    names = {str(pair).partition("=")[0].strip() for pair in ctx.params.get("conf") or []}
    running = {service.kind for service in chosen} | ({ScheduleOptions} if schedule else set())
    names -= {name for kind in running for name in conf_names(kind)}

    def is_typed(kind: type, prefix: str = "") -> bool:
        flags = typed_options(ctx, (f"{prefix}{name}" for name in names_of(kind)))
        return bool(flags or names & conf_names(kind))

    requested = not schedule and requests != ScheduleOptions()
    if requested and is_typed(ScheduleOptions):
        raise UsageError("options for requesting compactions are given without --schedule", todo="Add --schedule.")
    idle = [s for s in Service if s not in chosen and given[s.value] != s.kind()]
    if typed := [s for s in idle if is_typed(s.kind, f"{s.value}_")]:
        raise UsageError(
            f"options of a service are given that does not run: {', '.join(s.value for s in typed)}",
            todo=f"Add it: --services {','.join(s.value for s in Service if s in chosen or s in typed)}.",
        )
    if idle or requested:
        _log.warning("options_without_effect", of=" ".join([s.value for s in idle] + ["schedule"] * requested))


def merge_options(names: Mapping[str, str], *sources: Mapping[str, Any]) -> dict[str, Any]:
    """Options from several sources. `names`: how errors name them. UsageError: different values of an option."""
    found: dict[str, Any] = {}
    for one in sources:
        if differing := [name for name in one if name in found and found[name] != one[name]]:
            first = differing[0]
            raise contradiction(names[first], _plain(found[first]), f"{names[first]} by --conf", _plain(one[first]))
        found |= one
    return found


def _plain(value: Any) -> str:
    return str(getattr(value, "value", value))


_CONF = Annotated[
    list[str] | None,
    typer.Option("--conf", "--hoodie-conf", metavar="NAME=VALUE", help="an option under Hudi's own name"),
]
_PROPS = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE", help="a properties file of a Hudi job; what has no meaning here is one warning, --conf wins"
    ),
]


_LOCK = "lock"
"""The parameter of a command that has the table lock."""


def _conf_of(
    kinds: Collection[type],
    given: Mapping[str, Any],
    others: Mapping[str, Any],
    typed_of: Mapping[str, Mapping[str, Any]],
) -> tuple[Merged, Mapping[str, Any]]:
    conf = command_conf(kinds, given["conf"] or [], given["props"] or [], locks=_LOCK in others, lock=others.get(_LOCK))

    policies, lock = _policies(kinds, others, typed_of), conf.lock
    if _LOCK in others and lock is None and not others.get("sole_writer"):
        lock = policies.values.get(_LOCK)

    def merged(kind: type, typed: Mapping[str, Any], words: Mapping[str, str]) -> Mapping[str, Any]:
        own = merge_options(words, typed, conf_fields(kind, conf.pairs[kind], typed)) if kind in KINDS else typed
        below = policies.beneath(kind, own)
        # A person who requests a plan does so now, whenever the table's own are due.
        return {**by_hand(below), **own} if kind is ScheduleOptions else below

    return merged, {_LOCK: lock} if _LOCK in others else {}


def _policies(
    kinds: Collection[type], others: Mapping[str, Any], typed_of: Mapping[str, Mapping[str, Any]]
) -> Policies:
    """Those of the table that a command names, if its options may have some; else its lock, if it takes one."""
    table, knows = others.get("table"), has_policies(kinds)
    if not isinstance(table, str) or not (knows or _LOCK in others):
        return NO_POLICIES
    hadoop = ExecuteOptions(spark_conf=typed_of.get("execute", {}).get("spark_conf", ())).hadoop_conf
    storage = open_storage(table, StorageOptions.of(parse_pairs(others.get("storage_option"))).over(hadoop))
    if knows:
        return read_policies(storage)
    lock = kept_lock(storage)
    return NO_POLICIES if lock is None else Policies(values={_LOCK: lock})


def given_names(ctx: typer.Context) -> frozenset[str]:
    """The policies that the command line, the environment or the configuration file gives."""
    sources = {name: ctx.get_parameter_source(name.replace("-", "_")) for name in policy_names()}
    return frozenset(name for name, source in sources.items() if source is not None and source.name != "DEFAULT")


offers = partial(command, names=OtherNames(kinds=KINDS, params={"conf": _CONF, "props": _PROPS}, read=_conf_of))
"""See `command`. Dataclasses whose fields have names of Hudi add `--conf` and `--props`."""
