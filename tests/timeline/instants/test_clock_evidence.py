"""Whether this process's zone is the writers': tables of what the files of a timeline show, and what follows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.errors import UsageError
from phantombase.timeline.format.instant import Instant, format_time
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2
from phantombase.timeline.instants.clock_check import (
    ClockEvidence,
    ClockOptions,
    Stamp,
    Zone,
    ZoneVerdict,
    judge,
    written,
)
from tests.support.selection import for_each

NEW_YORK = ZoneInfo("America/New_York")
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
SKEW_S = 30.0


def in_zone(zone: str = "UTC") -> Callable[[int], datetime]:
    """This process's zone."""
    return lambda ms: datetime.fromtimestamp(ms / 1000, ZoneInfo(zone)).replace(tzinfo=None)


def stamp(at: datetime, zone: str = "UTC", late_s: float = 0.1) -> Stamp:
    """A file that a writer in a zone wrote so long after it had chosen the time."""
    time = format_time(at.astimezone(ZoneInfo(zone)))
    return Stamp(time=time, written_ms=round((at.timestamp() + late_s) * 1000), file_name=f"{time}.deltacommit")


def commits(*minutes: float, zone: str = "UTC", late_s: float = 0.1) -> list[Stamp]:
    """Commits so many minutes after noon."""
    return [stamp(NOON + timedelta(minutes=m), zone, late_s) for m in minutes]


def copied(minutes: float, *names: float) -> list[Stamp]:
    """Files of commits so many minutes after noon, all copied at one moment, a millisecond each."""
    at = round((NOON + timedelta(minutes=minutes)).timestamp() * 1000)
    times = [format_time(NOON + timedelta(minutes=m)) for m in names]
    return [Stamp(time=t, written_ms=at + n, file_name=t) for n, t in enumerate(times)]


def seen(stamps: list[Stamp], zone: str = "UTC") -> tuple[Zone, timedelta]:
    """The verdict of a process in a zone."""
    verdict = judge(stamps, in_zone(zone), SKEW_S)
    return verdict.zone, verdict.offset


AGREES, UNKNOWN = (Zone.AGREES, timedelta()), (Zone.UNKNOWN, timedelta())


def hours(count: float) -> timedelta:
    return timedelta(hours=count)


# --- other zones


@for_each(
    [
        ("UTC", "UTC", AGREES),
        ("America/New_York", "America/New_York", AGREES),
        ("America/New_York", "UTC", (Zone.BEHIND, hours(5))),
        ("UTC", "America/New_York", (Zone.AHEAD, hours(-5))),
        ("UTC", "Asia/Kolkata", (Zone.BEHIND, hours(5.5))),
        ("UTC", "Asia/Kathmandu", (Zone.BEHIND, hours(5.75))),
        ("Etc/GMT+12", "Etc/GMT-14", (Zone.BEHIND, hours(26))),
        ("Etc/GMT-14", "Etc/GMT+12", (Zone.AHEAD, hours(-26))),
    ]
)
def test_zones(writers: str, process: str, expected: tuple[Zone, timedelta]) -> None:
    for minutes in ((0, 7, 20), (0, 0.1), (0, 0.001)):
        assert seen(commits(*minutes, zone=writers), process) == expected, minutes


@given(st.lists(st.floats(0, 80), min_size=2, max_size=30), st.floats(0, 10_000))
def test_writers_of_this_zone_never_alarm(lates: list[float], apart: float) -> None:
    """However late their files are written."""
    stamps = [stamp(NOON + timedelta(seconds=apart * n), late_s=late) for n, late in enumerate(lates)]
    assert seen(stamps) == AGREES


@given(st.lists(st.floats(0, 20), min_size=2, max_size=30), st.floats(60, 10_000), st.floats(-29, 29))
def test_another_zone_is_always_found(lates: list[float], apart: float, skew_s: float) -> None:
    """Also where the writers' clock differs a little from the storage's."""
    stamps = [
        stamp(NOON + timedelta(seconds=apart * n), "America/New_York", late_s=late + skew_s)
        for n, late in enumerate(lates)
    ]
    assert seen(stamps) == (Zone.BEHIND, hours(5))


