"""The services of a table, each in one line; their options, also those that live with the table: its policies.

A service is a folder of this package with an option dataclass and a module with `run_service`, see `RunService`. All
that runs services, or shows them, goes by the members of `Service`.

The policies of a table are options for all processes that care for it, in a file of phantombase.

    .hoodie/.phantombase/table.properties     lines phantombase.NAME=VALUE; NAME is an option of `compactor-daemon run`

An option comes from the first of: command line, environment, configuration file, table, default. The names and values
are those of the commands, and are checked as theirs are. What one release cannot read is an error: another default may
not be meant. Names that it does not know are of a later one, and are warned of.

Options on which the safety of a table rests (`SAFE`, and `lock`, see `table_lock`) must be the same for all: a process
that was given another value than the table has is refused."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import MalformedError, MissingFileError, UsageError
from phantombase.timeline.event_log import get_logger
from phantombase.timeline.instants.triggers import TriggerOptions, TriggerStrategy, UrgencyOptions
from phantombase.timeline.locks.table_lock import (
    POLICIES,
    STORAGE,
    UNREADABLE_POLICIES,
    TableLock,
    parse_lock,
    policy_lines,
    try_lock,
)
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.in_progress import READ_INSIDE, exclusive
from phantombase.timeline.table.table import Snapshot, Table
from phantombase.timeline.terminal.option_group import group_of, type_of, value_of

from ..archiving.choice import ArchiveOptions
from ..catalogs.options import SyncOptions
from ..cleaning.choice import CleanOptions, Policy
from ..cleaning.orphan_choice import OrphanOptions
from ..clustering.options import ClusterOptions
from ..metadata_services.due import MetadataOptions
from ..options import AttemptOptions, BenefitOptions
from ..unit_of_work import RunService

_DAY_S = 86_400.0


class Service(Enum):
    """The services of a table, in the order in which they run: archiving depends on the others. `kind`: its option
    dataclass. `module`: has `run_service`, and is imported when it runs. `least_s`: the least interval between two runs
    of a daemon that goes on."""

    METADATA = "metadata", MetadataOptions, "metadata_services.serve"
    CLUSTER = "cluster", ClusterOptions, "clustering.cluster"
    CLEAN = "clean", CleanOptions, "cleaning.clean"
    ORPHANS = "orphans", OrphanOptions, "cleaning.orphans", _DAY_S
    SYNC = "sync", SyncOptions, "catalogs.sync"
    ARCHIVE = "archive", ArchiveOptions, "archiving.archive"

    kind: type[Any]
    module: str
    least_s: float

    def __new__(cls, name: str, kind: type[Any], module: str, least_s: float = 0.0) -> Service:
        one = object.__new__(cls)
        one._value_ = name
        one.kind, one.module, one.least_s = kind, module, least_s
        return one

    @property
    def run(self) -> RunService:
        found: RunService = import_module(f"phantombase.compactor_daemon.{self.module}").run_service
        return found


_BY_NAME: Mapping[str, Service] = {str(service.value): service for service in Service}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The services to run, with their options. `counted_commits`: delta commits that the
    trigger of compactions counts; the archiver keeps as many."""

    chosen: Mapping[Service, Any] = field(default_factory=dict)
    counted_commits: int = 0

    @staticmethod
    def of(counted_commits: int = 0, **options: Any) -> ServiceOptions:
        """`options`: by the name of the service; None: not this one."""
        chosen = {_BY_NAME[name]: given for name, given in options.items() if given is not None}
        return ServiceOptions(chosen=chosen, counted_commits=counted_commits)

    @property
    def services(self) -> tuple[Service, ...]:
        return tuple(s for s in Service if s in self.chosen)

    def options_of(self, service: Service) -> Any:
        return self.archiving if service is Service.ARCHIVE else self.chosen[service]

    @property
    def archiving(self) -> ArchiveOptions:
        """The options of archiving: what the cleaner retains and the trigger counts is kept on the active timeline."""
        own = self.chosen.get(Service.ARCHIVE) or ArchiveOptions()
        clean = self.chosen.get(Service.CLEAN)
        cleaned = clean.retained if clean is not None and clean.policy is Policy.COMMITS else 0
        counted = replace(own, compaction_commits=max(own.compaction_commits, self.counted_commits))
        return counted.beside_cleaner(cleaned)


