"""The planner: partitions in, plans and reasons out.

A file group is written `p/f: 10 b5 l20.3 l30.4`: its newest slice has base instant 10, a base file of 5 bytes (or none)
and log files of delta commits 20 and 30 with 3 and 4 bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.format.file_name import BaseFileName, LogFileName
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.instants.triggers import Urgency
from phantombase.timeline.planning.limits import MergeKind, Picking
from phantombase.timeline.planning.log_compaction import LogPiece, LogRun
from phantombase.timeline.planning.operation import Candidate, SliceStats
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.partition_walk import NOTES, Rule, Waiting, decode_waiting
from phantombase.timeline.planning.planner import PartitionGroups, Planned, Situation, plan_compaction
from phantombase.timeline.planning.schedule import drafts
from phantombase.timeline.planning.strategies import Strategy
from phantombase.timeline.view.view import DataFile, FileGroup, FileSlice, LogFile, ViewFacts
from tests.support.builders import timeline_of

NOW = datetime(2026, 11, 22, 12)
NOTHING = ViewFacts(pending_plans={}, replaced={}, compacted={})


def group(story: str, pending: str | None = None) -> FileGroup:
    """See the module."""
    key, _, text = story.partition(": ")
    partition, _, file_id = key.rpartition("/")
    instant, *files = text.split()
    base, logs = None, []
    for number, name in enumerate(files):
        if name.startswith("b"):
            named = BaseFileName(file_id=file_id, token="0-0-0", instant=instant)
            base = DataFile(partition=partition, name=named, size=int(name[1:]))
        else:
            time, _, size = name[1:].partition(".")
            log = LogFileName(file_id=file_id, instant=time, version=number)
            logs.append(DataFile(partition=partition, name=log, size=int(size)))
    slice_ = FileSlice(partition=partition, file_id=file_id, base_instant=instant, base=base, logs=tuple(logs))
    return FileGroup(partition=partition, file_id=file_id, slices=(slice_,), pending_compaction=pending)


def looks(groups: Iterable[FileGroup], since: str | None = None) -> list[PartitionGroups]:
    """One a partition, in order of appearance."""
    found: dict[str, list[FileGroup]] = {}
    for one in groups:
        found.setdefault(one.partition, []).append(one)
    return [PartitionGroups(waiting=Waiting(folder=p, since=since), groups=tuple(of)) for p, of in found.items()]


def measured(slices: Iterable[FileSlice]) -> Iterator[tuple[FileSlice, SliceStats]]:
    """Each delta commit of a slice's logs is a piece."""
    for slice_ in slices:
        by_instant: dict[str, list[LogFile]] = {}
        for log in slice_.logs:
            by_instant.setdefault(log.name.instant, []).append(log)
        pieces = tuple(
            LogPiece(instant=i, files=tuple(f), replaced=(), deletes=False, partial=False, place=i, whole=True)
            for i, f in by_instant.items()
        )
        yield slice_, SliceStats(runs=(LogRun(pieces=pieces, bottom=True),))


def accepted(candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, str | None]]:
    """A compactor refuses nothing."""
    return ((c, None) for c in candidates)


def refusing(*names: str) -> Callable[[Iterable[Candidate]], Iterator[tuple[Candidate, str | None]]]:
    """A compactor refuses these file groups."""
    return lambda candidates: ((c, "no" if "/".join(c.slice.key) in names else None) for c in candidates)


def planned(*groups: str | FileGroup, timeline: Timeline | None = None, **said: Any) -> Planned:
    """What is planned of these groups."""
    situation = {n: said.pop(n) for n in ("facts", "busy", "all_due") if n in said}
    given_ = Situation(
        timeline=timeline or timeline_of(LAYOUT_2, "10.deltacommit"), now=NOW, **{"facts": NOTHING, **situation}
    )
    check = said.pop("check", accepted)
    seen = looks(group(g) if isinstance(g, str) else g for g in groups)
    return plan_compaction(seen, given_, ScheduleOptions(**said), measured, check)


