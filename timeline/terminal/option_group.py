"""Option dataclasses as options by name: what each is called, its type, its default in words, its value from a text;
and their help.

The command line (`command`) and the configuration file (`settings`) fill the same dataclasses by it.

The help page of a command is text, complete at 80 columns, with options in groups. Two columns: names of an option with
its placeholder, and its meaning with its default. A name that is too long for the first column has a line of its own,
so the second column keeps its width."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
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
            raise UsageError(f"{name} must be at least {least}", found=str(found), expected=f"{least} or more")
        if most is not None and not found <= most:
            raise UsageError(f"{name} must be at most {most}", found=str(found), expected=f"{most} or less")
    return found


def _converted(field: Field[Any], kind: Any, given: Any, name: str) -> Any:
    if get_origin(kind) is tuple:
        first, equals, second = str(given).partition("=")
        if not (first and equals):
            raise UsageError(f"not a value of {name}", expected="NAME=VALUE", found=repr(given))
        return first, second
    is_one = isinstance(given, kind) and not (kind is int and isinstance(given, bool))
    if is_one and (kind is not float or math.isfinite(given)):
        return given
    if field.metadata["size"] and isinstance(given, str):
        return parse_bytes(given, name)
    expected = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}.get(kind, kind.__name__)
    if field.name.endswith("_s") and kind in NUMBERS:
        expected = "seconds, or a duration like 30m, 2h or 1d"
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


LEAST_WIDTH = 40
MOST_WIDTH = 100
"""Wider lines are hard to read."""
OPTIONS = "Options"
"""The group of options without a group."""
_FIRST = 26
_KEPT = "\N{NO-BREAK SPACE}"
_INDENT = "  "
_MARKUP = re.compile(r"\[/?b\]")
_PLACEHOLDERS = {"int": "N", "integer": "N", "float": "NUMBER", "str": "TEXT", "text": "TEXT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpPage:
    """The content of a command's page. `usage`: the text after the command's name."""

    usage: str
    text: str
    sections: Mapping[str, Sequence[tuple[str, str]]]

    def shown(self, path: str, width: int) -> str:
        return page(f"{path} {self.usage}", self.text, self.sections, width)


def help_of(command: Any) -> HelpPage:
    """The page of one command, from its parameters and subcommands in click or typer."""
    inner = getattr(command, "commands", None)
    if inner is not None:
        named = [(name, one.help.split("\n\n")[0].replace("`", "")) for name, one in inner.items()]
        options = [("--help", "show this page and exit; each command has one")]
        return HelpPage(usage="COMMAND ...", text=command.help, sections={"Commands": named, OPTIONS: options})
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    groups: dict[str, list[tuple[str, str]]] = {}
    for param in command.params:
        if param.param_type_name == "option" and not param.hidden:
            title = getattr(param, "rich_help_panel", None) or OPTIONS
            groups.setdefault(title, []).append((_names(param), _meaning(param)))
    groups.setdefault(OPTIONS, []).append(("--help", "show this page and exit"))
    usage = " ".join([*(p.metavar or p.name.upper() for p in arguments), "[OPTIONS]"])
    named = [(_placeholder(p), p.help or "") for p in arguments]
    sections = {"Arguments": named, OPTIONS: groups.pop(OPTIONS), **groups}
    return HelpPage(usage=usage, text=command.help or "", sections=sections)


def written(pages: Mapping[str, HelpPage]) -> str:
    """The text of a file of pages, by the names of their commands (see `read_pages`)."""
    kept = {name: [page.usage, page.text, page.sections] for name, page in pages.items()}
    return json.dumps(kept, indent=1, ensure_ascii=False) + "\n"


def read_pages(text: str) -> dict[str, HelpPage]:
    """Inverse of `written`."""
    return {
        name: HelpPage(usage=usage, text=body, sections=sections)
        for name, (usage, body, sections) in json.loads(text).items()
    }


def page(usage: str, text: str, sections: Mapping[str, Sequence[tuple[str, str]]], width: int) -> str:
    """A page: usage, description, and sections of names with their meanings, without empty sections."""
    width = min(max(width, LEAST_WIDTH), MOST_WIDTH)
    short = [len(name) for rows in sections.values() for name, _ in rows if len(name) + 2 <= _FIRST]
    first = 2 + max(short, default=0)
    lines = [*_wrapped(f"Usage: {usage}", width, " " * 7), "", *_paragraphs(text, width)]
    for title, rows in sections.items():
        if rows:
            lines += ["", f"{title}:", *_rows(rows, first, width)]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str, width: int) -> Iterator[str]:
    """Paragraphs are filled; indented lines, such as examples, are unchanged."""
    for number, paragraph in enumerate(_MARKUP.sub("", text).strip().split("\n\n")):
        if number:
            yield ""
        if "\n " in paragraph or paragraph.startswith(" "):
            yield from paragraph.split("\n")
        else:
            yield from _wrapped(" ".join(paragraph.replace("`", "").replace("*", "").split()), width, "")


def _rows(rows: Sequence[tuple[str, str]], first: int, width: int) -> Iterator[str]:
    margin = " " * (len(_INDENT) + first)
    for name, meaning in rows:
        lines = _wrapped(meaning, width - len(margin), "")
        if len(name) + 2 <= first:
            yield f"{_INDENT}{name:{first}}{lines[0]}".rstrip()
        else:
            yield f"{_INDENT}{name}"
            yield f"{margin}{lines[0]}".rstrip()
        yield from (f"{margin}{line}" for line in lines[1:])


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    lines = textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_KEPT, " ") for line in lines] or [""]


# --- an option ---------------------------------------------------------------------------------------------------


def _names(param: Any) -> str:
    """`-v, --verbose`; `--codec NAME`. A flag's off name is shown only if the flag is on by default."""
    names = sorted(param.opts, key=len)
    if param.is_flag:
        return ", ".join([*names, *(param.secondary_opts if shown_default(param) == "on" else ())])
    return f"{', '.join(names)} {_placeholder(param)}"


def _placeholder(param: Any) -> str:
    if param.metavar:
        return str(param.metavar)
    if param.param_type_name == "argument":
        return str(param.name).upper()
    if values := _values(param):
        return "|".join(values) if _are_few(values) else "NAME"
    return _PLACEHOLDERS.get(_kind(param), "VALUE")


def _values(param: Any) -> list[str]:
    """The values of an option that has a fixed list of them."""
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    choices = getattr(getattr(param, "type", None), "choices", ())
    return [str(getattr(one, "value", one)) for one in choices]


def _are_few(values: list[str]) -> bool:
    return len("|".join(values)) <= _FIRST


def _kind(param: Any) -> str:
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    return kind.__name__ if isinstance(kind, type) else str(getattr(getattr(param, "type", None), "name", ""))


def _meaning(param: Any) -> str:
    shown, values, text = shown_default(param), _values(param), param.help or ""
    if values and not param.metavar and not _are_few(values):
        text = f"{text}: {', '.join(values)}"
    return f"{text} [default:{_KEPT}{shown}]" if shown else text


def shown_default(param: Any) -> str:
    """The default as the page shows it; empty: nothing to show."""
    if isinstance(param.show_default, str):
        return param.show_default
    value = getattr(param.default, "value", param.default)
    if not param.show_default or value is None or value is False or value == () or value == []:
        return ""
    return "on" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
