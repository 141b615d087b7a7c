"""File slices: each case is a timeline and a listing by name, with its story above.

`b10` is the file group's base file of instant 10, `l10.2` its log file 2 that carries instant 10 in its name: on
version 6 the base instant of its slice, on versions 8 and 9 its delta commit's. A slice is written
`<base instant>: <base or -> <logs>`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from phantombase.timeline.errors import MalformedError, MissingFileError
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2
from phantombase.timeline.instants.timeline import UNKNOWN_COMPLETION, Timeline
from phantombase.timeline.storage.contract import Entry
from phantombase.timeline.view.grouping import file_groups, may_share_time
from phantombase.timeline.view.view import (
    FileGroup,
    FileSlice,
    ViewFacts,
    is_replaced,
    latest_base,
    latest_slice,
    log_instants,
    slice_before,
)
from phantombase.timeline.view.witness import NamedFile, Witness
from tests.support.builders import GROUP, NO_FACTS, facts_of, group_of, listing_of, picture, pictures, timeline_of
from tests.support.selection import for_each


def group_v6(instants: str, files: str, facts: ViewFacts = NO_FACTS, *, archived: str = "") -> FileGroup:
    return group_of(
        timeline_of(LAYOUT_1, *instants.split(), archived=archived.split()), listing_of(*files.split()), facts
    )


def group_v8(
    instants: str,
    files: str,
    facts: ViewFacts = NO_FACTS,
    *,
    archived: str = "",
    legacy: Mapping[str, str] | None = None,
) -> FileGroup:
    timeline = timeline_of(LAYOUT_2, *instants.split(), archived=archived.split(), legacy=legacy)
    return group_of(timeline, listing_of(*files.split()), facts)


# --- version 6 --------------------------------------------------------------------------------------------------


def test_v6_logs_lie_on_the_base_they_name() -> None:
    """t10 writes the base, t20 and t30 log onto it."""
    group = group_v6("10.deltacommit 20.deltacommit 30.deltacommit", "b10 l10.1 l10.2")
    assert pictures(group) == ["10: b10 l10.1 l10.2"]
    assert picture(latest_slice(group)) == "10: b10 l10.1 l10.2"


def test_v6_log_order_is_numeric_by_version_and_textual_by_token() -> None:
    """Version 10 comes after 9; of one version, token 10-0-0 comes before 9-0-0."""
    names = [".f_10.log.10_0-0-0", ".f_10.log.9_0-0-0", ".f_10.log.1_9-0-0", ".f_10.log.1_10-0-0", ".f_10.log.2"]
    group = group_v6("10.deltacommit", " ".join(["b10", *names]))
    assert [str(log.name) for log in group.slices[0].logs] == [names[i] for i in (3, 2, 4, 1, 0)]


def test_v6_two_slices() -> None:
    """t10 base, t20 a log, t25 a compaction that completed, t30 a log on it."""
    group = group_v6("10.deltacommit 20.deltacommit 25.commit 30.deltacommit", "b10 l10.1 b25 l25.1")
    assert pictures(group) == ["10: b10 l10.1", "25: b25 l25.1"]
    assert picture(latest_slice(group)) == "25: b25 l25.1"
    assert picture(latest_slice(group, "24")) == "10: b10 l10.1"
    assert picture(latest_slice(group, "25")) == "25: b25 l25.1"
    assert latest_slice(group, "09") is None


def test_v6_log_only_group() -> None:
    """t10 created the group with a log alone: the slice has no base file."""
    group = group_v6("10.deltacommit 20.deltacommit", "l10.1 l10.2")
    assert pictures(group) == ["10: - l10.1 l10.2"]
    assert latest_base(group) is None


@pytest.mark.parametrize("state", ["20.compaction.requested", "20.compaction.requested 20.compaction.inflight"])
def test_v6_phantom_slice(state: str) -> None:
    """t20 schedules a compaction; t30 logs onto slice 20, which has no base yet. Both slices are read as one."""
    group = group_v6(f"10.deltacommit {state} 30.deltacommit", "b10 l10.1 l10.2 l20.1", facts_of(pending="20"))
    assert pictures(group) == ["10: b10 l10.1 l10.2", "20: - l20.1"]
    assert picture(latest_slice(group)) == "10: b10 l10.1 l10.2 l20.1"
    # Before the compaction was scheduled its logs are not there; at its instant they are.
    assert picture(latest_slice(group, "19")) == "10: b10 l10.1 l10.2"
    assert picture(latest_slice(group, "20")) == "10: b10 l10.1 l10.2 l20.1"
    # The compaction itself must not take the logs of its own slice.
    assert picture(slice_before(group, "20")) == "10: b10 l10.1 l10.2"


def test_v6_phantom_slice_without_logs() -> None:
    """t20 schedules a compaction and nobody has written since: the slice before is read."""
    group = group_v6("10.deltacommit 20.compaction.requested", "b10 l10.1", facts_of(pending="20"))
    assert pictures(group) == ["10: b10 l10.1", "20: -"]
    assert picture(latest_slice(group)) == "10: b10 l10.1"


def test_v6_half_done_compaction() -> None:
    """t20's compactor has written its base file and not committed: the file is ignored, by every reader."""
    files = "b10 l10.1 b20 l20.1"
    group = group_v6("10.deltacommit 20.compaction.inflight 30.deltacommit", files, facts_of(pending="20"))
    assert picture(latest_slice(group)) == "10: b10 l10.1 l20.1"
    base = latest_base(group)
    assert base is not None
    assert base.name.instant == "10"
    assert picture(slice_before(group, "20")) == "10: b10 l10.1"


