"""The timeline as the witness of files: what completed writes name is there as named, or its slice has a flaw."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from phantombase.timeline.errors import MalformedError, MissingFileError
from phantombase.timeline.format.layout import LAYOUT_1, LAYOUT_2, Layout
from phantombase.timeline.format.log_block import HeaderKey, Skipped, select_blocks
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.view.grouping import file_groups
from phantombase.timeline.view.log_blocks import slice_blocks, visibility_of
from phantombase.timeline.view.view import FileGroup, FileSlice, latest_base_slice, latest_slice
from phantombase.timeline.view.witness import NamedFile, NamedFiles, Witness
from tests.support.builders import NO_FACTS, block, listing_of, pictures, timeline_of


def named(write: str, *files: str, size: int = 1) -> tuple[str, list[NamedFile]]:
    """What one write names, in shorthand."""
    return write, [NamedFile(path=f"p/{entry.name}", size=size) for entry in listing_of(*files)]


def seen(
    timeline: Timeline, files: str, *writes: tuple[str, Iterable[NamedFile] | None], sizes: int = 1
) -> tuple[FileGroup, ...]:
    entries = [replace(entry, size=sizes) for entry in listing_of(*files.split())]
    return file_groups(
        "p",
        entries,
        timeline,
        replace(
            NO_FACTS,
            witness=Witness.of((time, None if files is None else {"p": list(files)}) for time, files in writes),
        ),
    )


V6 = timeline_of(LAYOUT_1, "10.deltacommit", "20.deltacommit")
V8 = timeline_of(LAYOUT_2, "10_11.deltacommit", "20_21.deltacommit")


def flawed(slice_: FileSlice | None) -> list[tuple[str, str, int | None]]:
    assert slice_ is not None
    return [(flaw.path, flaw.instant, flaw.found) for flaw in slice_.flaws]


@pytest.mark.parametrize(("timeline", "log"), [(V6, "l10.1"), (V8, "l20.1")], ids=["v6", "v8"])
def test_a_file_that_is_gone_leaves_its_place(timeline: Timeline, log: str) -> None:
    """The log file lies on the base file that is gone: alone it is no slice."""
    writes = named("10", "b10"), named("20", log)
    (group,) = seen(timeline, log, *writes)
    assert pictures(group) == [f"10: - {log}"]
    assert flawed(latest_slice(group)) == [("p/f_0-0-0_10.parquet", "10", None)]
    with pytest.raises(MissingFileError, match="expected 1 bytes"):
        group.slices[0].check_whole()
    (group,) = seen(timeline, "b10", *writes)
    assert [path for path, *_ in flawed(latest_slice(group))] == [f"p/{listing_of(log)[0].name}"]
    (group,) = seen(timeline, "", *writes)
    assert len(group.flaws) == 2
    assert all(flaw.is_alone for flaw in group.flaws)


def test_a_read_optimized_reader_misses_base_files_alone() -> None:
    (group,) = seen(V8, "b10", named("10", "b10"), named("20", "l20.1"))
    assert flawed(latest_base_slice(group)) == []
    (group,) = seen(V8, "l20.1", named("10", "b10"), named("20", "l20.1"))
    assert flawed(latest_base_slice(group)) == [("p/f_0-0-0_10.parquet", "10", None)]


@pytest.mark.parametrize(("size", "base", "log"), [(9, True, True), (1, False, False), (0, False, False)])
def test_sizes(size: int, base: bool, log: bool) -> None:
    """A base file is as long as its write left it, a log file at least that; 0 is a size that nobody recorded."""
    (group,) = seen(V6, "b10 l10.1", named("10", "b10", size=size), named("20", "l10.1", size=size), sizes=1)
    assert [flaw.is_base for flaw in group.flaws] == [True] * base + [False] * log
    (group,) = seen(V6, "b10 l10.1", named("10", "b10", size=4), named("20", "l10.1", size=4), sizes=5)
    assert [flaw.is_base for flaw in group.flaws] == [True]
    with pytest.raises(MalformedError, match="expected 4 bytes; found 5 bytes"):
        group.slices[0].check_whole()


@pytest.mark.parametrize("compaction", ["30_31.commit", "30.compaction.requested"])
def test_a_lost_log_file_on_a_later_base_is_missed_in_a_past_state(compaction: str) -> None:
    """Its write was requested before the base of its slice and completed after it."""
    timeline = timeline_of(LAYOUT_2, "10_11.deltacommit", "20_35.deltacommit", compaction)
    is_done = compaction.endswith("commit")
    writes = named("10", "b10"), named("20", "l20.1"), *([named("30", "b30")] if is_done else [])
    witness = Witness.of((time, {"p": files}) for time, files in writes)
    facts = replace(NO_FACTS, witness=witness, pending_plans={} if is_done else {("p", "f"): "30"})
    entries = [replace(entry, size=1) for entry in listing_of("b10", *(["b30"] if is_done else []))]
    (group,) = file_groups("p", entries, timeline, facts, as_of="20")
    assert flawed(latest_slice(group, "20")) == [(f"p/{listing_of('l20.1')[0].name}", "20", None)]
    assert flawed(latest_slice(group, "10")) == []


@pytest.mark.parametrize("as_of", [None, "20"])
@pytest.mark.parametrize(("base", "flaws"), [("", 1), ("b04", 1), ("b05", 0), ("b20x", 0)])
def test_a_lost_base_file_of_an_archived_write(base: str, flaws: int, as_of: str | None) -> None:
    """The log file of an active write lies on it; a newer one may have taken its place."""
    below = NamedFile(path=f"p/{listing_of('b05')[0].name}", size=0, is_below=True)
    _, own = named("20", "l05.1", *([base] if base == "b20x" else []))
    entries = listing_of(*f"{base} l05.1".split())
    facts = replace(NO_FACTS, witness=Witness.of([("20", {"p": [*own, below]})]))
    (group,) = file_groups("p", [replace(e, size=1) for e in entries], V6, facts, as_of=as_of)
    assert [flaw.path for flaw in group.flaws] == [below.path] * flaws


def test_a_lost_base_file_that_the_metadata_table_alone_names() -> None:
    """Its write's file cannot be read; the file below, which an older write names, is not the newest."""
    lost = listing_of("b20")[0].name
    witness = replace(Witness.of([("10", {"p": named("10", "b10")[1]}), ("20", None)]), listed={"p": {lost: 1}})
    entries = [replace(entry, size=1) for entry in listing_of("b10")]
    (group,) = file_groups("p", entries, V6, replace(NO_FACTS, witness=witness))
    assert flawed(latest_slice(group)) == [(f"p/{lost}", "20", None)]


