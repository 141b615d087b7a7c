"""What a daemon does next, as a pure function."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.compactor_daemon.attempt.failures import Parked, Ready, RetryOptions, Waits
from phantombase.compactor_daemon.daemon.control import Control, Moment, SnapshotTaken, WorkEnded
from phantombase.compactor_daemon.daemon.dispatch import (
    NextSteps,
    Relist,
    Request,
    Resting,
    Resume,
    Rules,
    Serve,
    Sharing,
    Stop,
    Sweep,
    Take,
    next_steps,
)
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder, Pending, SeenLag, SeenTable, TableState
from phantombase.compactor_daemon.fleet.pools import Pool, QuotaUsage, pools_of

NOW = 1_000_000
SEEN = TableState(seen=True, snapshot_at=NOW + 10_000, sweep_at=NOW + 300_000)


def pending(*instants: str) -> tuple[Pending, ...]:
    return tuple(Pending(instant=i) for i in instants)


def first(n: int) -> int:
    return 0


def decided(tables: dict[str, TableState], stop: Stop | None = None, **rules: object) -> NextSteps:
    made = Rules(**rules)  # type: ignore[arg-type]
    return next_steps(tables, stop, NOW, made, first, sharing(made.max_concurrent))


def sharing(slots: int = 1, *pools: Pool) -> Sharing:
    return Sharing(use=QuotaUsage(pools=pools_of(pools, (), ()), slots=slots, began=0), epoch_ms=NOW)


def test_a_new_table_is_looked_at_then_swept() -> None:
    assert decided({"a": TableState()}).actions == (Relist("a"),)
    assert decided({"a": TableState(seen=True, snapshot_at=NOW + 1)}).actions == (Sweep("a"),)


def test_services_run_at_their_time_also_while_a_table_is_looked_at() -> None:
    assert decided({"a": SEEN}).actions == ()
    assert decided({"a": SEEN}, services=True).actions == (Serve("a"),)
    assert decided({"a": replace(SEEN, busy=True)}, services=True).actions == (Serve("a"),)
    for not_now in (
        {"serving": True},
        {"serve_at": NOW + 1},
        {"seen": False, "snapshot_at": NOW + 9},
        {"available": False},
    ):
        assert decided({"a": replace(SEEN, **not_now)}, services=True).actions == ()
    assert decided({"a": replace(SEEN, serve_at=NOW + 70)}, services=True).wait_s == 0.07
    assert decided({"a": replace(SEEN, serve_at=NOW + 70)}).wait_s > 1


def test_with_once_services_come_last_and_are_waited_for() -> None:
    once: dict[str, Any] = {"services": True, "once": True}
    assert decided({"a": replace(SEEN, pending=pending("1")), "b": SEEN}, **once).actions == (Take("a", "1"),)
    assert decided({"a": replace(SEEN, running=frozenset("1")), "b": SEEN}, **once).actions == ()
    assert decided({"a": SEEN, "b": SEEN}, **once).actions == (Serve("a"), Serve("b"))
    assert decided({"a": replace(SEEN, serving=True)}, **once) == NextSteps(wait_s=10.0)
    assert decided({"a": replace(SEEN, serve_at=NOW + 1)}, **once).ended


@pytest.mark.parametrize("stop", list(Stop))
def test_a_stopped_daemon_begins_no_service_and_waits_for_those_that_run(stop: Stop) -> None:
    assert decided({"a": SEEN}, stop, services=True).ended
    assert not decided({"a": replace(SEEN, serving=True)}, stop, services=True).ended


def test_a_busy_table_is_left_alone() -> None:
    assert decided({"a": TableState(busy=True)}).actions == ()


def test_a_due_plan_is_requested_before_anything_else() -> None:
    assert decided({"a": replace(SEEN, due=True, snapshot_at=0)}).actions == (Request("a"),)


def test_without_claims_nothing_is_taken_or_swept() -> None:
    gone = replace(SEEN, pending=pending("1"), available=False, sweep_at=0)
    assert decided({"a": gone}).actions == ()


def test_the_earliest_instant_comes_first() -> None:
    assert decided({"a": replace(SEEN, pending=pending("1", "2"))}).actions == (Take("a", "1"),)


def test_work_that_others_often_have_done_is_picked_from_more() -> None:
    """By work of milliseconds, of which the list is old at once. Instants that are done here make it less again."""
    state = replace(SEEN, pending=pending(*map(str, range(1000, 2000))))
    asked = list[int]()

    def last(n: int) -> int:
        asked.append(n)
        return n - 1

    for spread, choice in ((0, 1), (2, 3), (6, 7)):
        assert state.spread == spread
        next_steps({"a": state}, None, NOW, Rules(), last, sharing())
        assert asked.pop() == choice
        state = state.spread_by(is_missed=True)
    for _ in range(99):
        state = state.spread_by(is_missed=True)
    assert state.spread == 256
    for _ in range(999):
        state = state.spread_by(is_missed=False)
    assert state.spread == 0


@pytest.mark.parametrize(("claimed", "spread"), [(True, 0), (False, 2)])
def test_work_that_another_daemon_holds_is_not_missed(claimed: bool, spread: int) -> None:
    """Compactions of hours are held at each look: their order would be lost."""
    use = QuotaUsage(pools=pools_of((), (), ()), slots=1, began=0)
    control = Control(rules=Rules(), retry=RetryOptions(), use=use, tables={"a": replace(SEEN, pending=pending("1"))})
    at = Moment(now_ms=NOW, epoch_ms=NOW)
    assert control.decide(at, first, 1).actions == (Take("a", "1"),)
    control.apply(WorkEnded(table="a", instant="1", claimed=claimed), at)
    assert control.tables["a"].spread == spread


def test_the_largest_instant_comes_first_when_asked_for() -> None:
    sizes = (Pending(instant="1", log_bytes=5), Pending(instant="2", log_bytes=9), Pending(instant="3", log_bytes=9))
    state = replace(SEEN, pending=sizes)
    assert decided({"a": state}, order=DaemonOrder.LARGEST).actions == (Take("a", "2"),)


def test_tables_take_turns() -> None:
    one = replace(SEEN, pending=pending("1", "2"), served=7)
    two = replace(SEEN, pending=pending("1", "2"), served=3)
    assert decided({"a": one, "b": two}).actions == (Take("b", "1"),)
    working = replace(two, running=frozenset({"1"}))
    assert decided({"a": one, "b": working}, max_concurrent=2).actions == (Take("a", "1"),)
    assert decided({"a": one, "b": two}, max_concurrent=2).actions == (Take("b", "1"), Take("a", "1"))


def test_no_more_than_the_limit_is_at_work() -> None:
    working = replace(SEEN, pending=pending("1", "2", "3"), running=frozenset({"1", "2"}))
    assert decided({"a": working}, max_concurrent=2).actions == ()


def test_where_others_claim_the_choice_is_spread_over_the_first_few() -> None:
    state = replace(SEEN, pending=pending(*"123456789"), claimed=frozenset({"1", "x"}))
    seen: list[int] = []

    def last(n: int) -> int:
        seen.append(n)
        return n - 1

    assert next_steps({"a": state}, None, NOW, Rules(), last, sharing()).actions == (Take("a", "6"),)
    assert seen == [5]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (replace(SEEN, pending=pending("1")), ["1"]),
        (replace(SEEN, pending=pending("1"), claimed=frozenset({"1"})), []),
        (replace(SEEN, pending=pending("1"), running=frozenset({"1"})), []),
        (replace(SEEN, pending=pending("1"), postponed={"1": NOW + 1}), []),
        (replace(SEEN, pending=pending("1"), postponed={"1": NOW}), ["1"]),
        (replace(SEEN, pending=(Pending(instant="1", readiness=Waits(NOW + 1)),)), []),
        (replace(SEEN, pending=(Pending(instant="1", readiness=Waits(NOW)),)), ["1"]),
        (replace(SEEN, pending=(Pending(instant="1", readiness=Parked("books")),)), []),
    ],
)
def test_what_may_be_claimed(state: TableState, expected: list[str]) -> None:
    assert [p.instant for p in state.startable(NOW)] == expected


def test_stopping_takes_nothing_and_ends_with_the_work() -> None:
    working = replace(SEEN, pending=pending("1", "2"), running=frozenset({"1"}), snapshot_at=0)
    assert decided({"a": working}, Stop.FINISH) == NextSteps(wait_s=10.0)
    assert decided({"a": replace(working, running=frozenset())}, Stop.HAND_OVER).ended


def test_once_ends_when_nothing_can_be_done_now() -> None:
    assert not decided({"a": TableState()}, once=True).ended
    assert decided({"a": SEEN}, once=True).ended
    assert not decided({"a": SEEN}).ended
    waiting = replace(SEEN, pending=(Pending(instant="1", readiness=Waits(NOW + 1)),))
    assert decided({"a": waiting}, once=True).ended
    assert not decided({"a": replace(SEEN, running=frozenset({"1"}))}, once=True).ended
    assert not decided({"a": SEEN, "b": replace(SEEN, busy=True)}, once=True).ended


def test_it_waits_for_the_next_moment_something_can_happen() -> None:
    assert decided({"a": SEEN}).wait_s == 10.0
    retry = replace(SEEN, pending=(Pending(instant="1", readiness=Waits(NOW + 2_500)),))
    assert decided({"a": retry}).wait_s == 2.5
    assert decided({"a": replace(SEEN, postponed={"1": NOW + 500})}).wait_s == 0.5


def test_what_waits_for_a_write_leaves_its_slot_to_others() -> None:
    """And gets the next one that is free once it has waited, before anything new is begun."""
    waiting = replace(SEEN, running=frozenset({"5"}), pending=pending("1")).suspend("5")
    other = replace(SEEN, pending=pending("2"))
    assert decided({"a": waiting, "b": other}).actions == (Take("b", "2"),)
    resumable = waiting.wants_slot("5")
    assert decided({"a": resumable, "b": other}).actions == (Resume("a", "5"),)
    assert decided({"a": resumable, "b": other.begin("2", 1, NOW, NOW)}).actions == ()
    assert decided({"a": resumable, "b": other}, max_concurrent=2).actions == (Resume("a", "5"), Take("b", "2"))
    assert resumable.resume("5").slots == 1
    assert resumable.end("5").slots == 0


def test_our_own_claims_are_not_those_of_others() -> None:
    working = replace(SEEN, running=frozenset({"1"}))
    seen = working.after_snapshot(pending("1", "2"), frozenset({"1", "2"}), NOW, 10_000)
    assert seen.claimed == {"2"}
    assert [p.instant for p in seen.end("1").startable(NOW)] == ["1"]


def test_a_look_forgets_what_is_over() -> None:
    state = replace(SEEN, busy=True, postponed={"1": NOW + 5, "2": NOW, "3": NOW + 5})
    seen = state.after_snapshot(pending("1", "2"), frozenset(), NOW, 10_000)
    assert (seen.busy, seen.snapshot_at, dict(seen.postponed)) == (False, NOW + 10_000, {"1": NOW + 5})


def test_a_table_that_rings_while_it_is_looked_at_is_looked_at_again() -> None:
    rung = replace(SEEN, busy=True, rung=True).after_snapshot((), frozenset(), NOW, 10_000)
    assert decided({"a": rung}).actions == (Relist("a"),)
    assert decided({"a": rung.after_snapshot((), frozenset(), NOW, 10_000)}).actions == ()


def test_a_table_with_nothing_to_do_rests_until_its_next_look() -> None:
    resting, tables = Resting(), {"a": SEEN, "b": replace(SEEN, pending=pending("1")), "c": replace(SEEN, due=True)}
    assert resting.awake(tables, NOW, Rules(), 9).keys() == {"b", "c"}
    assert resting.until == SEEN.snapshot_at
    assert resting.awake({"a": SEEN}, SEEN.snapshot_at, Rules(), 9).keys() == {"a"}
    assert Resting().awake({"a": SEEN}, NOW, Rules(services=True), 0).keys() == {"a"}
    many = {"a": SEEN, **{f"t{n}": replace(SEEN, snapshot_at=NOW - n) for n in range(1, 9)}, "z": tables["c"]}
    assert list(resting.awake(many, NOW, Rules(), 2)) == ["t7", "t8", "z"], "those that are overdue for longest"
    assert len(resting.awake(many, NOW, Rules(once=True), 2)) == 9


@pytest.mark.parametrize(("poll_s", "rest_s"), [(1.0, 6.0), (10.0, 60.0), (30.0, 60.0), (90.0, 90.0)])
def test_a_table_at_rest_is_listed_less_often(poll_s: float, rest_s: float) -> None:
    """Not one on which another process works, or that was written to within ten minutes."""
    for rests, claimed, after_s in ((True, "", rest_s), (True, "1", poll_s), (False, "", poll_s)):
        use = QuotaUsage(pools=pools_of((), (), ()), slots=1, began=0)
        control = Control(rules=Rules(poll_s=poll_s), retry=RetryOptions(), use=use, tables={"a": SEEN})
        seen = SeenTable(pending=(), claimed=frozenset(filter(None, [claimed])), due=False, oldest_s=None, rests=rests)
        control.apply(SnapshotTaken("a", seen=seen, available=True), Moment(now_ms=NOW, epoch_ms=NOW))
        assert control.tables["a"].snapshot_at == NOW + after_s * 1000


def test_of_a_table_in_trouble_nothing_is_taken_or_requested() -> None:
    """A request that failed waits, too: at once again, it would never rest."""
    over = SeenLag(goal_s=60, oldest_ms=NOW - 60_000, free_ms=NOW - 60_000)
    state = replace(SEEN, pending=pending("1"), busy=True, sweep_at=0, lag=over).after_trouble(NOW, 10_000)
    assert decided({"a": state}, services=True).actions == ()
    assert decided({"a": state}, once=True).ended
    good = state.after_snapshot((), frozenset(), NOW, 10_000)
    (asked,) = decided({"a": good}).actions
    assert isinstance(asked, Request)
    assert decided({"a": replace(good, snapshot_at=0)}).actions == (Relist("a"),)  # as after a plan: what is left?


def test_each_failed_look_doubles_the_wait_for_the_next_one() -> None:
    state, waits = SEEN, []
    for _ in range(40):
        state = state.after_trouble(NOW, 10_000)
        waits.append((state.snapshot_at - NOW) // 1000)
    assert waits[:5] == [10, 20, 40, 80, 160]
    assert waits[-1] == 300
    good = state.after_snapshot((), frozenset(), NOW, 10_000)
    assert good.after_trouble(NOW, 10_000).snapshot_at == NOW + 10_000
    assert SEEN.after_trouble(NOW, 400_000).after_trouble(NOW, 400_000).snapshot_at == NOW + 400_000, "polls apart"


_instants = st.sets(st.sampled_from("123456"), max_size=6)
_states = st.builds(
    lambda suspended, resumable, running, **known: TableState(
        running=running, suspended=running & suspended, resumable=running & suspended & resumable, **known
    ),
    pending=st.builds(
        lambda names, standings: tuple(
            Pending(instant=i, readiness=s) for i, s in zip(sorted(names), standings, strict=False)
        ),
        _instants,
        st.lists(st.sampled_from([Ready(), Waits(NOW - 1), Waits(NOW + 1000), Parked("x")]), min_size=6, max_size=6),
    ),
    claimed=_instants.map(frozenset),
    running=_instants.map(frozenset),
    suspended=_instants.map(frozenset),
    resumable=_instants.map(frozenset),
    postponed=st.dictionaries(st.sampled_from("123456"), st.sampled_from([NOW - 1, NOW + 1000])),
    available=st.booleans(),
    due=st.booleans(),
    busy=st.booleans(),
    seen=st.booleans(),
    snapshot_at=st.sampled_from([0, NOW + 1000]),
    sweep_at=st.sampled_from([0, NOW + 1000]),
    served=st.integers(0, 3),
    lag=st.sampled_from([None, SeenLag(goal_s=60), SeenLag(goal_s=60, oldest_ms=NOW - 50_000, free_ms=NOW - 50_000)]),
)


@given(
    st.dictionaries(st.sampled_from("abc"), _states, min_size=1),
    st.sampled_from([None, Stop.FINISH, Stop.HAND_OVER]),
    st.integers(1, 4),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_whatever_is_known_decisions_keep_the_rules(
    tables: dict[str, TableState], stop: Stop | None, slots: int, once: bool, chance: object
) -> None:
    rules = Rules(max_concurrent=slots, once=once)
    decision = next_steps(tables, stop, NOW, rules, chance.randrange, sharing(slots))  # type: ignore[attr-defined]
    takes = [a for a in decision.actions if isinstance(a, Take)]
    resumed = [a for a in decision.actions if isinstance(a, Resume)]
    others = [a for a in decision.actions if not isinstance(a, Take | Resume)]
    free = max(0, slots - sum(len(t.running) - len(t.suspended) for t in tables.values()))
    assert len(takes) + len(resumed) <= free
    assert all(r.instant in tables[r.table].resumable for r in resumed)
    resumable = sum(len(t.resumable) for t in tables.values())
    assert stop is not None or len(resumed) == min(free, resumable), "what has waited goes on first"
    for take in takes:
        state = tables[take.table]
        assert state.available
        assert take.instant not in state.running | state.claimed
        assert any(p.instant == take.instant and not isinstance(p.readiness, Parked) for p in state.pending)
    assert len({a.table for a in others}) == len(others)
    assert not any(tables[a.table].busy for a in others)
    if stop is not None or decision.ended:
        assert not decision.actions
    if stop is None and not once:
        assert not decision.ended
    # It never sleeps through something it could do, nor for ever.
    assert decision.ended or 0 <= decision.wait_s <= rules.poll_s
    # Tables that are left out change nothing.
    resting = Resting()
    awake = tables if stop is not None else resting.awake(tables, NOW, rules, slots)
    some = replace(sharing(slots), upkeeps=slots)
    fewer = next_steps(awake, stop, NOW, rules, first, replace(some, resting=resting))
    assert fewer == next_steps(tables, stop, NOW, rules, first, some)


def test_sweeps_and_looks_do_not_wait_for_each_other() -> None:
    """Few sweeps run at a time, those that are overdue for longest; also where looks are behind."""
    late = {f"t{n}": replace(SEEN, snapshot_at=NOW - n) for n in range(1, 99)}
    unswept = {f"s{n}": replace(SEEN, sweep_at=NOW - n) for n in range(13)}
    first_ones = [Sweep(f"s{n}") for n in range(12, 4, -1)]
    assert decided({**unswept, **late}).actions == (*(Relist(f"t{n}") for n in range(98, 82, -1)), *first_ones)
    busy = {name: replace(one, busy=True, sweeping=True) for name, one in unswept.items() if name in {"s12", "s11"}}
    found = decided({**unswept, **late, **busy}).actions
    assert [a for a in found if isinstance(a, Sweep)] == first_ones[2:]
    assert len(found) == 22
    awake = Resting().awake({**unswept, **late}, NOW, Rules(), 2)
    assert awake.keys() == {*(one.table for one in first_ones), "t98", "t97"}
    assert not replace(SEEN, busy=True, sweeping=True).after_trouble(NOW, 10_000).sweeping


def test_of_thousands_of_tables_the_most_urgent_are_looked_at_first() -> None:
    """What rings, or is overdue for longest; others wait until those are done, and are not queued before a bell."""
    tables = {f"t{n}": replace(SEEN, snapshot_at=NOW - n) for n in range(1, 100)}
    tables["due"] = replace(SEEN, due=True)
    tables["rung"] = replace(SEEN, snapshot_at=0)
    actions = decided(tables).actions
    assert len(actions) == 16
    assert actions[:3] == (Request("due"), Relist("rung"), Relist("t99"))
    more = next_steps(tables, None, NOW, Rules(), first, replace(sharing(), upkeeps=50)).actions
    assert len(more) == 50
    assert more[:16] == actions
    busy = {f"b{n}": replace(SEEN, busy=True) for n in range(15)}
    assert decided({**tables, **busy}).actions == (Request("due"),)
    assert not decided({**tables, **busy, "c": replace(SEEN, busy=True)}, once=True).ended