def test_one_late_file_hides_no_zone() -> None:
    stamps = [*commits(0, 10, zone="America/New_York"), *commits(20, zone="America/New_York", late_s=400)]
    assert seen(stamps) == (Zone.BEHIND, hours(5))


def test_daylight_saving_is_no_zone() -> None:
    """New York's clocks went back on 2026-11-01 at 06:00 UTC, and forward on 2026-03-08 at 07:00 UTC."""
    for change in (datetime(2026, 11, 1, 6, tzinfo=UTC), datetime(2026, 3, 8, 7, tzinfo=UTC)):
        stamps = [stamp(change + timedelta(minutes=m), "America/New_York") for m in (-200, -70, -1, 1, 50)]
        assert seen(stamps, "America/New_York") == AGREES
        assert seen(stamps[:3], "America/New_York") == AGREES


def test_instants_that_go_on_when_clocks_go_back() -> None:
    """In that hour instants are max + 1 ms: they say nothing, those before it agree."""
    change = datetime(2026, 11, 1, 6, tzinfo=UTC)
    last = stamp(change - timedelta(minutes=1), "America/New_York")
    more = [
        Stamp(
            time=str(int(last.time) + n),
            written_ms=round((change + timedelta(minutes=7 * n)).timestamp() * 1000),
            file_name="",
        )
        for n in range(1, 8)
    ]
    assert seen([last, *more], "America/New_York") == AGREES


# --- who counts


def test_some_writers_are_behind() -> None:
    """Those count: what they write next would be hidden."""
    stamps = [*commits(1, 31, 61, zone="America/New_York"), *commits(0, 30, 60)]
    assert seen(stamps) == (Zone.BEHIND, hours(5))
    assert seen(stamps, "America/New_York") == AGREES


@pytest.mark.parametrize("wrong", [2, 3])
def test_a_clock_that_was_an_hour_behind_for_some_writes(wrong: int) -> None:
    """It is right again: newer stamps that agree win once they are three times as many."""
    before, during = commits(0, 10), [stamp(NOON + timedelta(minutes=20 + m), "Atlantic/Azores") for m in range(wrong)]
    for newer, expected in ((3 * wrong - 1, (Zone.BEHIND, hours(1))), (3 * wrong, AGREES)):
        assert seen([*before, *during, *commits(*range(60, 60 + newer))]) == expected


def test_a_writer_of_another_zone_that_comes_now_and_then() -> None:
    """It is no clock that was wrong once, however many writes lie between two of its own."""
    for between in range(1, 18):
        for since in range(19 - between):
            newest = range(60, 60 + since)
            stamps = [*commits(0, 50, zone="America/New_York"), *commits(*range(1, 1 + between)), *commits(*newest)]
            assert seen(stamps) == (AGREES if since >= 3 * (between + 2) else (Zone.BEHIND, hours(5)))


def test_writers_that_moved_to_this_zone() -> None:
    """Old ones count no more once three times as many have come, and what says nothing is none of those."""
    old = commits(0, 10, 20, zone="America/New_York")
    for newer, expected in ((8, (Zone.BEHIND, hours(5))), (9, AGREES)):
        stamps = [*old, *commits(*range(30, 30 + newer)), *commits(*range(50, 54), late_s=400)]
        layout = LAYOUT_2
        files = [(layout.parse(f"{s.time}_{s.time}.deltacommit"), s.written_ms) for s in stamps]
        assert seen(list(written((i, ms) for i, ms in files if i is not None).stamps)) == expected


def test_only_the_newest_are_looked_at() -> None:
    """Two writes of another zone say nothing once one of them is older than twenty others."""
    old = [*commits(0, zone="America/New_York"), *commits(*range(1, 19)), *commits(20, zone="America/New_York")]
    for newer, expected in ((0, (Zone.BEHIND, hours(5))), (1, AGREES)):
        files = [(f"{s.time}_{s.time}.deltacommit", s.written_ms) for s in [*old, *commits(*range(30, 30 + newer))]]
        parsed = [(LAYOUT_2.parse(name), ms) for name, ms in files]
        assert seen(list(written((i, ms) for i, ms in parsed if i is not None).stamps)) == expected