def test_v6_completed_compaction() -> None:
    """t20.commit appears: slice 20 has its base, slice 10 is garbage."""
    group = group_v6(
        "10.deltacommit 20.compaction.requested 20.compaction.inflight 20.commit 30.deltacommit",
        "b10 l10.1 b20 l20.1",
        facts_of(compacted="20"),
    )
    assert picture(latest_slice(group)) == "20: b20 l20.1"


def test_v6_pending_compaction_of_a_group_that_has_nothing_before_it() -> None:
    """t20's plan names the group but slice 10 is gone: what lies on slice 20 is all there is."""
    group = group_v6("10.deltacommit 20.compaction.requested", "l20.1", facts_of(pending="20"))
    assert picture(latest_slice(group)) == "20: - l20.1"


def test_v6_several_pending_plans() -> None:
    """t20 plans group f, t30 plans group g: each is merged with its own phantom slice, h with none."""
    timeline = timeline_of(LAYOUT_1, "10.deltacommit", "20.compaction.requested", "30.compaction.requested")
    facts = replace(NO_FACTS, pending_plans={("p", "f"): "20", ("p", "g"): "30", ("q", "h"): "20"})
    entries = [
        entry
        for name in "fgh"
        for entry in listing_of(f"{name}_0-0-0_10.parquet", *(f".{name}_{t}.log.1_0-0-0" for t in (10, 20, 30)))
    ]
    groups = file_groups("p", entries, timeline, facts)
    assert [(g.file_id, g.pending_compaction, picture(latest_slice(g))) for g in groups] == [
        ("f", "20", "10: b10 l10.1 l20.1"),
        ("g", "30", "10: b10 l10.1 l30.1"),
        ("h", None, "10: b10 l10.1"),
    ]


def test_v6_uncommitted_files() -> None:
    """t20 is inflight and t99 unknown: their base files and slices are not there."""
    group = group_v6("10.deltacommit 20.deltacommit.inflight", "b10 l10.1 b20 l20.1 b99 l99.1")
    assert pictures(group) == ["10: b10 l10.1"]


def test_v6_archived_instants_count() -> None:
    """t05 left the active timeline long ago, its files are still there; t20 starts the timeline."""
    group = group_v6("20.deltacommit 30.deltacommit", "b05 l05.1 b20")
    assert pictures(group) == ["05: b05 l05.1", "20: b20"]


def test_v6_a_pending_instant_older_than_all_others_is_pending() -> None:
    """t10 is inflight and the oldest: archival never passes it, so t05 is archived and t10 is not."""
    group = group_v6("10.deltacommit.inflight 20.deltacommit", "b05 b10 b20")
    assert pictures(group) == ["05: b05", "20: b20"]