def test_a_lost_base_file_of_a_replaced_group_opens_no_slice() -> None:
    facts = replace(NO_FACTS, witness=Witness.of([("10", {"p": named("10", "b10")[1]})]), replaced={("p", "f"): "20"})
    (group,) = file_groups("p", listing_of("b05"), V6, facts)
    assert pictures(group) == ["05: b05"]


def test_a_base_file_that_a_past_state_does_not_have_yet() -> None:
    """Log files of later writes lie on it, or a plan merges it; at the moment that is read it had not completed."""
    below = NamedFile(path=f"p/{listing_of('b30')[0].name}", size=0, is_below=True)
    (group,) = seen(V6, "b10 b30", named("10", "b10"), ("20", [below]))
    assert (pictures(group), group.flaws) == (["10: b10"], ())


def test_what_a_clean_took_is_not_missed() -> None:
    """A newer base file has taken the place of both."""
    timeline = timeline_of(LAYOUT_2, "10_11.deltacommit", "20_21.deltacommit", "30_31.commit")
    writes = named("10", "b10"), named("20", "l20.1"), named("30", "b30")
    (group,) = seen(timeline, "b30", *writes)
    assert (pictures(group), group.flaws) == (["30: b30"], ())
    (group,) = seen(timeline, "b10 b30", *writes)
    assert (pictures(group), group.flaws) == (["10: b10", "30: b30"], ())


