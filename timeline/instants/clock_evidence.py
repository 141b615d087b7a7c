r"""Decides from the timeline whether this process is in the time zone of a table's writers (pure).

A writer chooses an instant by its clock in its zone, and writes the file at once. So the storage's time of the file,
converted to this process's zone, is slightly later than the instant. Any other difference means:
    hours, nearly a multiple of 15 minutes     the writer is in another zone
    anything else, or more than 26 hours       unknown: the table was copied without its times, or the instants are
                                               artificial, or a file was written long after its instant

Only times that writers had just chosen are used: a plan is written minutes after its instant, and a decided compaction
is completed when a compactor handles it. The files of a copy can differ by a multiple of 15 minutes by chance. But they
were all written at one time, while their instants are spread over time. So another zone is concluded only if the times
of the files advance together with their instants:

    12:00:01.000  deltacommit   file of 17:00:01.050  \  5 h, and the second file is as much later as its instant:
    12:07:30.000  deltacommit   file of 17:07:30.040  /  the writers are 5 hours behind

A clock that was wrong for a while by a multiple of 15 minutes looks like another zone. It counts as corrected when
enough later writes agree with this process's zone: `_SETTLED` times the number of writes from the first to the last
that disagree. A writer in another zone that writes occasionally between writes of this zone never meets this condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from heapq import nlargest
from itertools import combinations

from ..errors import UsageError
from ..format.instant import Instant, State, parse_time

_WRITES = ("deltacommit", "replacecommit")
_NEWEST = 20
"""Number of newest writes compared: after this number of writes in another zone, the writers have moved there."""
_SETTLED = 3
_FEW = 3
_STEP = timedelta(minutes=15)
_FARTHEST = timedelta(hours=26)
"""From UTC-12 to UTC+14."""
_LATE = timedelta(seconds=90)
_LATE_AT_ONCE = timedelta(seconds=5)
_EARLY_MAX = timedelta(seconds=60)
_MOVED = timedelta(seconds=2)
"""Instants this far apart show whether the times of their files advanced with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """A time in a timeline file's name, and when that file was written (milliseconds since the epoch)."""

    time: str
    written_ms: int
    file_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockEvidence:
    """What the modification times of a timeline's files show. `stamps`: the newest files whose time a writer had just
    chosen. `newest_ms`: newest time of all files. `unnamed`: of the completed files without a completion time in their
    name (version 6), the one written last: Hudi 1.x uses its modification time as the completion time."""

    stamps: tuple[Stamp, ...] = ()
    newest_ms: int = 0
    unnamed: Stamp | None = None


class Zone(Enum):
    AGREES = "the writers are in this process's zone"
    BEHIND = "the writers' instants are earlier than this process's clock"
    AHEAD = "the writers' instants are ahead of this process's clock"
    UNKNOWN = "nothing to compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneVerdict:
    """`offset`: how far this process's clock is ahead of instants of another zone; `witness`: the newest such file."""

    zone: Zone
    offset: timedelta = timedelta()
    witness: Stamp | None = None


def written(files: Iterable[tuple[Instant, int]]) -> ClockEvidence:
    """Evidence from the instants of timeline files, each with the time (ms since the epoch) when it was written."""
    known = list(files)
    chosen = [one for one in known if one[0].completion_time is not None and one[0].action in _WRITES]
    if len(chosen) < _FEW:
        # Less precise: a writer requests an instant some time after it chose it, but completes right after choosing.
        chosen += [one for one in known if one[0].action == "deltacommit" and one[0].state is State.REQUESTED]
    unnamed = [one for one in known if one[0].completed and one[0].completion_time is None]
    stamps = tuple(map(_stamp, nlargest(_NEWEST, chosen, key=_written_ms)))
    last = _stamp(max(unnamed, key=_written_ms)) if unnamed else None
    return ClockEvidence(stamps=stamps, newest_ms=max(map(_written_ms, known), default=0), unnamed=last)


def _written_ms(file: tuple[Instant, int]) -> int:
    return file[1]


def _stamp(file: tuple[Instant, int]) -> Stamp:
    instant, written_ms = file
    time = instant.completion_time or instant.requested_time
    return Stamp(time=time, written_ms=written_ms, file_name=instant.file_name)


def judge(stamps: Sequence[Stamp], local: Callable[[int], datetime], skew_s: float) -> ZoneVerdict:
    """Compares the writers' zone with this process's zone. `local`: converts milliseconds since the epoch to this
    process's time of day at that time (naive, as instants are), so that a change to or from daylight saving time does
    not look like another zone. `skew_s`: how far the writers' clocks may be ahead of the storage's. If some writers
    agree with this process and others do not, the writers whose instants are earlier decide: their next writes would be
    older than what this process requests. They do not decide if they only had a wrong clock that was corrected since
    (see above)."""
    early = min(timedelta(seconds=skew_s), _EARLY_MAX)
    newest = sorted(stamps, key=lambda s: s.written_ms, reverse=True)
    by_zone: dict[timedelta, list[_Seen]] = {}
    for stamp in newest:
        if (one := _seen(stamp, local, early)) is not None:
            by_zone.setdefault(one.zone, []).append(one)
    here = by_zone.pop(timedelta(), [])
    others = {z: of for z, of in by_zone.items() if _is_convincing(of, len(newest))}
    behind = [z for z in others if z > timedelta()]
    if behind and not _is_over([s.stamp for z in behind for s in others[z]], [s.stamp for s in here], newest):
        farthest = max(behind)
        return ZoneVerdict(zone=Zone.BEHIND, offset=farthest, witness=others[farthest][0].stamp)
    if here:
        return ZoneVerdict(zone=Zone.AGREES, witness=here[0].stamp)
    if others:
        farthest = min(others)
        return ZoneVerdict(zone=Zone.AHEAD, offset=farthest, witness=others[farthest][0].stamp)
    return ZoneVerdict(zone=Zone.UNKNOWN, witness=newest[0] if newest else None)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file, the zone that it indicates, and how much later than its instant it was written, given that zone."""

    stamp: Stamp
    time: datetime
    zone: timedelta
    late: timedelta


def _seen(stamp: Stamp, local: Callable[[int], datetime], early: timedelta) -> _Seen | None:
    try:
        time = parse_time(stamp.time)
    except UsageError:
        return None
    offset = local(stamp.written_ms) - time
    zone = (offset + early) // _STEP * _STEP
    late = offset - zone
    if abs(zone) > _FARTHEST or late > _LATE:
        return None
    return _Seen(stamp, time, zone, late)


def _is_over(others: Sequence[Stamp], here: Sequence[Stamp], newest: Sequence[Stamp]) -> bool:
    """Whether the evidence for other zones came from a wrong clock: enough later writes agree with this zone."""
    places = [newest.index(s) for s in others]
    since = sum(newest.index(s) < min(places) for s in here)
    return since >= _SETTLED * (max(places) - min(places) + 1)


def _is_convincing(seen: Sequence[_Seen], of: int) -> bool:
    """Whether files that indicate another zone cannot be copies: the times of two of them advanced with their instants.
    If all instants are so close that no time can have advanced, all files must agree, each written at once."""
    pairs = list(combinations(seen, 2))
    if any((gap := abs(a.time - b.time)) >= _MOVED and abs(a.late - b.late) <= gap / 2 for a, b in pairs):
        return True
    close = all(abs(a.time - b.time) < _MOVED for a, b in pairs)
    return close and len(seen) == of > 1 and all(s.late <= _LATE_AT_ONCE for s in seen)