def test_v6_services_do_not_start_the_timeline() -> None:
    """A clean at t05 is older than every write: t07 is archived all the same."""
    assert pictures(group_v6("05.clean 10.deltacommit", "b07 b10")) == ["07: b07", "10: b10"]


def test_v6_savepoint_hole() -> None:
    """Archival passed the savepoint at t10 and took t20: only the archive knows that t20 was completed."""
    timeline, files = "10.deltacommit 10.savepoint 30.deltacommit", "b10 b20 l20.1 b30"
    assert pictures(group_v6(timeline, files)) == ["10: b10", "30: b30"]
    assert pictures(group_v6(timeline, files, archived="20.deltacommit")) == ["10: b10", "20: b20 l20.1", "30: b30"]


def test_v6_an_archived_service_instant_makes_nothing_visible() -> None:
    """The archive knows t20 as a clean: a base file of t20 is not committed by that."""
    group = group_v6("10.deltacommit 10.savepoint 30.deltacommit", "b10 b20", archived="20.clean")
    assert pictures(group) == ["10: b10"]


def test_v6_writes_that_are_no_compaction_open_slices() -> None:
    """Small-file handling rewrites the base at t20, clustering at t30 makes one: delta and replace commits count."""
    group = group_v6("10.commit 20.deltacommit 30.replacecommit", "b10 b20 b30")
    assert pictures(group) == ["10: b10", "20: b20", "30: b30"]


# --- versions 8 and 9 -------------------------------------------------------------------------------------------


def test_v8_logs_find_the_newest_base_requested_before_they_completed() -> None:
    """t10 base; t20 completes at 22, t24 at 26; a compaction requested at t25: 20 stays below it, 24 goes on top."""
    group = group_v8("10_12.deltacommit 20_22.deltacommit 24_26.deltacommit 25_29.commit", "b10 l20.1 l24.1 b25")
    assert pictures(group) == ["10: b10 l20.1", "25: b25 l24.1"]


def test_v8_a_log_completing_exactly_at_a_base_instant_is_on_it() -> None:
    """t20 completes at 25, the very instant of the compaction: `completion >= base instant`."""
    assert pictures(group_v8("10_12.deltacommit 20_25.deltacommit 25_29.commit", "b10 l20.1 b25")) == [
        "10: b10",
        "25: b25 l20.1",
    ]


def test_v8_phantom_slice() -> None:
    """t25 is pending: 20 (completed at 22) is in its plan, 24 (completed at 26) is on top of it, both are read."""
    timeline = "10_12.deltacommit 20_22.deltacommit 24_26.deltacommit 25.compaction.requested"
    group = group_v8(timeline, "b10 l20.1 l24.1", facts_of(pending="25"))
    assert pictures(group) == ["10: b10 l20.1", "25: - l24.1"]
    assert picture(latest_slice(group)) == "10: b10 l20.1 l24.1"
    assert picture(latest_slice(group, "23")) == "10: b10 l20.1"
    assert picture(slice_before(group, "25")) == "10: b10 l20.1"


@pytest.mark.parametrize("completed", [True, False])
def test_v8_as_of_a_write_that_a_compaction_was_requested_during(completed: bool) -> None:
    """t24 completed behind t25, so its log lies on slice 25: as of t24 it is read on the slice before."""
    writes = "10_12.deltacommit 20_22.deltacommit 24_26.deltacommit 27_28.deltacommit "
    facts = facts_of(compacted="25") if completed else facts_of(pending="25")
    state, base = ("25_29.commit", "b25") if completed else ("25.compaction.requested", "")
    group = group_v8(writes + state, f"b10 l20.1 l24.1 l27.1 {base}", facts)
    assert picture(latest_slice(group, "23")) == "10: b10 l20.1"
    assert picture(latest_slice(group, "24")) == "10: b10 l20.1 l24.1"


@pytest.mark.parametrize("completed", [True, False])
def test_v8_as_of_the_oldest_write_of_a_group_without_base(completed: bool) -> None:
    """t10 was requested first, but completed behind t25; only t20 was there when the compaction was planned."""
    facts = facts_of(compacted="25") if completed else facts_of(pending="25")
    state, base = ("25_29.commit", "b25") if completed else ("25.compaction.requested", "")
    group = group_v8(f"10_26.deltacommit 20_22.deltacommit {state}", f"l10.1 l20.1 {base}", facts)
    assert latest_slice(group, "09") is None
    assert picture(latest_slice(group, "10")) == "10: - l10.1"
    assert picture(latest_slice(group, "20")) == "20: - l20.1 l10.1"


