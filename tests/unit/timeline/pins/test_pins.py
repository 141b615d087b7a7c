"""What a pin says, and what live pins keep from a cleaner; instants by the names of their files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.errors import MalformedError, UsageError
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2
from phantombase.timeline.pins.held import earliest_to_retain
from phantombase.timeline.pins.pin import COMPLETED, REQUESTED, FoundPin, Pin, check_name, decode_pin, name_of, pin_path
from phantombase.timeline.windows.retained import earliest_state
from tests.support.builders import timeline_of

V8 = timeline_of(LAYOUT_2, "10_12.deltacommit", "20_40.deltacommit", "25_30.deltacommit", "50_52.deltacommit")


def pin(moment: str, axis: str = COMPLETED, *, seconds: int = 60, written_ms: int = 0) -> FoundPin:
    made = Pin(name="p", axis=axis, moment=moment, seconds=seconds, holder="host:1")
    return FoundPin(pin=made, written_ms=written_ms)


@pytest.mark.parametrize(
    ("moment", "retained"),
    [("0", "10"), ("12", "20"), ("30", "20"), ("40", "50"), ("52", None)],
)
def test_writes_that_completed_later_are_retained(moment: str, retained: str | None) -> None:
    """At 30 the write of 20 was pending still: a cleaner that passes it may take what it replaced."""
    assert earliest_to_retain(V8, [pin(moment)], 0) == retained


def test_a_pending_write_is_later_than_every_moment() -> None:
    timeline = timeline_of(LAYOUT_2, "10_12.deltacommit", "15.deltacommit.inflight", "20_22.deltacommit")
    assert earliest_to_retain(timeline, [pin("22")], 0) == "15"


def test_an_archived_write_that_completed_later_counts() -> None:
    timeline = timeline_of(LAYOUT_2, "50_52.deltacommit", archived=["20_40.deltacommit"])
    assert earliest_to_retain(timeline, [pin("30")], 0) == "20"


def test_on_version_6_the_moment_is_a_requested_time() -> None:
    timeline = timeline_of(LAYOUT_1, "10.deltacommit", "20.commit", "30.deltacommit")
    assert earliest_to_retain(timeline, [pin("10", REQUESTED)], 0) == "20"


def test_a_pin_of_version_6_holds_in_the_upgraded_table() -> None:
    assert earliest_to_retain(V8, [pin("20", REQUESTED)], 0) == "25"


def test_the_earliest_of_all_live_pins() -> None:
    pins = [pin("40"), pin("12", seconds=1), pin("30")]
    assert earliest_to_retain(V8, pins, 1000) == "20"
    assert earliest_to_retain(V8, [pin("40"), pin("0", seconds=1)], 1001) == "50"
    assert earliest_to_retain(V8, [], 0) is None


WRITES = st.lists(
    st.tuples(st.integers(10, 60), st.integers(0, 30), st.sampled_from(["deltacommit", "commit", "replacecommit"])),
    unique_by=lambda write: write[0],
    min_size=1,
    max_size=8,
)


@given(WRITES, st.integers(9, 95))
def test_the_state_at_a_pin_stays_whole(writes: list[tuple[int, int, str]], moment: int) -> None:
    """By the rule that readers are refused by."""
    timeline = timeline_of(LAYOUT_2, *(f"{t}_{t + more}.{action}" for t, more, action in writes))
    retained = earliest_to_retain(timeline, [pin(str(moment))], 0)
    if retained is not None:
        assert earliest_state(timeline, retained) <= str(moment)


def test_a_pin_is_read_as_it_was_written() -> None:
    made = pin("20261121090000000").pin
    assert decode_pin("p", made.encode()) == made
    assert name_of(made.path.rpartition("/")[2]) == "p"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        pin("1").pin.encode().replace(b'"version": 1', b'"version": 2'),
        pin("1").pin.encode().replace(b"completed", b"other"),
        pin("1").pin.encode().replace(b'"1"', b'""'),
        pin("1").pin.encode().replace(b'"1"', b"1"),
        pin("1").pin.encode().replace(b"60", b'"x"'),
    ],
)
def test_an_unreadable_pin_is_an_error(data: bytes) -> None:
    """What it holds is not known, so it never counts as none."""
    with pytest.raises(MalformedError, match=r"unreadable pin.*pins/p\.json.*--release"):
        decode_pin("p", data)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 101, "ü"])
def test_names(name: str) -> None:
    with pytest.raises(UsageError, match="not the name of a pin"):
        check_name(name)
    with pytest.raises(UsageError, match="not the name of a pin"):
        pin_path(name)


def test_another_file_in_the_folder_is_an_error() -> None:
    with pytest.raises(MalformedError, match="not a pin"):
        name_of("p.json.bak")
