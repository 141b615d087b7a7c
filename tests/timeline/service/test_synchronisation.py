"""When a client and a state agree, and who may stay behind."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import pytest

from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.format.layout import LAYOUT_2
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.service.states.synchronisation import Known, agree, counted, digest, digests, may_stay_behind

LAYOUT = LAYOUT_2


def at(number: int, action: str = "deltacommit", state: State = State.COMPLETED) -> Instant:
    time = f"2026112109000{number}000"
    done = f"2026112109000{number}500" if state is State.COMPLETED else None
    return Instant(requested_time=time, action=action, state=state, completion_time=done)


def timeline(*instants: Instant) -> Timeline:
    return Timeline(layout=LAYOUT, instants=instants)


def client(known: Timeline) -> Known:
    """What a client with this timeline sends; it counts no pending log compaction."""
    last = counted(known)[-1:]
    return Known(last=last[0].requested_time if last else "0", digest=digest(counted(known)))


def agrees(server: Timeline, known: Timeline) -> bool:
    return agree(times(server), digests(server), client(known))


def times(known: Timeline) -> list[str]:
    return [i.requested_time for i in counted(known)]


REQUESTED, INFLIGHT = State.REQUESTED, State.INFLIGHT


def test_the_hash_is_of_times_actions_and_states() -> None:
    text = "20261121090001000_deltacommit_COMPLETED20261121090002000_compaction_REQUESTED"
    known = timeline(at(1), at(2, "compaction", REQUESTED), at(3, "clustering", INFLIGHT), at(4, state=INFLIGHT))
    assert digest(counted(known)) == sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("server", "known", "expected"),
    [
        (timeline(at(1), at(2)), timeline(at(1), at(2)), True),
        (timeline(at(1), at(2)), timeline(at(1)), False),
        (timeline(at(1)), timeline(at(1), at(2)), False),
        (timeline(), timeline(), True),
        (timeline(at(1), at(2, "clean")), timeline(at(1)), True),
        (timeline(at(1), at(2, "clean"), at(3)), timeline(at(1), at(3)), False),
        (timeline(at(1), at(2, "logcompaction", REQUESTED)), timeline(at(1)), True),
        (timeline(at(1), at(2, "compaction", REQUESTED)), timeline(at(1)), False),
    ],
)
def test_agreement(server: Timeline, known: Timeline, expected: bool) -> None:
    assert agrees(server, known) is expected


def test_the_hash_of_hudis_server_is_accepted() -> None:
    server = timeline(at(1), at(2, "logcompaction", REQUESTED))
    with_it = Known(last=at(1).requested_time, digest=digest(server.instants))
    assert agree(times(server), digests(server), with_it)


def test_an_unknown_last_instant_disagrees_unless_it_is_before_the_timeline() -> None:
    server = timeline(at(2), at(3))
    for last, expected in ((at(9).requested_time, False), (at(1).requested_time, True), ("0", True)):
        assert agree(times(server), digests(server), replace(client(server), last=last)) is expected


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ((at(1), at(2, "compaction", INFLIGHT), at(3)), True),
        ((at(1), at(2, "commit"), at(3)), True),  # its slice was known
        ((at(1), at(2, "compaction", REQUESTED), at(3, "savepoint")), True),
        ((at(2, "compaction", REQUESTED), at(3)), True),  # the first was archived
        ((at(1),), False),  # the compaction was taken back
        ((at(1), at(2, "compaction", REQUESTED), at(3, "compaction", REQUESTED)), False),  # new slices are open
        ((at(1), at(2, "compaction", REQUESTED), at(3, "commit")), False),
        ((at(1), at(2, "compaction", REQUESTED), at(3, "clean")), False),
        ((at(1), at(2, "compaction", REQUESTED), at(3, "replacecommit")), False),
        ((at(1), at(2, "compaction", REQUESTED), at(3, "rollback")), False),
        ((at(1), at(2, "compaction", REQUESTED), at(3, "restore")), False),
    ],
)
def test_who_may_stay_behind(new: tuple[Instant, ...], expected: bool) -> None:
    old = timeline(at(1), at(2, "compaction", REQUESTED))
    assert may_stay_behind(old, timeline(*new)) is expected