def plans_of(found: Planned) -> list[tuple[Candidate, ...]]:
    """The plans; no planning of this file packs them."""
    return [plan for plan in found.plans if isinstance(plan, tuple)]


def told(found: Planned) -> list[str]:
    """Plans in shorthand."""
    return [" ".join(_told(c) for c in plan) for plan in plans_of(found)]


def _told(candidate: Candidate) -> str:
    name = "/".join(candidate.slice.key)
    return name if candidate.kind is MergeKind.MAJOR else f"{name}~{len(candidate.pieces)}"


def left(found: Planned) -> dict[str, Rule]:
    """What was left out, by which rule."""
    return {o.path: o.rule for o in found.notes.left}


A, B, C = "p/a: 10 b5 l20.3", "p/b: 10 b5 l20.9", "q/c: 10 b5 l20.6"


@pytest.mark.parametrize(
    ("story", "said", "expected"),
    [
        ("everything, largest logs first", {}, ["p/b q/c p/a"]),
        ("one slice: by partition, then least recently compacted, then largest", {"max_file_slices": 1}, ["p/b"]),
        ("two plans", {"max_file_slices": 1, "max_plans": 2}, ["p/b", "p/a"]),
        ("a strategy of Hudi", {"strategies": (Strategy.LOG_FILE_SIZE,), "log_size_threshold": 6}, ["p/b q/c"]),
        ("a strategy and a limit", {"strategies": (Strategy.LOG_FILE_SIZE,), "max_file_slices": 1}, ["p/b"]),
        ("by a regex", {"strategies": (Strategy.PARTITION_REGEX,), "partition_regex": "q"}, ["q/c"]),
        ("not yet", {"picking": Picking.UNIVERSAL}, []),
        ("a trigger of two is not reached", {"picking": Picking.UNIVERSAL, "compaction_trigger": 2}, []),
    ],
)
def test_what_is_planned(story: str, said: dict[str, Any], expected: list[str]) -> None:
    assert told(planned(A, B, C, **said)) == expected, story


def test_what_is_excluded_is_left_out_with_the_pattern() -> None:
    """Whole partitions, and single file groups; it comes back once the pattern is gone."""
    found = planned(A, B, C, exclude=("q*", "p/b"))
    assert told(found) == ["p/a"]
    assert left(found) == {"q/c": Rule.EXCLUDED, "p/b": Rule.EXCLUDED}
    assert {o.path: o.why for o in found.notes.left}["q/c"] == "by the pattern q*"
    assert set(found.again) == {"p", "q"}
    assert told(planned(A, exclude=("p/", "a", "P"))) == ["p/a"]
    assert told(planned("/a: 10 b5 l20.1", exclude=("a",))) == []
    assert planned(A, exclude=("p",)).why == "nothing to plan: p/a: by the pattern p"


def test_who_was_compacted_last_comes_last() -> None:
    """However large its logs."""
    found = planned("p/a: 30 b5 l40.99", "p/b: 10 b5 l20.1", "p/c: 20 b5 l40.50", max_file_slices=2)
    assert told(found) == ["p/b p/c"]


def test_everything_in_the_way_has_a_name() -> None:
    pending = group("p/e: 10 b5 l20.3", pending="30")
    found = planned(
        A, "p/d: 10 b5", pending, "p/f: 10 b5 l20.3", busy={("p", "f"): "in a pending clustering"}, max_file_slices=9
    )
    assert told(found) == ["p/a"]
    assert left(found) == {"p/d": Rule.NO_LOGS, "p/e": Rule.BUSY, "p/f": Rule.BUSY}
    assert {o.path: o.why for o in found.notes.left}["p/e"] == "in the pending compaction 30"
    assert found.again == ("p",)


def test_what_is_replaced_is_not_there() -> None:
    facts = ViewFacts(pending_plans={}, replaced={("p", "a"): "20"}, compacted={})
    found = planned(A, B, facts=facts)
    assert told(found) == ["p/b"]
    assert not found.notes.left


