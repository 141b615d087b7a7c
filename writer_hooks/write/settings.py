"""The settings of writers: the configuration file of commands and daemon, and variables that override it.

The file has them in the table [write], and those shared with commands at the top level; [schedule] says when and what a
write requests. They are fields of option dataclasses, as the options of commands are; `config show write` shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from phantombase.compactor_daemon import cli
from phantombase.compactor_daemon.cli.fleet_flags import Fleet, ZooKeeperFlags
from phantombase.compactor_daemon.fleet.zookeeper_session import ZooKeeperOptions
from phantombase.compactor_daemon.services.options import Service, parse_services
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import UsageError, ZooKeeperError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.clock_check import ClockOptions
from phantombase.timeline.option import option
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage.storage_options import StorageOptions, parse_pairs
from phantombase.timeline.terminal.option_group import OptionGroup, Prefix, groups_of
from phantombase.timeline.terminal.settings import WRITES, read_settings

from ..options import AFTER_A_WRITE, BackPressure, CompactionOptions, FullAction, Mode, WriteOptions

_SERVICES = ", ".join(service.value for service in AFTER_A_WRITE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnSettings:
    """Those that commands have as options of their own."""

    services: str | None = option(None, f"services that run after a write, of {_SERVICES}")
    lock: str | None = option(None, "the lock of the table, see `--lock` of commands")
    storage_option: tuple[str, ...] = option((), "an option of the object store, such as region=eu-west-1")


SETTINGS: Mapping[str, OptionGroup] = groups_of(
    {
        "options": WriteOptions,
        "compaction": CompactionOptions,
        "requests": ScheduleOptions,
        "pressure": BackPressure,
        "own": _OwnSettings,
        **{service.value: Annotated[service.kind, Prefix(service.value)] for service in AFTER_A_WRITE},
        "zookeeper": Fleet,
        "output": OutputOptions,
        "clock": ClockOptions,
    }
)
"""The dataclasses, by the names under which `read_settings` returns them."""
PAGES = Path(cli.__file__).with_name("help.json")
_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    options: WriteOptions
    storage_options: StorageOptions


def write_settings(path: str | None) -> WriteSettings:
    """The settings of the file at this path, else of the one that PHANTOMBASE_CONFIG names; variables override them.
    UsageError: the file cannot be read, a name is no setting, or a value is wrong."""
    read = read_settings(SETTINGS, WRITES, path, PAGES)
    own: _OwnSettings = read.values["own"]
    compaction: CompactionOptions = read.values["compaction"]
    zookeeper: ZooKeeperFlags = read.values["zookeeper"]
    chosen = parse_services(own.services) if own.services is not None else frozenset[Service]()
    if wrong := [service.value for service in Service if service in chosen and service not in AFTER_A_WRITE]:
        raise UsageError(f"a writer does not run {', '.join(wrong)}", expected=_SERVICES, found=own.services)
    pressure: BackPressure = read.values["pressure"]
    if idle := sorted(_idle(read.found, chosen, compaction.mode, pressure)):
        _log.warning("configurations_without_meaning", names=" ".join(idle))
    run: dict[str, Any] = {one.value: read.values[one.value] if one in chosen else None for one in AFTER_A_WRITE}
    limited = pressure.slow_trigger is not None or any(name.startswith("stop-") for name in read.found)
    return WriteSettings(
        options=replace(
            read.values["options"],
            output=read.values["output"],
            lock=zookeeper.on_lock(own.lock),
            **run,
            compaction=replace(compaction, schedule=read.values["requests"], fleet=_fleet(zookeeper, compaction.mode)),
            back_pressure=pressure if limited else None,
            clock=read.values["clock"],
        ),
        storage_options=parse_pairs(own.storage_option),
    )


def _idle(found: Iterable[str], chosen: frozenset[Service], mode: Mode, pressure: BackPressure) -> Iterator[str]:
    """The settings without effect: of services that do not run, of an inline compaction, and how long a
    write waits, or is slowed down, that is not."""
    off = tuple(f"{one.value}-" for one in Service if one not in chosen)
    none = {"compaction-limit", "record-ttl"} if mode is not Mode.INLINE else set[str]()
    none |= {"slow-wait"} if pressure.slow_trigger is None else set()
    none |= {"stop-wait"} if pressure.action is not FullAction.WAIT else set()
    return (name for name in found if name.startswith(off) or name in none)


def _fleet(zookeeper: ZooKeeperFlags, mode: Mode) -> ZooKeeperOptions | None:
    """The daemons to notify. If no embedded server runs, none is: they find the plan at their next poll."""
    if mode is Mode.WRITE_ONLY:
        return None
    try:
        return zookeeper.options()
    except ZooKeeperError as error:
        _log.warning("fleet_not_woken", error=str(error))
        return None
