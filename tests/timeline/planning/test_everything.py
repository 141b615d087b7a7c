"""A plan of everything is the same plan whether plain file groups are packed or go through the planner as objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phantombase.timeline.format.compaction_plan import decode_plan, encode_operation, encode_plan
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2, Layout
from phantombase.timeline.planning.limits import Picking
from phantombase.timeline.planning.operation import NO_STATS, Candidate, PackedPlan, PackedSlices, SliceStats, operation
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.partition_walk import Waiting
from phantombase.timeline.planning.planner import PartitionGroups, Planned, Situation, plan_compaction
from phantombase.timeline.planning.schedule import drafts, plan_everything, takes_everything
from phantombase.timeline.planning.strategies import Strategy
from phantombase.timeline.storage.contract import Entry
from phantombase.timeline.storage.folders import inside_table
from phantombase.timeline.view.grouping import file_groups
from phantombase.timeline.view.plain_slices import PlainRules, PlainSlice
from phantombase.timeline.view.view import FileSlice, GroupKey, latest_slice
from tests.support.builders import NO_FACTS, listing_of, timeline_of
from tests.support.drawn_partitions import FILES, drawn_facts, drawn_listing, drawn_timeline
from tests.support.selection import ALL

NOW = datetime(2026, 11, 25, 12)


def unmeasured(slices: Iterable[FileSlice]) -> Iterator[tuple[FileSlice, SliceStats]]:
    """No option needs more than the listing."""
    return ((slice_, NO_STATS) for slice_ in slices)


def written(planned: Planned) -> list[bytes]:
    """The plans as they would be requested."""
    return [encode_plan(plan) for plan in drafts(planned, [Waiting(folder="p", since="10")], ["p"])]


@dataclass(frozen=True, kw_only=True)
class World:
    """What is planned. `listings`: of partitions. `since`: where file groups wait, which is looked at again."""

    situation: Situation
    listings: dict[str, list[Entry]]
    since: dict[str, str]
    refused: frozenset[GroupKey]
    options: ScheduleOptions

    @staticmethod
    def drawn(rng: Random, layout: Layout) -> World:
        """One to three partitions in odd states."""
        timeline = drawn_timeline(rng, layout)
        listings = {part: drawn_listing(rng) for part in ("p", "q/r", "")[: rng.randint(1, 3)]}
        keys = [(part, file_id) for part in listings for file_id in FILES]
        return World(
            situation=Situation(
                timeline=timeline,
                facts=drawn_facts(rng, timeline, listings["p"]),
                now=NOW,
                busy={key: "in a pending clustering" for key in keys if rng.random() < 0.05},
            ),
            listings=listings,
            since={part: "20" for part in listings if rng.random() < 0.1},
            refused=frozenset(key for key in keys if rng.random() < 0.05),
            options=ScheduleOptions(max_plans=rng.choice((1, 1, 3))),
        )

    def slowly(self) -> Planned:
        """By the planner alone."""
        return plan_compaction(self._looks(None), self.situation, self.options, unmeasured, self._check)

    def fast(self) -> Planned:
        """With plain slices packed."""
        of = self.situation
        rules = PlainRules(timeline=of.timeline, facts=of.facts, aside=of.busy.keys())
        return plan_everything(self._looks(rules), of, self.options, unmeasured, self._check)

    def _looks(self, rules: PlainRules | None) -> Iterator[PartitionGroups]:
        of = self.situation
        waiting = [Waiting(folder=part, since=since) for part, since in self.since.items()]
        for one in [*waiting, *(Waiting(folder=part) for part in self.listings)]:
            entries, plain = self.listings[one.folder], list[PlainSlice]()
            if rules is not None and one.since is None:
                plain, entries = rules.split(one.folder, entries, partial(self._accepts, one.folder))
            groups = file_groups(one.folder, entries, of.timeline, of.facts, {slice_.file_id for slice_ in plain})
            yield PartitionGroups(waiting=one, groups=groups, plain=tuple(plain))

    def _accepts(self, partition: str, slice_: PlainSlice) -> bool:
        return (partition, slice_.file_id) not in self.refused

    def _check(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, str | None]]:
        return ((c, "broken" if c.slice.key in self.refused else None) for c in candidates)


@pytest.mark.parametrize("layout", [LAYOUT_1, LAYOUT_2], ids=["v6", "v8"])
def test_both_ways_plan_the_same(layout: Layout) -> None:
    """Of tables in every odd state: the bytes of the plans, the notes, and what the next planning must know."""
    seen: Counter[str] = Counter()
    for seed in range(1500 if ALL else 400):
        world = World.drawn(Random(f"plan {layout.slicing.name} {seed}"), layout)
        slow, fast = world.slowly(), world.fast()
        assert (fast.why, fast.notes, fast.again) == (slow.why, slow.notes, slow.again), seed
        assert (fast.waits_for, fast.closed_in) == (slow.waits_for, slow.closed_in), seed
        assert written(fast) == written(slow), seed
        packed = [list(plan.partitions) for plan in fast.plans if isinstance(plan, PackedPlan)]
        objects = [[c.slice.partition for c in plan] for plan in slow.plans if isinstance(plan, tuple)]
        assert packed == [list(dict.fromkeys(of)) for of in objects], seed
        seen["flaws"] += any(one.why != "broken" for one in fast.notes.unmergeable)
        seen["planned"] += sum(map(len, fast.plans))
        seen["several plans"] += len(packed) > 1
        seen["waiting"] += bool(world.since) and bool(packed)
    assert min(seen[what] for what in ("flaws", "planned", "several plans", "waiting")) > 20, seen


NAMES = st.from_regex(r"[^_/.\0][^_/\0]{0,40}", fullmatch=True).filter(lambda text: text.isprintable())


@given(
    file_id=NAMES,
    partition=st.one_of(
        st.just(""), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=1200)
    ).filter(inside_table),
    sizes=st.lists(st.integers(1, 1 << 50), min_size=2, max_size=70),
)
def test_a_packed_operation_has_the_bytes_of_a_plan(file_id: str, partition: str, sizes: list[int]) -> None:
    """Whatever the names are like: short, long, or with characters that are not ASCII."""
    entries = [
        Entry(name=f"{file_id}_0-0-0_10.parquet", is_folder=False, size=sizes[0]),
        *(
            Entry(name=f".{file_id}_20.log.{number}_0-0-0", is_folder=False, size=size)
            for number, size in enumerate(sizes[1:])
        ),
    ]
    timeline = timeline_of(LAYOUT_2, "10_11.deltacommit", "20_21.deltacommit")
    (group,) = file_groups(partition, entries, timeline, NO_FACTS)
    slice_ = latest_slice(group)
    assert slice_ is not None
    plain, others = PlainRules(timeline=timeline, facts=NO_FACTS).split(partition, entries, lambda _: True)
    assert (len(plain), others) == (1, [])
    found = PackedSlices()
    found.add(partition, plain, [])
    plan = found.plan([0])
    assert plan.operations.items == [encode_operation(operation(slice_))]
    assert plan.operations[0] == operation(slice_)


def test_a_packed_plan_is_read_as_it_was_written() -> None:
    """Also by the reader of plans, and without any operation."""
    entries = listing_of("b10", "l20.1", "l20.2")
    world = World(
        situation=Situation(
            timeline=timeline_of(LAYOUT_2, "10_11.deltacommit", "20_21.deltacommit"), facts=NO_FACTS, now=NOW
        ),
        listings={"p": entries, "q": entries},
        since={},
        refused=frozenset(),
        options=ScheduleOptions(),
    )
    for plan in drafts(world.fast(), [], []):
        assert decode_plan(encode_plan(plan), "a plan").operations == tuple(plan.operations)
        empty = replace(plan, operations=plan.operations[:0])
        assert decode_plan(encode_plan(empty), "a plan").operations == ()
        assert encode_plan(empty) == encode_plan(replace(plan, operations=()))


@pytest.mark.parametrize(
    "options",
    [
        ScheduleOptions(max_file_slices=1),
        ScheduleOptions(exclude=("p",)),
        ScheduleOptions(picking=Picking.UNIVERSAL),
        ScheduleOptions(strategies=(Strategy.BOUNDED_IO,)),
    ],
    ids=["limit", "excluded", "universal", "strategy"],
)
def test_what_leaves_something_out_goes_through_the_planner(options: ScheduleOptions) -> None:
    """Limits, patterns, the universal rules and strategies; and what is only urgent."""
    assert not takes_everything(options, all_due=True)
    assert not takes_everything(ScheduleOptions(), all_due=False)
    assert takes_everything(ScheduleOptions(max_plans=3), all_due=True)