def test_v8_as_of_a_write_below_the_first_base_of_its_group() -> None:
    """A clustering made the group: as of t10 its rows are those of the group that it replaced."""
    group = group_v8("10_26.deltacommit 25_25.replacecommit", "b25 l10.1")
    assert latest_slice(group, "10") is None


def test_v8_pending_plan_of_another_group() -> None:
    """t25 is pending for another group: this one has one slice."""
    timeline = "10_12.deltacommit 24_26.deltacommit 25.compaction.requested"
    assert pictures(group_v8(timeline, "b10 l24.1")) == ["10: b10 l24.1"]


def test_v8_half_done_compaction() -> None:
    """t25's base file is there, t25 is not completed: the file is ignored, its slice is the phantom one."""
    timeline = "10_12.deltacommit 24_26.deltacommit 25.compaction.inflight"
    group = group_v8(timeline, "b10 b25 l24.1", facts_of(pending="25"))
    assert pictures(group) == ["10: b10", "25: - l24.1"]
    assert picture(latest_slice(group)) == "10: b10 l24.1"


def test_v8_uncommitted_logs_are_dropped() -> None:
    """t20 is inflight, t99 unknown: no completion time, no place."""
    group = group_v8("10_12.deltacommit 20.deltacommit.inflight", "b10 l10.1 l20.1 l99.1")
    assert pictures(group) == ["10: b10 l10.1"]


def test_v8_an_uncommitted_base_does_not_attract_logs() -> None:
    """t20 left a base file and nothing else: Hudi 1.x loses the logs behind it, we keep them on slice 10."""
    group = group_v8("10_12.deltacommit 20.deltacommit.inflight 30_32.deltacommit", "b10 b20 l30.1")
    assert pictures(group) == ["10: b10 l30.1"]


def test_v8_log_only_group() -> None:
    """t10 and t20 log without a base: the first log opens the slice, the second joins it."""
    assert pictures(group_v8("10_12.deltacommit 20_22.deltacommit", "l10.1 l20.1")) == ["10: - l10.1 l20.1"]


def test_v8_a_log_that_completed_before_the_first_base_opens_a_slice() -> None:
    """t10 completed at 12, the base is of t20: slice 10 lies below it."""
    group = group_v8("10_12.deltacommit 20_22.commit 30_32.deltacommit", "l10.1 b20 l30.1")
    assert pictures(group) == ["10: - l10.1", "20: b20 l30.1"]


def test_v8_logs_are_ordered_by_request() -> None:
    """t20 completed after t30: the request decides the order in the slice."""
    assert pictures(group_v8("10_12.deltacommit 20_40.deltacommit 30_32.deltacommit", "b10 l30.1 l20.2 l20.1")) == [
        "10: b10 l20.1 l20.2 l30.1"
    ]


def test_v8_archived_instants_have_their_completion_times() -> None:
    """t05 (completed at 21) and t06 (completed at 08) are archived: 05 lies on base 20, 06 on base 04."""
    group = group_v8(
        "20_22.commit 30_32.deltacommit", "b04 l05.1 l06.1 b20", archived="05_21.deltacommit 06_08.deltacommit"
    )
    assert pictures(group) == ["04: b04 l06.1", "20: b20 l05.1"]


def test_v8_unknown_completion_goes_to_the_newest_slice() -> None:
    """t05 is older than the timeline and in no archive: Hudi reads it on the newest slice, in instant order."""
    group = group_v8("10_12.deltacommit 20_22.commit 30_32.deltacommit", "b10 b20 l05.1 l30.1")
    assert pictures(group) == ["10: b10", "20: b20 l05.1 l30.1"]


def test_v8_unknown_completion_under_a_pending_compaction() -> None:
    """The newest slice of such a log is the phantom one."""
    group = group_v8("10_12.deltacommit 20.compaction.requested", "b10 l05.1", facts_of(pending="20"))
    assert pictures(group) == ["10: b10", "20: - l05.1"]