def test_a_log_file_of_an_upgraded_table_may_be_cleaned() -> None:
    """Its name has an archived instant, which does not tell its slice: its own write does."""
    timeline = timeline_of(LAYOUT_2, "20_21.deltacommit", "30_31.commit", "40_41.deltacommit")
    (group,) = seen(timeline, "b30", named("20", "l10.1"), named("30", "b30"))
    assert group.flaws == ()
    (group,) = seen(timeline, "b30", named("40", "l10.1"), named("30", "b30"))
    assert [flaw.is_base for flaw in group.flaws] == [False]


def test_another_attempts_files_are_not_the_tables() -> None:
    """On version 6 the name of a log file does not tell its write: its blocks do."""
    (group,) = seen(V8, "b10 b10x l20.1 .f_20.log.1_9-9-9", named("10", "b10"), named("20", "l20.1"))
    assert (pictures(group), group.flaws) == (["10: b10 l20.1"], ())
    assert str(group.slices[0].logs[0].name.token) == "0-0-0"
    (group,) = seen(V6, "b10x b10", named("10", "b10"))
    assert str(group.slices[0].base and group.slices[0].base.name.token) == "0-0-0"


def test_log_files_of_an_upgraded_table_are_not_judged_by_their_names() -> None:
    """Completed before the upgrade: no completion time in the name of the completed file."""
    timeline = timeline_of(LAYOUT_2, "10.deltacommit", "20_21.deltacommit")
    (group,) = seen(timeline, "b10 l10.1", named("10", "b10"), named("20"))
    assert pictures(group) == ["10: b10 l10.1"]


def test_where_the_files_of_a_write_are_not_known() -> None:
    """Its completed file is torn: two base files are an error of their own group, a log file counts."""
    (group,) = seen(V8, "b10 b10x l20.1", ("10", None), named("20", "l20.1"))
    assert pictures(group) == ["10: b10 l20.1"]
    with pytest.raises(MalformedError, match="two base files"):
        group.slices[0].check_whole()


@pytest.mark.parametrize(("layout", "log"), [(LAYOUT_1, "l10.1"), (LAYOUT_2, "l20.1")], ids=["v6", "v8"])
class TestBlocks:
    """What the blocks of a log file show."""

    def blocks(
        self,
        layout: Layout,
        log: str,
        data: bytes,
        tmp_path: Path,
        *writes: tuple[str, list[NamedFile]],
        saved: bool = False,
    ) -> list[tuple[str, Skipped | None]]:
        """Instant and outcome of each block."""
        name = listing_of(log)[0].name
        (tmp_path / "p").mkdir()
        (tmp_path / "p" / name).write_bytes(data)
        suffix = ("_11", "_21") if layout is LAYOUT_2 else ("", "")
        timeline = timeline_of(layout, f"10{suffix[0]}.deltacommit", f"20{suffix[1]}.deltacommit")
        (group,) = seen(timeline, f"b10 {log}", named("10", "b10"), *writes, sizes=len(data) or 1)
        slice_ = replace(group.slices[0], flaws=())
        found = slice_blocks(LocalStorage(str(tmp_path)), slice_)
        chosen = select_blocks(found, visibility_of(timeline))
        outcomes = {b.offset: reason for b, reason in chosen.skipped}
        return [(b.headers.get(HeaderKey.INSTANT_TIME, ""), outcomes.get(b.offset)) for b in found]

    def named(self, log: str, data: bytes) -> tuple[str, list[NamedFile]]:
        return "20", [NamedFile(path=f"p/{listing_of(log)[0].name}", size=len(data))]

    def test_a_damaged_block_of_a_completed_write_is_an_error(self, layout: Layout, log: str, tmp_path: Path) -> None:
        data = block(3, {0: "20", 2: "{}"}, b"rows")
        torn = data[:6] + b"\xff" + data[7:]
        with pytest.raises(MalformedError, match="a corrupt block at byte 0"):
            self.blocks(layout, log, torn, tmp_path, self.named(log, torn))

    def test_a_block_of_another_instant_is_an_error(self, layout: Layout, log: str, tmp_path: Path) -> None:
        data = block(3, {0: "21", 2: "{}"}, b"rows")
        with pytest.raises(MalformedError, match="no block of this instant"):
            self.blocks(layout, log, data, tmp_path, self.named(log, data))

    def test_what_a_dead_writer_left_before_and_behind_is_passed_over(
        self, layout: Layout, log: str, tmp_path: Path
    ) -> None:
        """The write began behind the first torn block, and ended before the last one."""
        data, torn = block(3, {0: "20", 2: "{}"}, b"rows"), block(3, {0: "15", 2: "{}"}, b"dead")[:-3]
        mine = "20", [NamedFile(path=f"p/{listing_of(log)[0].name}", size=len(torn + data), offset=len(torn))]
        found = self.blocks(layout, log, torn + data + torn, tmp_path, mine)
        assert found == [("", Skipped.CORRUPT), ("20", None), ("", Skipped.CORRUPT)]