def test_an_empty_plan_says_why() -> None:
    assert planned("p/d: 10 b5").why == "no file group has log files that are not already in a plan"
    assert "1 of 5 log files" in planned(A, picking=Picking.UNIVERSAL).why
    assert "by itself larger than max_source_bytes=1" in planned(A, max_source_bytes=1, hard=True).why


def test_only_what_is_urgent_before_the_trigger() -> None:
    found = planned(A, C, all_due=False, partition_urgency=("q=radical",))
    assert told(found) == ["q/c"]
    assert left(found) == {"p/a": Rule.NOT_DUE}
    assert found.again == ("p",)
    assert told(planned(A, C, all_due=False, urgency=Urgency.RADICAL)) == ["q/c p/a"]
    old = "p/a: 20261122110000000 b5 l20261122110000000.3"
    assert told(planned(old, all_due=False, max_interval_s=3600.0)) == ["p/a"]
    assert told(planned(old, all_due=False, max_interval_s=3601.0)) == []


def test_an_idle_partition_gets_a_last_full_compaction() -> None:
    """By its newest write, whichever file group has it; also where the rules would merge log files only, or nothing."""
    quiet, busy = "p/a: 20261121110000000 b5 l20261121110000001.3", "q/c: 20261121110000000 b5 l20261121110000001.3"
    writes = ("20261121110000001_20261122110000000.deltacommit", "20261122113000000_20261122113000001.deltacommit")
    inserts = (busy.replace("q/c", "r/c"), "r/d: 20261122113000000 b5")
    given = (quiet, busy, "q/d: 20261121110000000 b5 l20261122113000000.3", *inserts)
    for picking in Picking:
        how: dict[str, Any] = {"timeline": timeline_of(LAYOUT_2, *writes), "all_due": False, "picking": picking}
        assert told(planned(*given, partition_idle_s=3600.0, **how)) == ["p/a"]
        assert told(planned(*given, partition_idle_s=3601.0, **how)) == []
        assert told(planned(*given, **how)) == []


def test_a_minor_pick_takes_whole_delta_commits() -> None:
    """Two files of delta commit 30 are one run."""
    logs = "l20.1000 l30.5 l30.5 l40.10 l50.10 l60.10"
    found = planned(f"p/a: 10 b100000 {logs}", picking=Picking.UNIVERSAL)
    assert told(found) == ["p/a~4"]
    (candidate,) = plans_of(found)[0]
    assert [p.instant for p in candidate.pieces] == ["30", "40", "50", "60"]
    (plan,) = drafts(found, [], [])
    assert plan.action == "logcompaction"
    assert [len(o.delta_file_paths) for o in plan.operations] == [5]


def test_a_minor_pick_stays_above_what_lies_between() -> None:
    """A write that pends between the runs: only what is younger than it can be merged."""

    def cut(slices: Iterable[FileSlice]) -> Iterator[tuple[FileSlice, SliceStats]]:
        for slice_, stats in measured(slices):
            (run,) = stats.runs or ()
            two = (LogRun(pieces=run.pieces[:at], bottom=True), LogRun(pieces=run.pieces[at:], bottom=False))
            yield slice_, SliceStats(runs=two)

    situation = Situation(timeline=timeline_of(LAYOUT_2, "10.deltacommit"), facts=NOTHING, now=NOW)
    options = ScheduleOptions(picking=Picking.UNIVERSAL)
    seen = looks([group("p/a: 10 b100000 l20.10 l30.10 l40.10 l50.10 l60.10")])
    at = 2
    assert told(plan_compaction(seen, situation, options, cut, accepted)) == ["p/a~3"]
    at = 4
    found = plan_compaction(seen, situation, options, cut, accepted)
    assert told(found) == []
    assert "lies between them" in found.why


