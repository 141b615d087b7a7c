"""Option dataclasses as options by name: what each is called, its type, its default in words, its value from a text.

The command line (`command`) and the configuration file (`settings`) fill the same dataclasses by it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from enum import Enum
from inspect import Parameter, get_annotations
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from ..codec.output_options import parse_bytes, print_bytes
from ..errors import UsageError
from ..option import NUMBERS, UNITS, as_typed, duration_s

_TITLES: Mapping[str, str] = {
    "TriggerOptions": "When a compaction is due",
    "UrgencyOptions": "When a compaction is due",
    "BoundOptions": "How much one plan holds",
    "ScheduleOptions": "Which file groups, and minor or major",
    "PickOptions": "Which file groups, and minor or major",
    "StrategyOptions": "Hudi's strategies",
    "OutputOptions": "Merging and writing base files",
    "ExecuteOptions": "Where file slices are compacted",
    "AttemptOptions": "Timeouts",
    "RetryOptions": "Failures",
    "ReplayOptions": "Replay",
    "Rules": "Daemon",
    "ClockOptions": "Clock and time zone",
    "CatalogFlags": "Tables of a catalog",
    "ZooKeeperFlags": "ZooKeeper",
    "CleanOptions": "Cleaning",
    "ArchiveOptions": "Archiving",
    "MetadataOptions": "Metadata table",
    "ClusterOptions": "Clustering",
    "OrphanOptions": "Orphan files",
    "SyncOptions": "Catalog",
    "EraseOptions": "Erasure",
    "WriteOptions": "Writes",
    "CompactionOptions": "Compaction after a write",
    "BackPressure": "Back-pressure",
    "PriceOptions": "Prices",
}
"""By the dataclass that defines the option; its name, so that none is imported for a title alone."""
_MOST_S = 1000 * 365 * 24 * 3600
"""A thousand years: a later point in time may be no valid date."""
_ON = frozenset(("1", "true", "t", "yes", "y", "on"))
_OFF = frozenset(("0", "false", "f", "no", "n", "off"))


class Only:
    """The fields of an option dataclass that are offered; the others have their defaults."""

    def __init__(self, *names: str) -> None:
        self.names = names


@dataclass(frozen=True, slots=True)
class Prefix:
    """The word before the names of a dataclass's options, where those of several dataclasses would be alike."""

    word: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionGroup:
    """The options of one dataclass: their default values, and the offered fields by the name of the option."""

    default: Any
    fields: Mapping[str, Field[Any]]

    @property
    def kind(self) -> type:
        return type(self.default)

    def built(self, values: Mapping[str, Any], typed: Mapping[str, Any], words: Mapping[str, str]) -> Any:
        """The dataclass with these values, by field. UsageError: it refuses one. `typed`: the values that were given
        under the names of the options; `words`: how errors name these, by field."""
        try:
            return replace(self.default, **values)
        except UsageError as error:
            raise as_typed(error, self.default, typed, words) from error


def group_of(hint: Any, default: Any = Parameter.empty) -> OptionGroup | None:
    """The options that a parameter stands for; None if the parameter is no option dataclass. `hint`: the dataclass,
    with `Only` and `Prefix` by `Annotated`. Without a `default` it is that of the dataclass."""
    kind, *marks = marked(hint)
    if not is_dataclass(kind):
        return None
    chosen: Any = kind() if default is Parameter.empty else default  # type: ignore[operator]
    only = next((mark.names for mark in marks if isinstance(mark, Only)), None)
    prefix = next((f"{mark.word}_" for mark in marks if isinstance(mark, Prefix)), "")
    offered = [f for f in _options(kind) if only is None or f.name in only]
    return OptionGroup(default=chosen, fields={f"{prefix}{_name(f)}": f for f in offered})


def groups_of(hints: Mapping[str, Any]) -> dict[str, OptionGroup]:
    return {name: group for name, hint in hints.items() if (group := group_of(hint)) is not None}


