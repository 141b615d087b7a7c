"""Values: dataclasses that cost little to define, and values by their keys.

`dataclasses.dataclass` compiles six functions for each frozen class, half a millisecond: a third of the start of a
command, which loads some 400. The `dataclass` of this module is the same for frozen classes, but these share their
functions, or compile them when they are first called. Those below another dataclass, and others that are not frozen,
are made by `dataclasses`."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, FrozenInstanceError, fields
from functools import partial
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def gathered(pairs: Iterable[tuple[K, V]]) -> dict[K, tuple[V, ...]]:
    """The values of each key; keys and values are in the order in which they came first."""
    found: defaultdict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return {key: tuple(values) for key, values in found.items()}


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, kw_only=False, repr=True, **others):
        """See `dataclasses.dataclass`."""
        if not frozen or others:
            make = dataclasses.dataclass(frozen=frozen, slots=slots, kw_only=kw_only, repr=repr, **others)
        else:
            make = partial(_frozen, slots=slots, kw_only=kw_only, shown=repr)
        return make if cls is None else make(cls)


def _frozen(kind: Any, *, slots: bool, kw_only: bool, shown: bool) -> Any:
    if any("__dataclass_params__" in vars(one) for one in kind.__mro__):  # `dataclasses` mixes no kinds of classes
        return dataclasses.dataclass(frozen=True, repr=shown, slots=slots, kw_only=kw_only)(kind)
    if kind.__doc__ is None:  # else it is made of the signature, which takes as long as all else
        kind.__doc__ = f"{kind.__name__}(...)"
    given = frozenset(vars(kind))
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(kind)
    functions = {name: _late(made, name, lines) for name, lines in _LINES.items()}
    if shown:
        functions["__repr__"] = _repr
    if slots:
        functions |= {"__getstate__": _state, "__setstate__": _set_state}
    for name, function in functions.items():
        if name not in given or (name == "__hash__" and "__eq__" not in given and vars(made)["__hash__"] is None):
            setattr(made, name, function)
    made.__setattr__, made.__delattr__ = _set, _delete
    made.__dataclass_params__.frozen = True  # for classes below that `dataclasses` makes
    return made


@recursive_repr("...")
def _repr(self: Any) -> str:
    named = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({named})"


def _is_frozen(value: Any, name: str) -> bool:
    """Also of a class below that is no dataclass, its own attributes are not."""
    return "__dataclass_fields__" in vars(type(value)) or name in value.__dataclass_fields__


def _set(self: Any, name: str, value: Any) -> None:
    if _is_frozen(self, name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    if _is_frozen(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in fields(self)]


def _set_state(self: Any, state: Iterable[Any]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


def _late(kind: Any, name: str, lines: Callable[[Any, dict[str, Any]], Sequence[str]]) -> Callable[..., Any]:
    """A method that is compiled by its first call, or by `compiled`."""
    made: list[Callable[..., Any]] = []

    def compiled() -> Callable[..., Any]:
        if not made:
            names: dict[str, Any] = {}
            exec("\n".join(lines(kind, names)), names)
            function = names[name]
            function.__qualname__, function.__module__ = f"{kind.__qualname__}.{name}", kind.__module__
            if name == "__init__":
                function.__annotations__ = {one.name: one.type for one in fields(kind) if one.init} | {"return": None}
            made.append(function)
            if vars(kind).get(name) is late:
                setattr(kind, name, function)
        return made[0]

    def late(self: Any, /, *args: Any, **given: Any) -> Any:
        return compiled()(self, *args, **given)

    late.compiled = compiled  # type: ignore[attr-defined]
    return late


class _Factory:
    """In signatures it stands for a default that is made for each instance."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _init_lines(kind: Any, names: dict[str, Any]) -> Sequence[str]:
    names |= {"_put": object.__setattr__, "_factory": _FACTORY}
    positional, named, body = list[str](), list[str](), list[str]()
    for number, one in enumerate(fields(kind)):
        value, default = one.name, ""
        if one.default is not MISSING:
            names[f"_default{number}"], default = one.default, f"=_default{number}"
        elif one.default_factory is not MISSING:
            names[f"_make{number}"], default = one.default_factory, "=_factory"
            value = f"_make{number}() if {one.name} is _factory else {one.name}"
        if one.init:
            (named if one.kw_only else positional).append(one.name + default)
        elif default:
            value = f"_make{number}()" if default == "=_factory" else default[1:]
        else:
            continue
        body.append(f" _put(self, {one.name!r}, {value})")
    if hasattr(kind, "__post_init__"):
        body.append(" self.__post_init__()")
    form = ", ".join(["self", *positional, *(["*", *named] if named else [])])
    return [f"def __init__({form}):", *(body or [" pass"])]


def _compared(kind: Any, of: str) -> str:
    return f"({''.join(f'{of}.{one.name}, ' for one in fields(kind) if one.compare)})"


def _eq_lines(kind: Any, names: dict[str, Any]) -> Sequence[str]:
    same = f"{_compared(kind, 'self')} == {_compared(kind, 'other')}"
    return ["def __eq__(self, other):", f" return {same} if other.__class__ is self.__class__ else NotImplemented"]


def _hash_lines(kind: Any, names: dict[str, Any]) -> Sequence[str]:
    return ["def __hash__(self):", f" return hash({_compared(kind, 'self')})"]


_LINES = {"__init__": _init_lines, "__eq__": _eq_lines, "__hash__": _hash_lines}