# --- nothing to compare


@pytest.mark.parametrize(
    "stamps",
    [
        [],
        commits(0, zone="America/New_York"),
        copied(300, 0, 10, 20),
        copied(300.5, 0, 0.1, 0.2),
        copied(307, 0, 0.001),
        copied(300, 0, 0.05),
        copied(300, 0, 0.001, 100),
        copied(60 * 30, 0, 0.001),
        copied(315, 0, 15, 30),
        commits(0, 1, 2, late_s=400),
        [Stamp(time=f"{n:017d}", written_ms=round(NOON.timestamp() * 1000) + n, file_name="") for n in range(1, 4)],
        [Stamp(time="29990101000000000", written_ms=round(NOON.timestamp() * 1000), file_name="")] * 2,
    ],
    ids=[
        "empty",
        "one file",
        "copied 5 h later",
        "copied, of seconds",
        "copied, at once",
        "copied on the hour, seconds",
        "copied on the hour, some of them",
        "copied a day later",
        "copied, each at a quarter of an hour",
        "all late",
        "made-up times",
        "times of another age",
    ],
)
def test_nothing_to_compare(stamps: list[Stamp]) -> None:
    assert seen(stamps) == UNKNOWN


def test_a_copy_that_is_written_to() -> None:
    assert seen([*copied(300, 0, 10), *commits(301)]) == AGREES


# --- which files count


def test_which_times_count() -> None:
    """On version 9 completion times of writes; requested times only where those are few; never those of plans."""
    names = [f"20261122{h:02d}0000000_20261122{h:02d}0500000.deltacommit" for h in range(3)]
    files = ["20261122090000000.compaction.requested", "20261122080000000_20261122100000000.commit", *names]
    assert [s.time for s in of(files, 9).stamps] == [f"20261122{h:02d}0500000" for h in (2, 1, 0)]
    requested = "20261122050000000.deltacommit.requested"
    assert requested not in {s.file_name for s in of([*files, requested], 9).stamps}
    assert requested in {s.file_name for s in of([names[0], requested], 9).stamps}


def test_version_6() -> None:
    """Requested times count, and the completed file that was written last."""
    files = ["20261122010000000.deltacommit.requested", "20261122010000000.deltacommit", "20261122020000000.commit"]
    found = of(files, 6)
    assert [s.time for s in found.stamps] == ["20261122010000000"]
    assert found.unnamed is not None
    assert found.unnamed.file_name == files[2]
    assert of(files[:1], 6).unnamed is None


def of(names: list[str], version: int) -> ClockEvidence:
    """What files written one after the other tell."""
    layout = LAYOUT_1 if version == 6 else LAYOUT_2
    parsed = [layout.parse(n) for n in names]
    return written((i, 1000 + n) for n, i in enumerate(parsed) if isinstance(i, Instant))


# --- options


def test_zones_by_name() -> None:
    assert ClockOptions(timezone="America/New_York").zone(utc_timezone=False) == NEW_YORK
    assert ClockOptions(timezone="America/New_York").zone(utc_timezone=True) is UTC
    assert ClockOptions(timezone="utc").zone(utc_timezone=False) is UTC
    assert ClockOptions(timezone="local").zone(utc_timezone=False) is None
    for wrong in ("Mars/Olympus", "", "../etc/passwd"):
        with pytest.raises(UsageError, match="no such time zone"):
            ClockOptions(timezone=wrong)
    with pytest.raises(UsageError, match="clock-skew-s must be at least 0"):
        ClockOptions(clock_skew_s=-1)


def test_a_verdict_names_its_witness() -> None:
    verdict = judge(commits(0, 9, zone="America/New_York"), in_zone(), SKEW_S)
    assert isinstance(verdict, ZoneVerdict)
    assert verdict.witness is not None
    assert verdict.witness.time == "20261122070900000"