def test_version_6_has_no_minor_compaction_unless_asked_for() -> None:
    timeline = timeline_of(LAYOUT_1, "10.deltacommit")
    story = "p/a: 10 b100000 " + " ".join(f"l{20 + n}.10" for n in range(5))
    found = planned(story, timeline=timeline, picking=Picking.UNIVERSAL)
    assert told(found) == ["p/a"]
    assert "readers-1x-only" in plans_of(found)[0][0].why
    allowed = planned(story, timeline=timeline, picking=Picking.UNIVERSAL, readers_1x_only=True)
    assert told(allowed) == ["p/a~5"]


def test_version_6_waits_for_a_pending_write() -> None:
    timeline = timeline_of(LAYOUT_1, "10.deltacommit", "20.deltacommit.inflight")
    found = planned(A, timeline=timeline)
    assert told(found) == []
    assert found.waits_for is not None
    assert found.waits_for.requested_time == "20"
    assert planned("p/d: 10 b5", timeline=timeline).waits_for is None


@pytest.mark.parametrize(
    ("story", "names", "said", "expected"),
    [
        ("the others are planned", ["p/b"], {}, ["q/c p/a"]),
        ("the next one takes its place", ["p/b"], {"max_file_slices": 1}, ["p/a"]),
        ("also in another partition", ["p/b", "p/a"], {"max_file_slices": 1}, ["q/c"]),
        ("nothing is left", ["p/b", "p/a", "q/c"], {}, []),
        ("a strategy chooses again", ["p/b"], {"strategies": (Strategy.BOUNDED_IO,), "strategy_io_mb": 1}, ["p/a q/c"]),
        ("and again", ["p/b", "q/c"], {"strategies": (Strategy.LOG_FILE_SIZE,), "max_file_slices": 1}, ["p/a"]),
    ],
)
def test_what_a_compactor_would_refuse_is_left_out(
    story: str, names: list[str], said: dict[str, Any], expected: list[str]
) -> None:
    found = planned(A, B, C, check=refusing(*names), log_size_threshold=0, **said)
    assert told(found) == expected, story
    assert {path: rule for path, rule in left(found).items() if rule is not Rule.LIMIT} == dict.fromkeys(
        names, Rule.UNMERGEABLE
    )
    assert f"{names[0]}: no" in found.why


def test_a_strategy_fills_the_room_of_what_was_refused() -> None:
    """Its target is a megabyte: one of these two."""
    large, other = f"p/a: 10 l20.{1 << 20}", f"p/b: 10 l20.{1 << 19}"
    said: dict[str, Any] = {"strategies": (Strategy.BOUNDED_IO,), "strategy_io_mb": 1}
    assert told(planned(large, other, **said)) == ["p/a"]
    found = planned(large, other, check=refusing("p/a"), **said)
    assert told(found) == ["p/b"]
    assert left(found) == {"p/a": Rule.UNMERGEABLE}


def test_a_slice_that_cannot_be_measured_is_left_out() -> None:
    def unreadable(slices: Iterable[FileSlice]) -> Iterator[tuple[FileSlice, SliceStats]]:
        for slice_ in slices:
            yield slice_, SliceStats(unreadable="broken" if slice_.file_id == "a" else None)

    situation = Situation(timeline=timeline_of(LAYOUT_2, "10.deltacommit"), facts=NOTHING, now=NOW)
    seen = looks(group(g) for g in (A, B))
    found = plan_compaction(seen, situation, ScheduleOptions(), unreadable, accepted)
    assert told(found) == ["p/b"]
    assert left(found) == {"p/a": Rule.UNMERGEABLE}
    assert found.again == ("p",)


