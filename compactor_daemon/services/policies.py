"""The policies of a table: options that live with it, for all processes that care for it, in a file of phantombase.

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
from functools import cache
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
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.option_group import group_of, type_of, value_of

from ..options import AttemptOptions
from .options import Service, parse_services

PATH = POLICIES
PREFIX = "phantombase."
SERVICES, LOCK = "services", "lock"
SAFE = ("foreign-grace", "heartbeat-expiry")
_KINDS: tuple[tuple[str, type[Any]], ...] = (
    ("", ScheduleOptions),
    ("", OutputOptions),
    ("", AttemptOptions),
    *((f"{service.value}-", service.kind) for service in Service),
)
"""What the names of their options begin with, and the option dataclasses."""
_OF_MACHINES = frozenset(("spill-dir", "memory-limit", "wait", "property"))
"""Options of the process, or of one call."""
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
                raise UsageError("not a line of a policy", found=line)
            values[name.removeprefix(PREFIX)] = value
        _check(values)
    except UsageError as error:
        raise MalformedError(
            UNREADABLE_POLICIES,
            path=PATH,
            found=str(error),
            todo="`compactor-daemon config unset TABLE NAME` removes one; a later release may have written it.",
        ) from error
    if unknown := sorted(values.keys() - set(policy_names())):
        _log.warning("policies_unknown", table=storage.base_path, names=" ".join(unknown))
    return Policies(values=values)


def change_policies(
    table: Table, lock: TableLock, changes: Mapping[str, str | None], *, dry_run: bool = False
) -> Policies:
    """Sets policies, and removes those that are None, in one step under the lock. `dry_run`: only checks. UsageError:
    an unknown name, not a value, or values that contradict each other; nothing was changed. LockError: also if a new
    `lock` of the table cannot be taken."""
    for name, value in changes.items():
        if value is not None and name not in policy_names():
            near = difflib.get_close_matches(name, policy_names(), n=1)
            todo = f"Did you mean {near[0]}?" if near else "`compactor-daemon config show TABLE` lists the names."
            raise UsageError("no such policy of a table", found=name, todo=todo)
        if value is not None and ("\n" in value or "\r" in value):
            raise UsageError(f"{name}: a value is one line", found=repr(value))
    if not dry_run and (kept := changes.get(LOCK)) is not None:
        try_lock(table.storage, kept)  # one that no process can take would stop all of them
    with exclusive(table, lock, "change the policies", READ_INSIDE) as seen:
        before = read_policies(seen.storage).values if not _only_removes(changes) else _lines(seen.storage)
        values = {name: text for name, text in {**before, **changes}.items() if text is not None}
        if values != before:
            _check(values)
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
