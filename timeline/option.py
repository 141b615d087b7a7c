"""Fields of option dataclasses: default, help and least value in one place."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, field, fields, is_dataclass, replace
from datetime import datetime
from enum import Enum
from functools import cache, wraps
from inspect import BoundArguments, Parameter, Signature, isfunction, signature
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import PhantombaseError, UsageError


def option(
    default: Any,
    help_text: str,
    *,
    flag: str | None = None,
    size: bool = False,
    metavar: str | None = None,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """A dataclass field with the help that commands show.
    `flag`: the option's name in commands, if it differs. `size`: bytes, which users may write like `64m`. `metavar`:
    what its value stands for. `least`, `most`: the range that commands accept."""
    metadata = {"help": help_text, "flag": flag, "size": size, "metavar": metavar, "least": least, "most": most}
    return field(default=default, metadata=metadata)


_C = TypeVar("_C", bound=type)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def spelled(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function with a UsageError, instead of Python's TypeError, if it is called with other options than it has, or
    with values of another kind, see `check_kinds`. Its errors name the table that it is called with."""
    form = signature(function)
    kinds = {name: one.kind for name, one in form.parameters.items()}
    place = next((name for name in kinds if name in _PLACES), None)
    label = "{}" if function.__name__.startswith("_") else f"{{}} of {function.__name__}"

    @wraps(function)
    def call(*args: _P.args, **options: _P.kwargs) -> _T:
        bound = _bound(form, function.__name__, args, options)
        hints = _hints_of(function)
        try:
            for name, value in bound.arguments.items():
                if kinds[name] not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) and name in hints:
                    bound.arguments[name] = _taken(hints[name], value, label.format(name))
            return function(*bound.args, **bound.kwargs)
        except PhantombaseError as error:
            given = (
                bound.arguments.get(place) if place is not None else getattr(bound.arguments.get("self"), "table", None)
            )
            base: Any = getattr(getattr(given, "storage", None), "base_path", given)
            base = base.__fspath__() if hasattr(base, "__fspath__") else base
            if isinstance(base, str) and base.strip():
                error.place(base if ":" in base else str(Path(base).absolute()), base)
            error.alone()
            raise

    return call


_PLACES = frozenset(("table", "path", "place"))
"""What a call names its table."""


def _bound(form: Signature, of: str, args: Sequence[Any], options: Mapping[str, Any]) -> BoundArguments:
    kinds = {name: one.kind for name, one in form.parameters.items()}
    known = [name for name, kind in kinds.items() if kind is not Parameter.VAR_POSITIONAL and name != "self"]
    if Parameter.VAR_KEYWORD not in kinds.values():
        _check_spelling(options, known, of)
    try:
        return form.bind(*args, **options)
    except TypeError as error:
        raise UsageError(f"{of}: {error}", expected=", ".join(known) or "nothing") from None


def spelled_class(kind: _C) -> _C:
    """A class whose public methods are `spelled`; of a dataclass its fields, too."""
    for name, method in vars(kind).copy().items():
        if isfunction(method) and not name.startswith("_"):
            setattr(kind, name, spelled(method))
        if isinstance(method, staticmethod):
            setattr(kind, name, staticmethod(spelled(method.__func__)))
    if is_dataclass(kind):
        make = kind.__init__

        @wraps(make)
        def init(self: Any, *args: Any, **options: Any) -> None:
            try:
                make(self, *args, **options)
            except TypeError:
                _bound(signature(make), kind.__name__, (self, *args), options)
                raise

        kind.__init__ = init  # type: ignore[method-assign]
    elif "__init__" in vars(kind):
        setattr(kind, "__init__", spelled(vars(kind)["__init__"]))  # noqa: B010
    return kind


def _check_spelling(given: Iterable[str], known: Collection[str], of: str) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            others = ", ".join(sorted(known)) or "none"
            raise UsageError(
                f"{of} has no such option",
                expected=None if near else others,
                found=name,
                todo=f"Did you mean {near[0]}?" if near else None,
            )


def path_text(path: Any) -> str:
    """A path or URL as text. UsageError: it is none, or cannot be stored as UTF-8."""
    text = path.__fspath__() if hasattr(path, "__fspath__") and not isinstance(path, type) else path
    if not isinstance(text, str) or not text.strip():
        raise UsageError("not a path", expected="a text, or a path of pathlib", found=repr(path))
    check_text("the path", text)
    return text


_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_LONG = range(-(1 << 63), 1 << 63)