def test_v8_legacy_completions() -> None:
    """t20 came from version 6 and has no completion in its name: its file's time, 26, puts it on base 25."""
    timeline = "10_12.deltacommit 20.deltacommit 25_29.commit"
    assert pictures(group_v8(timeline, "b10 l20.1 b25", legacy={"20": "26"})) == ["10: b10", "25: b25 l20.1"]
    assert pictures(group_v8(timeline, "b10 l20.1 b25", legacy={"20": "23"})) == ["10: b10 l20.1", "25: b25"]
    assert pictures(group_v8(timeline, "b10 l20.1 b25")) == ["10: b10 l20.1", "25: b25"]


def test_v8_a_completion_time_in_the_name_beats_the_files_time() -> None:
    """The modification time stands in only where the name has none."""
    timeline = "10_12.deltacommit 20_22.deltacommit 25_29.commit"
    assert pictures(group_v8(timeline, "b10 l20.1 b25", legacy={"20": "26"})) == ["10: b10 l20.1", "25: b25"]


# --- both -------------------------------------------------------------------------------------------------------


def test_replaced_group_as_of() -> None:
    """t30 replaced the group: from 30 on it is gone, before it is read."""
    facts = facts_of(replaced="30")
    group = group_v6("10.deltacommit 30.replacecommit", "b10", facts)
    assert is_replaced(group, facts)
    assert is_replaced(group, facts, "30")
    assert not is_replaced(group, facts, "29")
    assert not is_replaced(group, NO_FACTS)


def test_latest_base_for_read_optimized() -> None:
    """The newest base file as of a point in time, whatever logs lie on top of it."""
    group = group_v6("10.deltacommit 20.commit 30.deltacommit", "b10 l10.1 b20 l20.1 l30.1")
    found = [latest_base(group, as_of) for as_of in (None, "30", "20", "19", "09")]
    assert [base and base.name.instant for base in found] == ["20", "20", "20", "10", None]


def test_slice_before_a_compaction() -> None:
    """The newest slice below an instant, with all its logs; nothing where there is none."""
    group = group_v6("10.deltacommit 20.commit 30.deltacommit", "b10 l10.1 b20 l20.1")
    assert picture(slice_before(group, "40")) == "20: b20 l20.1"
    assert picture(slice_before(group, "20")) == "10: b10 l10.1"
    assert slice_before(group, "10") is None


def test_a_time_that_an_archived_write_shares() -> None:
    """Archiving ended between a compaction and a write of one time, which took no lock: what each wrote counts, and
    only the archive shows it. Alone, a base file that the active write does not name is of another attempt."""
    both = "30_31.deltacommit", "30_39.commit"
    for active, archived in (both, both[::-1]):
        mine = "f_0-0-0_30.parquet" if active.endswith(".commit") else ".f_30.log.1_0-0-0"
        compacted = {GROUP: {"30": mine}} if mine.startswith("f_") else {}
        names = NamedFile(path=f"p/{mine}", size=1)
        facts = replace(NO_FACTS, compacted=compacted, witness=Witness.of([("30", {"p": [names]})]))
        listing = listing_of("b10", "b30", "l30.1")
        alone, together = (timeline_of(LAYOUT_2, active, archived=[*more, "10_11.commit"]) for more in ([], [archived]))
        assert may_share_time("p", listing, alone, facts)
        assert not may_share_time("p", listing_of("b10", mine, ".f_30.log.1_0-0-0.cdc"), alone, facts)
        assert (pictures(group_of(alone, listing, facts)) == ["10: b10", "30: b30 l30.1"]) == (active == both[1])
        assert pictures(group_of(together, listing, facts)) == ["10: b10", "30: b30 l30.1"]
        assert together.completion_time("30") == "31"


def test_stray_base_file_of_a_compaction() -> None:
    """Two attempts at t20 left base files; the commit names one, in whatever order they are listed."""
    for files in ("b10 b20 b20x", "b10 b20x b20"):
        group = group_v6("10.deltacommit 20.commit", files, facts_of(compacted="20"))
        (base,) = [s.base for s in group.slices if s.base_instant == "20"]
        assert base is not None
        assert str(base.name) == "f_0-0-0_20.parquet"


