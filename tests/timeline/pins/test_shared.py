"""A pin that the tasks of a query renew: by its age on the storage, one new object for all of them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from phantombase.timeline.pins.pin import PINS, PinOptions, all_pins, live_pins, release
from phantombase.timeline.pins.shared import SharedPin
from phantombase.timeline.storage.local import LocalStorage

REPORT = PinOptions.of("report", "100s")


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    (tmp_path / ".hoodie").mkdir()
    return LocalStorage(str(tmp_path))


def _age(storage: LocalStorage, seconds: float) -> None:
    for pin in all_pins(storage):
        os.utime(f"{storage.base_path}/{pin.path}", (pin.taken_ms / 1000 - seconds,) * 2)


def test_it_is_renewed_when_half_of_its_time_is_gone(storage: LocalStorage) -> None:
    pin = pickle.loads(pickle.dumps(SharedPin.take(storage, REPORT, "7")))
    first = all_pins(storage)
    _age(storage, 40)
    pin.renew(storage)
    assert [p.path for p in all_pins(storage)] == [first[0].path]
    _age(storage, 15)
    pin.renew(storage)
    (second,) = live_pins(storage)
    assert (second.name, second.holds, second.for_s) == ("report", "7", 100)
    assert second.path != first[0].path


def test_another_query_of_its_name_does_not_keep_it(storage: LocalStorage) -> None:
    """The other pin holds another moment, or goes first."""
    pin = SharedPin.take(storage, REPORT, "7")
    other = SharedPin.take(storage, REPORT, "8")
    _age(storage, 60)
    other.renew(storage)
    pin.renew(storage)
    assert {p.holds for p in live_pins(storage)} == {"7", "8"}
    _age(storage, 45)
    assert {p.holds for p in live_pins(storage)} == {"7", "8"}


def test_tasks_that_renew_at_the_same_time_leave_one_object(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another task renews after this one has looked."""
    pin = SharedPin.take(storage, REPORT, "7")
    _age(storage, 60)
    put = LocalStorage.put_if_absent
    puts = []

    def put_second(self: LocalStorage, path: str, data: bytes) -> bool:
        if not path.startswith(PINS):
            return put(self, path, data)
        puts.append(path)
        if len(puts) == 1:
            pin.renew(storage)
        return put(self, path, data)

    monkeypatch.setattr(LocalStorage, "put_if_absent", put_second)
    pin.renew(storage)
    assert len(puts) == 2
    assert len(live_pins(storage)) == 1


def test_a_released_one_stays_away(storage: LocalStorage) -> None:
    pin = SharedPin.take(storage, REPORT, "7")
    release(storage, "report")
    pin.renew(storage)
    assert all_pins(storage) == []