class TestBlocksOfOtherAttempts:
    """On version 6, where only its blocks show whose a log file is."""

    def group(self, tmp_path: Path, data: bytes, *, saved: bool = False) -> tuple[FileSlice, Timeline]:
        timeline = timeline_of(LAYOUT_1, "10.deltacommit", "20.deltacommit", *(["10.savepoint"] if saved else []))
        (tmp_path / "p").mkdir()
        (tmp_path / "p" / listing_of("l10.1")[0].name).write_bytes(data)
        (group,) = seen(timeline, "b10 l10.1", named("10", "b10"), named("20"))
        return group.slices[0], timeline

    def test_its_blocks_do_not_count(self, tmp_path: Path) -> None:
        slice_, timeline = self.group(tmp_path, block(3, {0: "20", 2: "{}"}, b"rows"))
        chosen = select_blocks(slice_blocks(LocalStorage(str(tmp_path)), slice_), visibility_of(timeline))
        assert [reason for _, reason in chosen.skipped] == [Skipped.NOT_NAMED]

    def test_it_need_not_be_readable(self, tmp_path: Path) -> None:
        slice_, _ = self.group(tmp_path, b"no log at all")
        assert [b.kind.name for b in slice_blocks(LocalStorage(str(tmp_path)), slice_)] == ["CORRUPT"]

    def test_unless_an_archived_write_may_have_written_it(self, tmp_path: Path) -> None:
        """Archiving passes a savepoint."""
        slice_, _ = self.group(tmp_path, b"no log at all", saved=True)
        with pytest.raises(MalformedError, match="does not continue with a block"):
            slice_blocks(LocalStorage(str(tmp_path)), slice_)


def test_of_a_lost_partition_a_snapshot_needs_one_group() -> None:
    """One that stops who needs the partition: not one that a completed write has replaced."""
    files = {
        "p": [
            NamedFile(path=f"p/{entry.name}", size=1)
            for entry in listing_of("a_0-0-0_10.parquet", "b_0-0-0_10.parquet")
        ]
    }
    facts = replace(NO_FACTS, witness=Witness.of([("10", files)]))
    (one,) = file_groups("p", (), V6, facts, brief=True)
    assert (one.file_id, [f.found for f in one.flaws]) == ("a", [None])
    (one,) = file_groups("p", (), V6, replace(facts, replaced={("p", "a"): "20"}), brief=True)
    assert (one.file_id, [f.found for f in one.flaws]) == ("b", [None])
    assert [g.file_id for g in file_groups("p", (), V6, facts)] == ["a", "b"]


def test_the_files_of_a_partition_are_made_when_they_are_asked_for() -> None:
    """A huge commit costs who reads one partition of it little."""
    made = list[str]()

    def make(stat: str) -> list[NamedFile]:
        made.append(stat)
        return [NamedFile(path=stat, size=1)]

    witness = Witness.of([("10", NamedFiles({"p": ["p/a_0-0-0_10.parquet"], "q": ["q/b_0-0-0_10.parquet"]}, make))])
    assert (witness.partitions, made) == ({"p", "q"}, [])
    assert witness.ids_in("p") == {"a"}
    assert made == ["p/a_0-0-0_10.parquet"]