def test_stray_base_file_of_an_older_compaction() -> None:
    """So does the commit of t20 when t30 was compacted since: a Hudi compactor that woke up late left the stray."""
    compacted = {GROUP: {t: f"f_0-0-0_{t}.parquet" for t in ("20", "30")}}
    for files in ("b10 b20 b20x b30", "b10 b20x b20 b30"):
        group = group_v6("10.deltacommit 20.commit 30.commit", files, replace(NO_FACTS, compacted=compacted))
        assert [str(s.base.name) for s in group.slices[1:] if s.base] == ["f_0-0-0_20.parquet", "f_0-0-0_30.parquet"]


def test_two_base_files_of_one_instant() -> None:
    """No commit says which of two is valid: that is an error naming both, not a choice."""
    group = group_v6("10.deltacommit", "b10 b10x")
    with pytest.raises(MalformedError, match="two base files") as failure:
        group.slices[0].check_whole()
    assert failure.value.instant == "10"
    assert {failure.value.expected, failure.value.found} == {"f_0-0-0_10.parquet", "f_9-9-9_10.parquet"}


@pytest.mark.parametrize("files", ["b10 l20.1", "b10 b20x", ""])
def test_compaction_names_a_base_file_that_is_gone(files: str) -> None:
    """t20's commit names its base file and it is not listed: reading on would lose the rows in it."""
    timeline = timeline_of(LAYOUT_1, "10.deltacommit", "20.commit")
    (group,) = file_groups("p", listing_of(*files.split()), timeline, facts_of(compacted="20"))
    with pytest.raises(MissingFileError) as failure:
        group.slices[-1].check_whole()
    assert failure.value.path == "p/f_0-0-0_20.parquet"
    assert failure.value.instant == "20"


def test_a_compacted_base_file_that_was_superseded_may_be_cleaned() -> None:
    """t20's base file is gone, but t30 rewrote the base: the cleaner took it."""
    group = group_v6("10.deltacommit 20.commit 30.deltacommit", "b30", facts_of(compacted="20"))
    assert pictures(group) == ["30: b30"]


def test_a_compacted_base_file_of_a_replaced_group_may_be_cleaned() -> None:
    """t30 replaced the whole group, and the cleaner took all its files."""
    facts = replace(facts_of(compacted="20"), replaced={GROUP: "30"})
    timeline = timeline_of(LAYOUT_1, "10.deltacommit", "20.commit", "30.replacecommit")
    assert file_groups("p", [], timeline, facts) == ()


def test_compactions_of_other_partitions_are_not_missed_here() -> None:
    """A commit names a file of partition q: its absence from p is right."""
    facts = replace(NO_FACTS, compacted={("q", "f"): {"20": "f_0-0-0_20.parquet"}})
    assert file_groups("p", [], timeline_of(LAYOUT_1, "20.commit"), facts) == ()


def test_what_lies_beside_data_files() -> None:
    """Change-data files, checksum side files, partition metadata, markers and folders are no data."""
    beside = [
        ".f_10.log.1_0-0-0.cdc",
        ".f_0-0-0_10.parquet.crc",
        "..f_10.log.1_0-0-0.crc",
        ".hoodie_partition_metadata",
        "_SUCCESS",
        ".hidden",
    ]
    entries = [*listing_of("b10", *beside), Entry(name="g_0-0-0_10.parquet", is_folder=True)]
    timeline = timeline_of(LAYOUT_1, "10.deltacommit")
    (group,) = file_groups("p", entries, timeline, NO_FACTS)
    assert pictures(group) == ["10: b10"]


def test_change_data_files_go_with_the_slice_of_their_write() -> None:
    """t10 and t30 write base files, t30 with its changes beside it. Changes of t20 belong to no slice."""
    names = [".f_30.log.1_0-0-0.cdc", ".f_20.log.1_0-0-0.cdc", ".g_10.log.1_0-0-0.cdc"]
    group = group_v6("10.deltacommit 20.deltacommit 30.deltacommit", " ".join(["b10", "b30", "l30.2", *names]))
    assert pictures(group) == ["10: b10", "30: b30 l30.2"]
    assert [[str(file.name) for file in s.changes] for s in group.slices] == [[], names[:1]]


