"""Pins: what they hold, when they end, and that an unreadable one is never no pin."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from phantombase.timeline.errors import ConflictError, MalformedError, UsageError
from phantombase.timeline.pins.hold import HeldPin, hold
from phantombase.timeline.pins.pin import PINS, Pin, PinOptions, all_pins, live_pins, release
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.look import Kept, Look
from tests.support.failing_storage import Call, HookedStorage

COPY = PinOptions.of("copy", "2h")


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    (tmp_path / ".hoodie").mkdir()
    return LocalStorage(str(tmp_path))


def test_a_pin_holds_while_the_body_runs(storage: LocalStorage) -> None:
    with hold(storage, COPY, "20261121090000000"):
        (pin,) = live_pins(storage)
        assert (pin.name, pin.holds, pin.for_s) == ("copy", "20261121090000000", 7200)
    assert live_pins(storage) == []


def test_two_readers_of_one_name_hold_both(storage: LocalStorage) -> None:
    with hold(storage, COPY, "2"), hold(storage, COPY, "1"):
        assert {pin.holds for pin in live_pins(storage)} == {"1", "2"}


def test_it_ends_by_the_clock_of_the_storage(storage: LocalStorage) -> None:
    """The file's time and now are both the storage's; a pin from the future holds, since that clock was set back."""
    held = HeldPin(storage, COPY, "1")
    (pin,) = all_pins(storage)
    assert pin.is_live(pin.taken_ms + 7_199_999)
    assert not pin.is_live(pin.taken_ms + 7_200_000)
    assert pin.is_live(pin.taken_ms - 10**9)
    path = f"{storage.base_path}/{pin.path}"
    os.utime(path, (pin.taken_ms / 1000 - 7_201,) * 2)
    assert live_pins(storage) == []
    held.remove()


def test_a_pin_moves_and_leaves_one_object(storage: LocalStorage) -> None:
    held = HeldPin(storage, COPY, "1")
    held.renew()
    (first,) = all_pins(storage)
    held.renew("2")
    (second,) = all_pins(storage)
    assert (first.holds, second.holds) == ("1", "2")
    assert first.path != second.path


def test_a_pin_that_is_renewed_while_all_are_read_is_found(storage: LocalStorage) -> None:
    """Or a clean of a dead process goes on, a restore takes its state back, as if there were no pin."""
    held = HeldPin(storage, COPY, "1")
    left = [held]

    def renew(call: Call) -> Any:
        if call.name == "read" and left:
            left.pop().renew("2")
        return call.do()

    (pin,) = all_pins(HookedStorage(storage, renew))
    assert pin.holds == "2"


def test_pins_that_come_and_go_all_the_time_are_an_error(storage: LocalStorage) -> None:
    """Which of them hold is not known."""
    held, seen = HeldPin(storage, COPY, "1"), list[str]()

    def renew(call: Call) -> Any:
        if call.name == "read":
            seen.append(call.path)
            held.renew(f"{len(seen)}0")
        return call.do()

    with pytest.raises(ConflictError, match="come and go"):
        all_pins(HookedStorage(storage, renew))


def test_a_look_that_is_older_than_a_pin_does_not_hide_it(storage: LocalStorage) -> None:
    """It is the first record of the table; who made the look knew of no such folder."""
    look = Look(storage, {".hoodie"}, Kept())
    assert look.list(".hoodie") == []
    with hold(storage, COPY, "1"):
        assert [pin.holds for pin in live_pins(look)] == ["1"]


def test_what_was_released_is_not_renewed(storage: LocalStorage) -> None:
    held = HeldPin(storage, COPY, "1")
    assert release(storage, "copy") == 1
    held.renew("2")
    assert all_pins(storage) == []


UNREADABLE = [
    b"",
    b"{}",
    b'{"for_s": 1, "holder": "h", "holds": "x", "version": 1}',
    b'{"for_s": 0, "holder": "h", "holds": "1", "version": 1}',
    b'{"for_s": 1, "holder": "h", "holds": "1", "version": 2}',
]


@pytest.mark.parametrize("data", UNREADABLE)
def test_an_unreadable_pin_is_an_error_until_it_is_released(storage: LocalStorage, data: bytes) -> None:
    storage.put_if_absent(f"{PINS}/copy/a.json", data)
    with pytest.raises(MalformedError, match="unreadable pin"):
        live_pins(storage)
    release(storage, "copy")
    assert live_pins(storage) == []


@pytest.mark.parametrize(
    ("name", "time"), [("a/b", "2h"), ("", "2h"), ("..", "2h"), ("a", "2"), ("a", "0h"), ("a", "")]
)
def test_names_and_durations(name: str, time: str) -> None:
    with pytest.raises(UsageError):
        PinOptions.of(name, time)
    assert PinOptions.of("a", "90 s").for_s == 90


def test_the_axis_is_in_the_record(storage: LocalStorage) -> None:
    """Before everything is a moment too."""
    HeldPin(storage, COPY, "")
    (pin,) = live_pins(storage)
    assert isinstance(pin, Pin)
    assert pin.holds == ""
