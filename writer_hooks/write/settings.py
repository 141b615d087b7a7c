"""The settings of writers: the configuration file of commands and daemon, and variables that override it.

The file has them in the table [write], and those shared with commands at the top level; [schedule] says when and what a
write requests. They are declared like the options of a command, so that one reader takes them all, and `config show
write` shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from phantombase.compactor_daemon.cli.fleet_flags import ZOOKEEPER, Fleet, ZooKeeperFlags
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.cli.option_flags import CLOCK, OUTPUT, Lock, StorageOption, offers
from phantombase.compactor_daemon.fleet.zookeeper_session import ZooKeeperOptions
from phantombase.compactor_daemon.services.options import Service, parse_services
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import UsageError, ZooKeeperError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage.storage_options import StorageOptions, parse_pairs
from phantombase.timeline.terminal.boundary import misuse
from phantombase.timeline.terminal.command import Each
from phantombase.timeline.terminal.option_group import Only
from phantombase.timeline.terminal.settings import WRITES

from ..options import AFTER_A_WRITE, BackPressure, CompactionOptions, Mode, WriteOptions

_WRITE, _COMPACTION, _PRESSURE, _SCHEDULE = WriteOptions(), CompactionOptions(), BackPressure(), ScheduleOptions()
_SERVICES = ", ".join(service.value for service in AFTER_A_WRITE)
_OF_WRITE = Only(
    "buckets",
    "bucket_fields",
    "moved_keys",
    "combine",
    "combine_upserts",
    "combine_inserts",
    "null_for_missing",
    "log_format",
    "file_bytes",
    "small_file_bytes",
    "slots",
    "batch_bytes",
    "retries",
    "heartbeat_s",
    "heartbeat_expiry_s",
    "lazy_rollback",
)
_OF_PRESSURE = ("stop_trigger", "stop_action", "stop_wait")

_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    """The settings of a writer from file and variables."""

    options: WriteOptions
    storage_options: StorageOptions


def write_settings(path: str | None) -> WriteSettings:
    """The settings of the file at this path, else of the one that PHANTOMBASE_CONFIG names; variables override them.

    UsageError: the file cannot be read, a name is no setting, or a value is wrong.
    """
    group: Any = typer.main.get_command(app)
    command = group.commands[WRITES]
    words = [] if path is None else ["--config", path]
    try:
        with typer.Context(group, info_name=app.info.name) as above:
            context = command.make_context(WRITES, words, parent=above)
            with context:
                settings: WriteSettings = command.invoke(context)
                return settings
    except Exception as error:
        if (found := misuse(error)) is None:
            raise
        raise UsageError("not a value of a setting of writers", path=path, found=found) from error


@offers
def write(
    ctx: typer.Context,
    of_services: Annotated[dict[str, Any], Each({service.value: service.kind for service in AFTER_A_WRITE})],
    options: Annotated[WriteOptions, _OF_WRITE] = _WRITE,
    compaction: Annotated[CompactionOptions, Only("mode", "limit_s")] = _COMPACTION,
    requests: ScheduleOptions = _SCHEDULE,
    pressure: BackPressure = _PRESSURE,
    services: Annotated[
        str | None, typer.Option(metavar="NAMES", help=f"services that run after a write, of {_SERVICES}")
    ] = None,
    lock: Lock = None,
    zookeeper: Fleet = ZOOKEEPER,
    output: OutputOptions = OUTPUT,
    clock: ClockOptions = CLOCK,
    storage_option: StorageOption = None,
) -> WriteSettings:
    """The settings of writers; no command."""
    limited = any(_is_given(ctx, name) for name in _OF_PRESSURE)
    chosen = parse_services(services) if services is not None else frozenset[Service]()
    if wrong := [service.value for service in Service if service in chosen and service not in AFTER_A_WRITE]:
        raise UsageError(f"a writer does not run {', '.join(wrong)}", expected=_SERVICES, found=services)
    if idle := sorted(_idle(ctx, chosen, compaction.mode)):
        _log.warning("configurations_without_meaning", names=" ".join(idle))
    after = replace(compaction, schedule=requests, fleet=_fleet(zookeeper, compaction.mode))
    run: dict[str, Any] = {one.value: of_services[one.value] if one in chosen else None for one in AFTER_A_WRITE}
    return WriteSettings(
        options=replace(
            options,
            output=output,
            lock=zookeeper.on_lock(lock),
            **run,
            compaction=after,
            back_pressure=pressure if limited else None,
            clock=clock,
        ),
        storage_options=parse_pairs(storage_option),
    )


def _idle(ctx: typer.Context, chosen: frozenset[Service], mode: Mode) -> Iterator[str]:
    """The settings without effect: of services that do not run, and how long an inline compaction may take."""
    off = tuple(f"{one.value}_" for one in Service if one not in chosen)
    for name in (str(param.name) for param in ctx.command.params):
        if (name.startswith(off) or (name == "compaction_limit" and mode is not Mode.INLINE)) and _is_given(ctx, name):
            yield name.replace("_", "-")


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _fleet(zookeeper: ZooKeeperFlags, mode: Mode) -> ZooKeeperOptions | None:
    """The daemons to notify. If no embedded server runs, none is: they find the plan at their next poll."""
    if mode is Mode.WRITE_ONLY:
        return None
    try:
        return zookeeper.options()
    except ZooKeeperError as error:
        _log.warning("fleet_not_woken", error=str(error))
        return None