def test_groups_that_a_pending_resize_will_make_are_not_there() -> None:
    """t20 plans a resize of bucket f into g; t30 writes its rows to both."""
    entries = listing_of("b10", "l30.1", ".g_30.log.1_0-0-0")
    timeline = timeline_of(LAYOUT_2, "10.deltacommit", "20.clustering.requested", "30.deltacommit")
    seen = file_groups("p", entries, timeline, NO_FACTS)
    assert [g.file_id for g in seen] == ["f", "g"]
    facts = replace(NO_FACTS, forming=frozenset({("p", "g"), ("q", "f")}))
    assert file_groups("p", entries, timeline, facts) == seen[:1]


@for_each(["f.parquet", "part-00000-1c2d.c000.snappy.parquet", ".f_10.log.x", ".nfs.log.0001"])
def test_a_name_that_only_looks_like_hudis_is_passed_over(name: str) -> None:
    (group,) = file_groups(
        "p",
        [*listing_of("b10"), Entry(name=name, is_folder=False, size=1)],
        timeline_of(LAYOUT_1, "10.deltacommit"),
        NO_FACTS,
    )
    assert pictures(group) == ["10: b10"]


def test_groups_and_sizes() -> None:
    """Groups come by file id; a slice knows its bytes and its files' paths, with and without a partition."""
    timeline = timeline_of(LAYOUT_1, "10.deltacommit")
    entries = [replace(e, size=i) for i, e in enumerate(listing_of("b10", "l10.1", "l10.2", "a_0_10.parquet"), 1)]
    first, second = file_groups("", entries, timeline, NO_FACTS)
    assert [first.file_id, second.file_id] == ["a", "f"]
    (slice_,) = second.slices
    assert (slice_.base_bytes, slice_.log_bytes, slice_.key) == (1, 5, ("", "f"))
    assert slice_.logs[0].path == ".f_10.log.1_0-0-0"
    (other, _) = file_groups("d=0", entries, timeline, NO_FACTS)
    assert other.slices[0].base is not None
    assert other.slices[0].base.path == "d=0/a_0_10.parquet"


def test_log_instants() -> None:
    """The instants in log names, of which a table may have to ask the archive."""
    assert log_instants([*listing_of("b10", "l20.1", "l30.1"), Entry(name="x.log.1", is_folder=True)]) == {"20", "30"}


# --- the timeline behind it -------------------------------------------------------------------------------------


def test_when_the_archive_must_be_asked() -> None:
    """Version 8 asks for completion times of older instants; behind the start only a savepoint can hide some."""
    v6, v8 = (
        timeline_of(LAYOUT_1, "20.deltacommit"),
        timeline_of(LAYOUT_2, "20_21.deltacommit", "30.deltacommit.requested"),
    )
    assert not v6.needs_archive("10")
    assert v8.needs_archive("10")
    assert not v8.needs_archive("20")
    assert not v8.needs_archive("30")
    assert not v8.needs_archive("25")
    assert timeline_of(LAYOUT_1, "20.deltacommit", "20.savepoint").needs_archive("25")


def test_completion_times() -> None:
    """Of completed, pending, archived, forgotten and unknown instants."""
    timeline = timeline_of(LAYOUT_2, "20_21.deltacommit", "30.deltacommit.inflight", archived=["10_19.deltacommit"])
    assert [timeline.completion_time(t) for t in ("20", "30", "10", "05", "25")] == [
        "21",
        None,
        "19",
        UNKNOWN_COMPLETION,
        None,
    ]


def test_writers_and_services() -> None:
    """Pending compactions and clusterings are no writers; the latest completed write is by requested time."""
    timeline = timeline_of(
        LAYOUT_2,
        "10_40.deltacommit",
        "20_30.commit",
        "50.compaction.requested",
        "60.clustering.inflight",
        "70.deltacommit.inflight",
        "80.clean.requested",
        "90_91.rollback",
    )
    assert [i.requested_time for i in timeline.inflight_writers] == ["70"]
    assert [i.requested_time for i in timeline.pending_compactions] == ["50"]
    assert sorted(timeline.pending_writes) == ["50", "60", "70"]
    assert timeline.latest_completed == "20"
    assert max(timeline.used_times()) == "91"
    assert timeline.find("20", "commit") is not None
    assert timeline.find("20", "deltacommit") is None
    assert timeline_of(LAYOUT_2).latest_completed == timeline_of(LAYOUT_2).start == ""