def parse_services(text: str) -> frozenset[Service]:
    """The services of a list such as `clean,archive`. UsageError: not a service."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in _BY_NAME]:
        raise UsageError("not a service", expected=", ".join(_BY_NAME), found=", ".join(unknown) or repr(text))
    return frozenset(_BY_NAME[name] for name in names)


def usual_services(sync_to: str | None = None) -> frozenset[Service]:
    """Those that run where none is named: all but the removal of orphan files; a sync needs a catalog."""
    return frozenset(Service) - {Service.ORPHANS, *([Service.SYNC] if sync_to is None else [])}


PATH = POLICIES
PREFIX = "phantombase."
SERVICES, LOCK = "services", "lock"
_EXPIRY = "heartbeat-expiry"
SAFE = ("foreign-grace", _EXPIRY)
_KINDS: tuple[tuple[str, type[Any]], ...] = (
    ("", ScheduleOptions),
    ("", OutputOptions),
    ("", AttemptOptions),
    ("", BenefitOptions),
    *((f"{service.value}-", service.kind) for service in Service),
)
"""What the names of their options begin with, and the option dataclasses."""
_OF_MACHINES = frozenset(("spill-dir", "memory-limit", "wait", "property"))
"""Options of the process, or of one call."""
_NAMED = "`compactor-daemon config show TABLE` lists the names."
_log = get_logger()
Options = TypeVar("Options")


@cache
def _known() -> Mapping[str, tuple[type[Any], Field[Any]]]:
    """The options that a table may have, by name."""
    found: dict[str, tuple[type[Any], Field[Any]]] = {}
    for prefix, kind in _KINDS:
        group = group_of(kind)
        assert group is not None, "an option dataclass"
        for flag, one in group.fields.items():
            name = prefix + flag.replace("_", "-")
            if name not in _OF_MACHINES:
                found[name] = kind, one
    return found


def policy_names() -> tuple[str, ...]:
    """What a table may have: the names of options without the dashes, `services` and `lock`."""
    return (LOCK, SERVICES, *_known())


def has_policies(kinds: Collection[type]) -> bool:
    """Whether a table may have options of one of these dataclasses."""
    return any(kind is of or issubclass(of, kind) for kind in kinds for _, of in _KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The options of a table as texts, by name without the prefix; several values of one are separated by blanks."""

    values: Mapping[str, str] = field(default_factory=dict)

    def beneath(self, kind: Any, own: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of an option dataclass that have a value of their `own`, and below them those of the table. A
        trigger of their own counts instead of the table's goal of freshness. UsageError: one of `SAFE` has another
        value than in the table."""
        found = dict(own)
        for name, text in self.values.items():
            one = _fields_of(kind).get(name)
            if one is None or (one.name == "freshness_s" and "strategy" in own):
                continue
            value = _value(name, text)
            if name in SAFE and found.get(one.name, value) != value:
                raise UsageError(
                    f"{name} must be the same for all processes of a table",
                    expected=f"{value:g}, as the table has",
                    found=f"{found[one.name]:g}",
                    todo=f"Leave it out here, or set it for all: compactor-daemon config set TABLE {name}=SECONDS.",
                )
            found.setdefault(one.name, value)
        return {**by_hand(found), **own} if own.get("strategy") is TriggerStrategy.ALWAYS else found

    def over(self, options: Options, given: Collection[str] = (), *, by_person: bool = False) -> Options:
        """Options with those of the table, where none was given: by its name, or as another value than the default.
        `by_person`: see `by_hand`. UsageError: see above; or they contradict each other."""
        kind: Any = type(options)
        named = {one.name for name, one in _fields_of(kind).items() if name in given}
        own = {
            one.name: getattr(options, one.name)
            for one in fields(kind)
            if one.name in named or getattr(options, one.name) != one.default
        }
        below = self.beneath(kind, own)
        found = {**by_hand(below), **own} if by_person else below
        made: Options = replace(options, **found) if self.values else options  # type: ignore[type-var]
        return made

    @property
    def services(self) -> frozenset[Service] | None:
        """Those that run on the table where a command names none."""
        text = self.values.get(SERVICES)
        return None if text is None else parse_services(text)


NO_POLICIES = Policies()


def by_hand(fields_: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ScheduleOptions for a request that a person makes: without those that say when one is due."""
    when = {one.name for kind in (TriggerOptions, UrgencyOptions) for one in fields(kind)} | {"freshness_s"}
    return {name: value for name, value in fields_.items() if name not in when}


def read_policies(storage: Storage) -> Policies:
    """MalformedError: the file cannot be read, or has a value that is none of its option."""
    try:
        lines = policy_lines(storage)
    except MissingFileError:
        return NO_POLICIES
    values: dict[str, str] = {}
    try:
        for line in filter(None, lines):
            name, equals, value = line.partition("=")
            if not (equals and name.startswith(PREFIX)):
                raise UsageError("not a line of a policy", expected="NAME=VALUE", found=line)
            values[name.removeprefix(PREFIX)] = value
        _check(values)
    except UsageError as error:
        raise MalformedError(
            UNREADABLE_POLICIES,
            path=f"{storage.base_path}/{PATH}",
            found=str(error),
            todo="`compactor-daemon config unset TABLE NAME` removes one; a later release may have written it.",
        ) from error
    if unknown := sorted(values.keys() - set(policy_names())):
        _log.warning("policies_unknown", table=storage.base_path, names=" ".join(unknown))
    return Policies(values=values)


def kept_attempt_options(storage: Storage) -> AttemptOptions:
    """The usual options, with those on which all processes of the table agree (`SAFE`). MalformedError: see above."""
    return read_policies(storage).over(AttemptOptions())


def least_expiry_s(table: Snapshot, own_s: float) -> float:
    """Seconds after which a writer counts as dead: its own value, or the table's if it has a longer one, so that no
    process rolls back what lives by the rule of the others. The table's is read only if an action is pending."""
    if all(instant.completed for instant in table.timeline.instants):
        return own_s
    kept = read_policies(table.storage)
    return max(own_s, kept.over(AttemptOptions()).heartbeat_expiry_s) if _EXPIRY in kept.values else own_s


def change_policies(
    table: Table, lock: TableLock, changes: Mapping[str, str | None], *, dry_run: bool = False
) -> Policies:
    """Sets policies, and removes those that are None, in one step under the lock. `dry_run`: only checks. UsageError:
    an unknown name, not a value, or values that contradict each other, or the table; nothing was changed.
    UnsupportedError: see `check_record_ttl`. LockError: also if a new `lock` of the table cannot be taken."""
    for name, value in changes.items():
        if value is not None and name not in policy_names():
            near = difflib.get_close_matches(name, policy_names(), n=1)
            todo = f"Did you mean {near[0]}?" if near else _NAMED
            raise UsageError("no such option of a table", found=name, todo=todo)
        if value is not None and ("\n" in value or "\r" in value):
            raise UsageError(f"{name}: a value is one line", found=repr(value), todo="Leave the line end out.")
    if not dry_run and (kept := changes.get(LOCK)) is not None:
        try_lock(table.storage, kept)  # one that no process can take would stop all of them
    with exclusive(table, lock, "change the policies", READ_INSIDE) as seen:
        before = read_policies(seen.storage).values if not _only_removes(changes) else _lines(seen.storage)
        if unknown := sorted(changes.keys() - before.keys() - set(policy_names())):
            raise UsageError("no such option of a table", found=", ".join(unknown), todo=_NAMED)
        values = {name: text for name, text in {**before, **changes}.items() if text is not None}
        if values != before:
            _check(values)
            if changes.get("record-ttl") is not None and seen.timeline.completed:  # else there is no schema yet
                from ..attempt.inputs import check_record_ttl  # late: it takes pyarrow

                check_record_ttl(Policies(values=values).over(OutputOptions()), seen)
            text = "".join(f"{PREFIX}{name}={value}\n" for name, value in sorted(values.items()))
            if not dry_run:
                seen.storage.overwrite(PATH, text.encode())
    return Policies(values=values)


def _only_removes(changes: Mapping[str, str | None]) -> bool:
    return all(value is None for value in changes.values())


def _lines(storage: Storage) -> Mapping[str, str]:
    """The values without their checks: a wrong one can be removed. MalformedError: not even lines."""
    try:
        pairs = (line.partition("=") for line in policy_lines(storage) if line)
    except MissingFileError:
        return {}
    return {name.removeprefix(PREFIX): value for name, _, value in pairs}


def _check(values: Mapping[str, str]) -> None:
    """UsageError: not a value, or values that contradict each other."""
    policies = Policies(values=values)
    if values.get(LOCK, STORAGE) != STORAGE:
        parse_lock(values[LOCK])
    if SERVICES in values:
        parse_services(values[SERVICES])
    for _, kind in _KINDS:
        policies.over(kind())


def _value(name: str, text: str) -> Any:
    kind, one = _known()[name]
    return value_of(kind, one, text.split() if type_of(kind, one)[1] else text, name)


@cache
def _fields_of(kind: Any) -> Mapping[str, Field[Any]]:
    """The options of a dataclass, or of a part of ScheduleOptions, that a table may have, by name."""
    own = {one.name for one in fields(kind)} if issubclass(ScheduleOptions, kind) else set()
    found = {name: one for name, (of, one) in _known().items() if of is ScheduleOptions and one.name in own}
    return found or {name: one for name, (of, one) in _known().items() if of is kind}