def whole_number(text: str) -> int:
    """The integer that a text says to Java, and so to Hudi: ASCII digits, perhaps with a sign, of 64 bits. ValueError:
    anything else, also what only Python takes for one: `1_0`, ` 1 `, digits of other scripts."""
    if _WHOLE.fullmatch(text) is None or len(text) > _LONGEST or int(text) not in _LONG:
        raise ValueError(text)
    return int(text)


_LONGEST = 20
"""Characters of a number of 64 bits; Python refuses to read one of thousands."""


def decimal_number(text: str) -> float:
    """As `whole_number`, perhaps with a fraction and an exponent. ValueError: also infinity, and what is no number."""
    if _DECIMAL.fullmatch(text) is None or not math.isfinite(found := float(text)):
        raise ValueError(text)
    return found


NUMBERS: Mapping[type, Callable[[str], Any]] = {int: whole_number, float: decimal_number}
"""How each type of number is read from what a user writes: options, variables, files and Hudi's names."""
_E = TypeVar("_E", bound=Enum)


def member(kind: type[_E], value: Any, what: str) -> _E:
    """A member of an enum, also by its value or name as text (case-insensitive). UsageError: no such member."""
    if isinstance(value, kind):
        return value
    word = str(value).strip().upper().replace("-", "_")
    for one in kind:
        if word in (one.name, str(one.value).upper().replace("-", "_")):
            return one
    *names, last = (str(one.value) for one in kind)
    raise UsageError(f"not {what}", expected=f"{', '.join(names)} or {last}", found=repr(value))


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
"""Of durations, in seconds."""


def duration_s(text: str, what: str) -> int:
    """Seconds of a duration like `2h`. UsageError: it is none, or zero; the error names `what` it belongs to."""
    match = re.fullmatch(r"(\d{1,9}) *([smhd])", text.lower(), re.ASCII) if isinstance(text, str) else None
    if match is None or not int(match[1]):
        raise UsageError(f"not a duration of {what}", expected="like 2h, 30m, 1d or 90s", found=str(text))
    return int(match[1]) * UNITS[match[2]]


def check_kinds(options: Any) -> None:
    """Each value of an option dataclass is what its field says. A text that names a member of an enum becomes the
    member, a list a tuple, a single text or member a tuple of one. UsageError: anything else, such as the text `false`
    for a bool, which would count as true."""
    usual = _defaults(options.__class__)
    for name, hint in _hints(options.__class__).items():
        value = getattr(options, name)
        if value is usual.get(name, MISSING):
            continue
        if (taken := _taken(hint, value, name.replace("_", "-"))) is not value:
            object.__setattr__(options, name, taken)


@cache
def _hints_of(function: Any) -> Mapping[str, Any]:
    """None of a function that names a type of a library which it has not imported."""
    try:
        return get_type_hints(function)
    except NameError:
        return {}


@cache
def _hints(options: Any) -> dict[str, Any]:
    return get_type_hints(options)


@cache
def _defaults(options: Any) -> dict[str, Any]:
    return {f.name: f.default for f in fields(options) if f.default is not MISSING}


_KINDS: Mapping[type, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "a text"),
    datetime: (datetime, "a datetime"),
}


def _taken(hint: Any, value: Any, name: str) -> Any:
    if get_origin(hint) in (Union, UnionType):
        several = [one for one in get_args(hint) if one is not NoneType]
        return value if value is None or len(several) > 1 else _taken(several[0], value, name)
    if hint == _PAIRS and isinstance(value, Mapping):
        value = tuple(value.items())
    if get_origin(hint) is tuple and get_args(hint)[1:] != (...,):
        kinds = get_args(hint)
        if not isinstance(value, tuple | list) or len(value) != len(kinds):
            raise _of_another_kind(name, "pairs of texts" if hint == get_args(_PAIRS)[0] else "a tuple", value)
        return tuple(_taken(kind, one, name) for kind, one in zip(kinds, value, strict=True))
    if get_origin(hint) is tuple:
        given = tuple(value) if isinstance(value, list) else (value,) if isinstance(value, str | Enum) else value
        if not isinstance(given, tuple):
            raise _of_another_kind(name, "a tuple", value)
        each = tuple(_taken(get_args(hint)[0], one, name) for one in given)
        return value if each == value else each
    if get_origin(hint) is Sequence and get_args(hint) == (Any,) and not isinstance(value, tuple | list):
        raise _of_another_kind(name, "a list", value)
    if not isinstance(hint, type):
        return value
    if issubclass(hint, Enum):
        return member(hint, value, f"a value of {name}")
    if hint is str and hasattr(value, "__fspath__"):
        return value.__fspath__()
    if hasattr(hint, "__fspath__"):
        if not (isinstance(value, str) or hasattr(value, "__fspath__")):
            raise _of_another_kind(name, "a path", value)
        made: Any = hint
        return value if isinstance(value, hint) else made(value)
    kind, what = _KINDS.get(hint, (hint if is_dataclass(hint) else object, hint.__name__))
    if not isinstance(value, kind) or (isinstance(value, bool) and kind in (Integral, Real)):
        raise _of_another_kind(name, what, value)
    return value