# The view as of a completion time: a timeline, a listing, and what a reader at that moment saw.
#
# Names as in `test_view`; `10_40.deltacommit` was requested at 10 and completed at 40.


def at(time: str, instants: str, files: str, facts: ViewFacts = NO_FACTS, *, archived: str = "") -> str | None:
    """The slice that a reader merges at a completion time."""
    return picture(slice_at(timeline_of(LAYOUT_2, *instants.split(), archived=archived.split()), time, files, facts))


def slice_at(timeline: Timeline, time: str, files: str, facts: ViewFacts) -> FileSlice | None:
    return latest_slice(group_of(timeline.completed_by(time), listing_of(*files.split()), facts))


OVERLAPPING = "10_12.deltacommit 20_40.deltacommit 25_30.deltacommit"


@for_each([("11", None), ("12", "10: b10"), ("30", "10: b10 l25.1"), ("40", "10: b10 l20.1 l25.1")])
def test_requested_first_completed_last(time: str, seen: str | None) -> None:
    """t20 began before t25 and completed after it: between the two only t25 is seen. No requested time says that."""
    assert at(time, OVERLAPPING, "b10 l20.1 l25.1") == seen


def test_a_base_file_of_a_later_completion_is_not_there_yet() -> None:
    """t20 writes a small base file anew and completes last: until then base 10 and the log of t25 are read."""
    assert at("30", OVERLAPPING, "b10 b20 l25.1") == "10: b10 l25.1"
    assert at("40", OVERLAPPING, "b10 b20 l25.1") == "20: b20 l25.1"


def test_a_compaction_counts_from_its_requested_time_on() -> None:
    """t20 changes no row: it may be read before its completion, and what it merged may be cleaned by now."""
    timeline = "10_12.deltacommit 15_16.deltacommit 20_40.commit 25_30.deltacommit"
    facts = facts_of(compacted="20")
    assert at("16", timeline, "b10 l15.1 b20 l25.1", NO_FACTS) == "10: b10 l15.1"
    assert at("30", timeline, "b20 l25.1", facts) == "20: b20 l25.1"


def test_a_pending_compaction_stays_pending() -> None:
    """t20 pends: before its requested time it is no plan yet, afterwards both slices are read as one."""
    timeline = "10_12.deltacommit 20.compaction.requested 25_30.deltacommit"
    assert at("30", timeline, "b10 l25.1", facts_of(pending="20")) == "10: b10 l25.1"
    early = timeline_of(LAYOUT_2, *timeline.split()).completed_by("19")
    assert early.pending_compactions == ()
    assert early.pending_writes.keys() == {"20", "25"}


def test_an_archived_write_that_completed_later_is_pending_again() -> None:
    """t10 and t20 are archived and t20 completed last: older than the active timeline is not committed here."""
    archived = "10_12.deltacommit 20_40.deltacommit 25_30.deltacommit"
    active = "50_52.deltacommit"
    assert at("30", active, "b10 l20.1 l25.1 l50.1", archived=archived) == "10: b10 l25.1"
    assert at("45", active, "b10 l20.1 l25.1 l50.1", archived=archived) == "10: b10 l20.1 l25.1"
    assert at("52", active, "b10 l20.1 l25.1 l50.1", archived=archived) == "10: b10 l20.1 l25.1 l50.1"


def test_a_write_in_both_places_counts_once() -> None:
    """Hudi archives by copying and then deleting."""
    timeline = timeline_of(LAYOUT_2, "20_40.deltacommit", archived=["20_40.deltacommit"])
    assert [i.requested_time for i in timeline.completed_by("30").instants] == ["20"]


def test_a_file_without_completion_time_in_its_name() -> None:
    """Tables upgraded from version 6: the file's modification time stands in."""
    timeline = timeline_of(LAYOUT_2, "10_12.deltacommit", "20.deltacommit", legacy={"20": "33"})
    assert picture(slice_at(timeline, "32", "b10 l20.1", NO_FACTS)) == "10: b10"
    assert picture(slice_at(timeline, "33", "b10 l20.1", NO_FACTS)) == "10: b10 l20.1"
