"""Pins: what they hold, when they end, and that an unreadable one is never no pin."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phantombase.timeline.errors import MalformedError, UsageError
from phantombase.timeline.pins.hold import HeldPin, hold
from phantombase.timeline.pins.pin import PINS, Pin, PinOptions, all_pins, live_pins, release
from phantombase.timeline.storage.local import LocalStorage

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