def marked(hint: Any) -> tuple[Any, ...]:
    """The type, and its marks."""
    return get_args(hint) if get_origin(hint) is Annotated else (hint,)


def title_of(kind: type, field: Field[Any]) -> str | None:
    """The title above an option; None: with the command's own options."""
    owner = next(k for k in kind.__mro__ if field.name in get_annotations(k))
    return _TITLES.get(owner.__name__)


def names_of(kind: type) -> tuple[str, ...]:
    return tuple(_name(f) for f in _options(kind))


def _options(kind: Any) -> Iterator[Field[Any]]:
    """The fields that `option` has made; others are those of Python alone."""
    return (field for field in fields(kind) if field.metadata)


def _name(field: Field[Any]) -> str:
    """The option's name, without its unit, which the help and the value show."""
    return str(field.metadata["flag"] or field.name.removesuffix("_s"))


def from_settings(default: Any, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """An option dataclass with a file's settings of its options, and the others. UsageError: not a value."""
    named = {_name(f).replace("_", "-"): f for f in _options(default)}
    known = {name: value for name, value in given.items() if name.replace("_", "-") in named}
    made = {(f := named[name.replace("_", "-")]).name: value_of(type(default), f, v, name) for name, v in known.items()}
    return replace(default, **made), {name: value for name, value in given.items() if name not in known}


def shown(field: Field[Any], default: Any) -> str:
    """A default for people; empty: nothing to show."""
    if default is None or default is False or default == ():
        return ""
    if field.metadata["size"]:
        return print_bytes(default)
    value = getattr(default, "value", default)
    return "on" if value is True else f"{value:g}" if isinstance(value, float) else str(value)


def type_of(kind: type, field: Field[Any]) -> tuple[Any, bool]:
    """The type of one value, and whether there may be several values."""
    hint = get_type_hints(kind)[field.name]
    if get_origin(hint) is tuple:
        return get_args(hint)[0], True
    options = [t for t in get_args(hint) if t is not NoneType] or [hint]
    return options[0], False


def value_of(kind: type, field: Field[Any], given: Any, name: str) -> Any:
    """The field's value from what was given under this `name`, a text or a value. UsageError: not one of the field."""
    of, several = type_of(kind, field)
    if several:
        return tuple(_one(field, of, v, name) for v in (given if isinstance(given, list | tuple) else [given]))
    return _one(field, of, given, name)


def _one(field: Field[Any], kind: Any, given: Any, name: str) -> Any:
    found = _converted(field, kind, given, name)
    if kind in NUMBERS:
        least, most = field.metadata["least"], field.metadata["most"]
        if most is None and field.name.endswith("_s"):
            most = _MOST_S
        if least is not None and not found >= least:
            raise UsageError(f"{name} must be at least {least}", found=str(found))
        if most is not None and not found <= most:
            raise UsageError(f"{name} must be at most {most}", found=str(found))
    return found


def _converted(field: Field[Any], kind: Any, given: Any, name: str) -> Any:
    if get_origin(kind) is tuple:
        first, _, second = str(given).partition("=")
        return first, second
    is_one = isinstance(given, kind) and not (kind is int and isinstance(given, bool))
    if is_one and (kind is not float or math.isfinite(given)):
        return given
    if field.metadata["size"] and isinstance(given, str):
        return parse_bytes(given, name)
    expected = kind.__name__
    if field.name.endswith("_s") and isinstance(given, str) and given[-1:].lower() in UNITS and given[:-1].strip():
        return kind(duration_s(given, name))
    try:
        if issubclass(kind, Enum):
            expected = ", ".join(m.value for m in kind)
            return kind(given)
        if kind is bool and str(given).lower() in _ON | _OFF:
            return str(given).lower() in _ON
        if kind is Path:
            return kind(given)
        if kind in NUMBERS and not isinstance(given, bool):
            return NUMBERS[kind](str(given))
    except (TypeError, ValueError) as error:
        raise UsageError(f"not a value of {name}", expected=expected, found=repr(given)) from error
    raise UsageError(f"not a value of {name}", expected=expected, found=repr(given))