def test_nothing_behind_the_plan_is_looked_at() -> None:
    taken: list[str] = []

    def partitions() -> Iterator[PartitionGroups]:
        for snapshot in looks(group(f"p{n}/f: 10 b5 l20.3") for n in range(9)):
            taken.append(snapshot.waiting.folder)
            yield snapshot

    situation = Situation(timeline=timeline_of(LAYOUT_2, "10.deltacommit"), facts=NOTHING, now=NOW)
    found = plan_compaction(partitions(), situation, ScheduleOptions(max_file_slices=3), measured, accepted)
    assert taken == ["p0", "p1", "p2"]
    assert found.closed_in == Waiting(folder="p2")


def test_what_waited_comes_before_what_was_written_since() -> None:
    """Of a partition that waits since 30 only groups that were not compacted since; the others when it comes again."""
    groups = [group("p/a: 40 b5 l50.9"), group("p/b: 10 b5 l20.1")]
    seen = [*looks(groups, since="30"), *looks([group("q/c: 10 b5 l20.6")]), *looks(groups)]
    situation = Situation(timeline=timeline_of(LAYOUT_2, "10.deltacommit"), facts=NOTHING, now=NOW)
    found = plan_compaction(seen, situation, ScheduleOptions(max_file_slices=9), measured, accepted)
    assert told(found) == ["p/b q/c p/a"]
    assert found.notes.file_groups == 3


def test_the_benefit_is_told() -> None:
    summary = planned(A, "p/d: 10 b5", "p/e: 10 b100 l20.1 l30.1").notes.summary()
    assert (summary["read_amplification"], summary["read_amplification_after"]) == (2.0, 1.0)
    assert summary["read_bytes"] == 8 + 102
    assert summary["write_bytes"] == 5 + 100


def test_a_plan_carries_where_to_look_next() -> None:
    found = planned(A, B, C, max_file_slices=1, max_plans=2)
    waiting = [Waiting(folder="p"), Waiting(folder="q", since="15")]
    plans = drafts(found, waiting, ["p", "q"])
    assert [len(p.operations) for p in plans] == [1, 1]
    assert all(p.missing_schedule_partitions == ("p", "q") for p in plans)
    texts = [(p.extra_metadata or {})[NOTES] for p in plans]
    assert decode_waiting(texts[0], "60") is None, "the last plan tells"
    assert decode_waiting(texts[1], "60") == [Waiting(folder="p", since="60"), Waiting(folder="q", since="15")]


GROUPS = st.lists(
    st.tuples(
        st.sampled_from("pqrs"), st.integers(10, 15), st.integers(0, 50), st.lists(st.integers(1, 50), max_size=7)
    ),
    max_size=20,
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "max_file_slices": st.integers(1, 8),
        "max_source_bytes": st.integers(1, 200),
        "max_plans": st.integers(1, 3),
        "picking": st.just(Picking.UNIVERSAL),
        "compaction_trigger": st.integers(2, 6),
        "strategies": st.sampled_from([(Strategy.LOG_FILE_SIZE,), (Strategy.LOG_FILE_NUM, Strategy.BOUNDED_IO)]),
    },
)


@given(GROUPS, OPTIONS, st.randoms(use_true_random=False))
def test_nobody_is_forgotten(drawn: list[Any], said: dict[str, Any], chance: random.Random) -> None:
    """Each group looked at is in one plan, or left out for one reason; and the order of a listing changes nothing."""
    stories = [
        f"{p}/f{n}: {instant} {f'b{base} ' if base else ''}" + " ".join(f"l2{k}.{s}" for k, s in enumerate(logs))
        for n, (p, instant, base, logs) in enumerate(sorted(drawn))
        if base or logs
    ]
    found = planned(*stories, **said)
    taken = [_told(c).partition("~")[0] for plan in plans_of(found) for c in plan]
    out = [o.path for o in found.notes.left]
    assert len({*taken, *out}) == len(taken) + len(out)
    assert all(o.why for o in found.notes.left)
    if found.closed_in is None:  # also where a strategy chose, and a limit closed the plan
        assert len(taken) + len(out) == len(stories)
    shuffled = sorted(stories, key=lambda s: (s[0], chance.random()))
    assert told(planned(*shuffled, **said)) == told(found)
