"""Frozen dataclasses that share their functions are as those of `dataclasses`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any

import pytest

from phantombase.timeline import values


def forms(dataclass: Callable[..., Any]) -> list[Any]:
    """Classes as the product has them."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        """With its fields named."""

        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list, compare=False)
        d: int = field(default=3, repr=False)

    @dataclass(frozen=True)
    class Base:
        a: int
        made: list[int] = field(default_factory=list, init=False, compare=False)

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError("negative")

    @dataclass(frozen=True, repr=False)
    class Below(Base):
        b: int = 2

        def __repr__(self) -> str:
            return f"below {self.a} {self.b}"

    @dataclass(frozen=True, slots=True)
    class Odd:
        a: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

        def __hash__(self) -> int:
            return 7

    @dataclass(frozen=True, slots=True)
    class Empty:
        """Nothing."""

    return [Named, Base, Below, Odd, Empty]


CALLS: list[tuple[int, tuple[Any, ...], dict[str, Any]]] = [
    (0, (), {"a": 1}),
    (0, (), {"a": 1, "b": "x", "c": [1]}),
    (0, (), {}),
    (0, (1,), {}),
    (0, (), {"a": 1, "e": 2}),
    (1, (1,), {}),
    (1, (-1,), {}),
    (2, (1, 3), {}),
    (2, (), {"b": 1, "a": 1}),
    (3, (1,), {}),
    (4, (), {}),
]


def told(kinds: list[Any], at: int, args: tuple[Any, ...], given: dict[str, Any]) -> list[Any]:
    """What a class answers."""
    kind = kinds[at]
    try:
        one, same = kind(*args, **given), kind(*args, **given)
    except (TypeError, ValueError) as error:
        return [type(error), str(error)]
    found: list[Any] = [repr(one), one == same, one == object(), hash(one), dataclasses.asdict(one)]
    found += [repr(copy.deepcopy(one)), str(inspect.signature(kind)), kind.__match_args__]
    if dataclasses.fields(kind):
        other = dataclasses.replace(one, a=5)
        found += [repr(other), one == other, hash(one) == hash(other)]
        with pytest.raises(FrozenInstanceError) as refused:
            one.a = 2
        found.append(str(refused.value))
        with pytest.raises(FrozenInstanceError) as refused:
            del one.a
        found.append(str(refused.value))
    return found


def test_it_is_a_dataclass() -> None:
    ours, theirs = forms(values.dataclass), forms(dataclasses.dataclass)
    for call in CALLS:
        assert told(ours, *call) == told(theirs, *call)


@values.dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """To another process."""

    a: int
    b: tuple[int, ...] = ()


def test_another_process_receives_it() -> None:
    assert pickle.loads(pickle.dumps(Sent(a=1, b=(2,)))) == Sent(a=1, b=(2,))


def test_nothing_is_compiled_before_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError

    with monkeypatch.context() as patched:
        patched.setitem(vars(values), "exec", refuse)
        kinds = forms(values.dataclass)
    assert kinds[0](a=1).d == 3