_PAIRS = tuple[tuple[str, str], ...]


def _of_another_kind(name: str, expected: str, value: Any) -> UsageError:
    return UsageError(f"not a value of {name}", expected=expected, found=repr(value))


def same_option(options: type, name: str) -> Any:
    """A field that is the option of another dataclass: the same default, help, unit and least value."""
    other = next(f for f in fields(options) if f.name == name)
    return field(default=other.default, metadata=other.metadata)


def least_of(options: type) -> dict[str, float]:
    """The least values of a dataclass's options, for those that have one."""
    return {f.name: f.metadata["least"] for f in fields(options) if f.metadata.get("least") is not None}


def help_of(options: type, name: str) -> str:
    return str(next(f for f in fields(options) if f.name == name).metadata["help"])


def idle_of(options: Any, unused: Mapping[str, bool]) -> tuple[str, ...]:
    """The fields that are `unused` with the others, by name, and that differ from their defaults."""
    usual = {f.name: f.default for f in fields(options)}
    return tuple(name for name, is_unused in unused.items() if is_unused and getattr(options, name) != usual[name])


def check_least(options: Any, least: Mapping[str, float]) -> None:
    """UsageError if a value is below its least one, or of another kind than its field; None passes. See `check_kinds`,
    which goes first."""
    check_kinds(options)
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and not value >= bound:
            raise UsageError(
                f"{name.replace('_', '-')} must be at least {bound}", found=str(value), expected=f"{bound} or more"
            )


def check_finite(options: Any, least: Mapping[str, float]) -> None:
    """UsageError if a value is below its least one, infinite or not a number; None passes."""
    check_least(options, least)
    for name in least:
        value = getattr(options, name)
        if value is not None and not math.isfinite(value):
            raise UsageError(
                f"{name.replace('_', '-')} must be finite: a wait for it would not end",
                found=str(value),
                expected="a number of seconds",
            )


def check_above_zero(options: Any, *names: str) -> None:
    """UsageError if a value is not above zero, infinite or not a number; None passes. See `check_kinds`, which goes
    first."""
    check_kinds(options)
    for name in names:
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise UsageError(
                f"{name.replace('_', '-')} is out of range", expected="more than 0, finite", found=str(value)
            )


def check_below(options: Any, name: str, other: str) -> None:
    """UsageError if the first value is not below the second."""
    value, bound = getattr(options, name), getattr(options, other)
    if not value < bound:
        raise UsageError(
            f"{name.replace('_', '-')} must be below {other.replace('_', '-')}",
            found=f"{value:g} and {bound:g}",
            todo="Give a smaller or a larger one.",
        )


def check_text(name: str, text: str) -> None:
    """UsageError if a text cannot be stored as UTF-8: bytes of a command line that are none stand for surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} is not valid text", expected="UTF-8", found=ascii(text)) from error


def as_typed(error: UsageError, default: Any, typed: Mapping[str, Any], words: Mapping[str, str]) -> UsageError:
    """The error that an option dataclass gave, naming the option of the command line.
    `default`: the dataclass with its defaults; `typed`: what was typed, by field; `words`: all its options, by field.
    Checks of the dataclass over several options are unchanged."""
    for name in typed:
        own = name.replace("_", "-")
        if error.what.startswith(f"{own} "):
            return error.reworded(words[name] + error.what.removeprefix(own))
    for name, value in typed.items():
        if _refuses(default, name, value, error):
            return error.reworded(f"{words[name]}: {error.what}")
    return error


def _refuses(default: Any, name: str, value: Any, error: UsageError) -> bool:
    """Whether the value of this field alone gives the same error."""
    try:
        replace(default, **{name: value})
    except UsageError as alone:
        return str(alone) == str(error)
    return False
