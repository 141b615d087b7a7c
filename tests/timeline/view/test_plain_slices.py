"""Plain file groups: the short way says of them what the file-system view says, and leaves all others to it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from phantombase.timeline.codec.avro_container import (
    STRING,
    array_of,
    defaulted,
    map_of,
    optional,
    record_of,
    required,
    root_record,
    write_record,
)
from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2, Layout
from phantombase.timeline.format.replace_request import forming_groups
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.storage.contract import Entry
from phantombase.timeline.view.grouping import file_groups
from phantombase.timeline.view.plain_slices import PlainRules, PlainSlice
from phantombase.timeline.view.view import FileGroup, FileSlice, ViewFacts, is_replaced, latest_slice
from phantombase.timeline.view.witness import NamedFile, Witness
from tests.support.builders import NO_FACTS, listing_of, timeline_of
from tests.support.drawn_partitions import PARTITION, drawn_facts, drawn_listing, drawn_timeline
from tests.support.golden_tables import CLUSTERINGS
from tests.support.selection import ALL, for_each


def viewed(
    entries: list[Entry], timeline: Timeline, facts: ViewFacts, known: set[str] | None = None
) -> dict[str, FileGroup]:
    """The groups of the view by file id. What lies in the folder besides is not compared."""
    found = file_groups(PARTITION, entries, timeline, facts, known or set())
    return {g.file_id: replace(g, slices=tuple(map(_in_company, g.slices))) for g in found}


def _in_company(slice_: FileSlice) -> FileSlice:
    return replace(slice_, flaws=tuple(replace(f, is_alone=False) for f in slice_.flaws))


def in_short(group: FileGroup, facts: ViewFacts) -> tuple[object, ...] | None:
    """What a plain slice has, of a group of the view; None: it could not be planned."""
    last = latest_slice(group)
    if (
        last is None
        or last.flaws
        or last.base is None
        or not last.logs
        or is_replaced(group, facts)
        or group.pending_compaction
    ):
        return None
    files = [(str(f.name), f.size) for f in last.files]
    return (last.base_instant, last.base.name.instant, last.file_id, files)


def of_plain(slice_: PlainSlice) -> tuple[object, ...]:
    """The same of a plain slice."""
    files = [(e.name, e.size) for e in (slice_.base, *slice_.logs)]
    return (slice_.base_instant, slice_.base_instant, slice_.file_id, files)


@pytest.mark.parametrize("layout", [LAYOUT_1, LAYOUT_2], ids=["v6", "v8"])
def test_plain_and_other_groups_together_are_the_view(layout: Layout) -> None:
    """Whatever the table is like, the plain groups are as the view has them, and the view of the rest is the same."""
    seen: Counter[str] = Counter()
    for seed in range(6000 if ALL else 1500):
        rng = Random(f"{layout.slicing.name} {seed}")
        timeline, entries = drawn_timeline(rng, layout), drawn_listing(rng)
        facts = drawn_facts(rng, timeline, entries)
        aside = {(PARTITION, "a")} if rng.random() < 0.05 else set[tuple[str, str]]()
        refused = "c" if rng.random() < 0.1 else ""
        rules = PlainRules(timeline=timeline, facts=facts, aside=aside)
        plain, others = rules.split(PARTITION, entries, lambda slice_: slice_.file_id != refused)  # noqa: B023 - called at once
        known = {slice_.file_id for slice_ in plain}
        whole, rest = viewed(entries, timeline, facts), viewed(others, timeline, facts, known)
        story = f"seed {seed}: {[e.name for e in entries]} {timeline.instants} {facts}"
        assert not known & {refused, *(file_id for _, file_id in aside)}, story
        assert rest == {i: g for i, g in whole.items() if i not in known}, story
        assert [of_plain(s) for s in plain] == [in_short(whole[s.file_id], facts) for s in plain], story
        plannable = {i for i, g in whole.items() if in_short(g, facts) is not None and g.slices[-1].base_instant}
        seen["several slices"] += sum(len(whole[s.file_id].slices) > 1 for s in plain)
        seen["compacted"] += sum((PARTITION, s.file_id) in facts.compacted for s in plain)
        seen["witnessed"] += sum(s.file_id in facts.witness.ids_in(PARTITION) for s in plain)
        seen["left to the view"] += len(plannable - known)
        seen["plain"] += len(plain)
        seen["flaws"] += any(g.flaws for g in whole.values())
    kinds = ("several slices", "compacted", "witnessed", "left to the view", "flaws")
    assert min(seen[what] for what in kinds) > 20, seen
    assert seen["plain"] > 100, seen


def test_a_group_as_most_are_is_plain() -> None:
    """A base file, log files behind it, another group beside it without any."""
    timeline = timeline_of(LAYOUT_2, "10_11.deltacommit", "20_21.deltacommit", "30_31.deltacommit")
    entries = [*listing_of("b10", "l30.1", "l20.2", "l20.1"), Entry(name="g_0-0-0_10.parquet", is_folder=False, size=1)]
    plain, others = PlainRules(timeline=timeline, facts=NO_FACTS).split("p", entries, lambda _: True)
    ((instant, file_id, base, logs),) = plain
    assert (instant, file_id, base.name) == ("10", "f", "f_0-0-0_10.parquet")
    assert [log.name for log in logs] == [".f_20.log.1_0-0-0", ".f_20.log.2_0-0-0", ".f_30.log.1_0-0-0"]
    assert [entry.name for entry in others] == ["g_0-0-0_10.parquet"]


def test_a_group_whose_newest_base_file_of_an_archived_write_is_lost_is_not_plain() -> None:
    """An older base file lies there still; a log file of an active write says which one is newer."""
    timeline = timeline_of(LAYOUT_2, "20_21.deltacommit")
    entries = listing_of("b05", "l20.1")
    own = NamedFile(path=f"p/{entries[1].name}", size=entries[1].size)
    for lost, found in (("b04", 1), ("b10", 0)):
        below = NamedFile(path=f"p/{listing_of(lost)[0].name}", size=0, is_below=True)
        facts = replace(NO_FACTS, witness=Witness.of([("20", {"p": [own, below]})]))
        plain, _ = PlainRules(timeline=timeline, facts=facts).split("p", entries, lambda _: True)
        assert len(plain) == found


# The file groups that a pending resize of buckets will make, from its plan.


_SLICE = record_of("HoodieSliceInfo", required("fileId", STRING))
_GROUP = record_of(
    "HoodieClusteringGroup",
    optional("slices", array_of(_SLICE)),
    optional("extraMetadata", map_of(STRING)),
    defaulted("version", "int", 1),
)
_PLAN = record_of("HoodieClusteringPlan", optional("inputGroups", array_of(_GROUP)))
_SCHEMA = root_record(
    "HoodieRequestedReplaceMetadata", optional("operationType", STRING), optional("clusteringPlan", _PLAN)
)
SPLIT = [{"value": 5, "fileIdPrefix": "aa", "tag": "NORMAL"}, {"value": 9, "fileIdPrefix": "bb", "tag": "REPLACE"}]
MERGE = [{"value": 3, "fileIdPrefix": "old", "tag": "DELETE"}, {"value": 7, "fileIdPrefix": "cc", "tag": "REPLACE"}]


def requested(*extras: dict[str, str] | None) -> bytes:
    """A plan with an input group for each extra metadata."""
    groups: list[dict[str, Any]] = [{"slices": [{"fileId": "x-0"}], "extraMetadata": extra} for extra in extras]
    return write_record({"operationType": "CLUSTER", "clusteringPlan": {"inputGroups": groups}}, _SCHEMA)


def of_bucket(partition: str, nodes: list[dict[str, Any]]) -> dict[str, str]:
    """The extra metadata of an input group."""
    return {
        "clustering.group.partition": partition,
        "clustering.group.child.node": json.dumps(nodes),
        "clustering.group.sequence.no": "0",
    }


def test_buckets_that_are_split_and_merged() -> None:
    """A bucket that goes is none that comes."""
    data = requested(of_bucket("north", SPLIT), of_bucket("", MERGE))
    assert forming_groups(data, "x") == {("north", "aa-0"), ("north", "bb-0"), ("", "cc-0")}


def test_other_clusterings_make_none() -> None:
    """Their input groups say nothing of buckets; an insert overwrite has no plan."""
    assert forming_groups(CLUSTERINGS[0][2], "x") == frozenset()
    assert forming_groups(requested(None, {"phantombase.file_id": "a"}), "x") == frozenset()
    assert forming_groups(b"", "x") == frozenset()


@for_each(["", "[1]", '[{"value": 1, "tag": "NORMAL"}]', "null"])
def test_unreadable_plans_are_errors(nodes: str) -> None:
    """What cannot be read is never "none"."""
    extra = {"clustering.group.partition": "p", "clustering.group.child.node": nodes}
    with pytest.raises(MalformedError, match="resize"):
        forming_groups(requested(extra), "x")
    with pytest.raises(MalformedError):
        forming_groups(requested(extra)[:-3], "x")
