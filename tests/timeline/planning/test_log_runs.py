"""Pieces of a slice's logs, and which neighbours may be merged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from phantombase.timeline.errors import StalePlanError
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.format.merge_settings import NotGiven
from phantombase.timeline.format.record_key import KeySource
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.log.block import BlockKind, HeaderKey, LogBlock
from phantombase.timeline.log.visibility import Visibility
from phantombase.timeline.merge.gaps import Unset
from phantombase.timeline.merge.rule import MergeRule
from phantombase.timeline.merge.slice_rules import SliceRules
from phantombase.timeline.planning.log_compaction import log_operation, planned_pieces
from phantombase.timeline.planning.log_runs import LogPiece, LogRun, folds_exactly, log_runs
from phantombase.timeline.view.view import DataFile, FileSlice

ALL = Visibility(latest="99", completed=frozenset(), pending=frozenset(), start="", by_file=True)


def blocks(log: str) -> Iterator[LogBlock]:
    """Log files `10 20-del 30(10,20) /20 -20`: rows, with `-del` deletes, `(..)` compacted, `-20` a rollback of 20.

    Each word is a file, named by its number in the row; `+` puts two blocks into one.
    """
    for number, word in enumerate(log.split(), 1):
        for offset, part in enumerate(word.split("+")):
            path = f"d=0/.fg_10.log.{number}_0-0-1"
            if part.startswith("-"):
                headers = {HeaderKey.INSTANT_TIME: "98", HeaderKey.TARGET_INSTANT_TIME: part[1:]}
                yield LogBlock(path=path, offset=offset, kind=BlockKind.COMMAND, headers=headers)
                continue
            found = re.fullmatch(r"(\d+)(?:\((.*)\))?(-del)?", part)
            assert found is not None
            headers = {HeaderKey.INSTANT_TIME: found[1]}
            if found[2]:
                headers[HeaderKey.COMPACTED_BLOCK_TIMES] = found[2]
            kind = BlockKind.DELETE if found[3] else BlockKind.AVRO_DATA
            yield LogBlock(path=path, offset=offset, kind=kind, headers=headers)


def slice_of(log: str) -> FileSlice:
    """The slice with these files."""
    names = (LogFileName(file_id="fg", instant="10", version=n, token="0-0-1") for n in range(1, len(log.split()) + 1))
    logs = tuple(DataFile(partition="d=0", name=name, size=100) for name in names)
    return FileSlice(partition="d=0", file_id="fg", base_instant="10", base=None, logs=logs)


def runs(log: str, *pending: str) -> tuple[LogRun, ...]:
    """Of a slice."""
    return log_runs(slice_of(log), list(blocks(log)), ALL, pending)


def shown(found: tuple[LogRun, ...]) -> str:
    """`[10 20] 30`: runs with their pieces, a run that is the bottom in brackets."""
    texts = (" ".join(p.instant for p in run.pieces) for run in found)
    return " | ".join(f"[{t}]" if run.bottom else t for t, run in zip(texts, found, strict=True))


@pytest.mark.parametrize(
    ("log", "pending", "expected"),
    [
        ("", "", ""),
        ("10 20 30", "", "[10 20 30]"),
        # A write that began between two others may still come between them.
        ("10 20 30", "25", "[10 20] | 30"),
        ("10 20 30", "15 25", "[10] | 20 | 30"),
        # One that began before all of them will lie under them, one that began after them on top.
        ("10 20 30", "05", "10 20 30"),
        ("10 20 30", "35", "[10 20 30]"),
        # A log compaction stands where its newest original stood.
        ("10 20 30(10,20) 40", "", "[30 40]"),
        ("10 20 25 30(10,20)", "", "[30 25]"),
        ("10 20 30(10,20) 40", "25", "[30] | 40"),
        ("10 20 30(10,20) 40 50(30,40) 60", "55", "[50] | 60"),
        ("10 20 30(10,20) 40", "05", "30 40"),
        # Several files of one instant are one piece; a file of two instants is none.
        ("10 10 20", "", "[10 20]"),
        ("10 20+30 40 50", "", "[10] | 40 50"),
        # Of what was rolled back nothing is left; of what was rolled back in part, not all may be taken.
        ("10 20 -20 30", "", "[10 30]"),
        ("10 20 -20 20 30 40", "", "[10] | 30 40"),
    ],
)
def test_runs(log: str, pending: str, expected: str) -> None:
    """Which pieces may be merged with each other."""
    assert shown(runs(log, *pending.split())) == expected


def test_a_piece_names_what_it_stands_for() -> None:
    """Its own files, and those of all log compactions in it; sizes are of what readers merge."""
    ((piece, last),) = (run.pieces for run in runs("10 20 20 30(10,20) 40-del 50(30,40)+50(30,40)-del 60"))
    assert [f.name.version for f in piece.files] == [6]
    assert sorted(f.name.version for f in piece.replaced) == [1, 2, 3, 4, 5]
    assert (piece.log_bytes, piece.place, piece.deletes) == (100, "40", True)
    assert (last.instant, last.deletes) == ("60", False)


def test_the_plan_of_pieces_finds_them_again() -> None:
    """Whatever came behind them since."""
    log = "10 20 30(10,20) 40 50"
    (run,) = runs(log)
    operation = log_operation(slice_of(log), run.pieces[:2])
    assert [LogFileName.parse(n).version for n in operation.delta_file_paths] == [1, 2, 3, 4]
    assert planned_pieces(runs(log + " 60 70"), operation, "C") == (run.pieces[:2], True)
    assert planned_pieces(runs(log + " 60", "05"), operation, "C") == (run.pieces[:2], False)
    upper = log_operation(slice_of(log), run.pieces[1:])
    assert planned_pieces(runs(log), upper, "C") == (run.pieces[1:], False)


@pytest.mark.parametrize(
    ("names", "log", "pending"),
    [
        ((1, 2), "10 20 30", "15"),  # a write may come between
        ((1, 3), "10 20 30", ""),  # not neighbours
        ((1, 2), "10 20 20 30", ""),  # a file of 20 is left out
        ((1, 2), "10 20 30(10)", ""),  # somebody merged 10 with others
    ],
)
def test_what_are_no_neighbours_is_refused(names: tuple[int, ...], log: str, pending: str) -> None:
    """By whoever executes a plan, as by whoever requests it."""
    slice_ = slice_of(log)
    operation = log_operation(slice_, runs("10 20")[0].pieces)
    named = tuple(str(f.name) for f in slice_.logs if f.name.version in names)
    with pytest.raises(StalePlanError, match="cannot be merged with each other"):
        planned_pieces(runs(log, *pending.split()), replace(operation, delta_file_paths=named), "C")


COLUMNS = {"plain": ["id", "ts"], "marked": ["id", "ts", "_hoodie_is_deleted"], "lacking": ["id", "ts"]}


@pytest.mark.parametrize(
    ("mode", "columns", "log", "bottom", "expected"),
    [
        # Rows that lack columns may take them from below, unless a delete in between forgets these.
        (MergeMode.COMMIT_TIME, "lacking", "10 20", True, False),
        (MergeMode.COMMIT_TIME, "marked", "10-del 20", False, True),
        (MergeMode.EVENT_TIME, "plain", "10 20", False, True),
        (MergeMode.EVENT_TIME, "plain", "10-del 20", True, True),
        # A delete without an ordering value, beaten by a row: that row would lose against an older one below.
        (MergeMode.EVENT_TIME, "plain", "10-del 20", False, False),
        (MergeMode.EVENT_TIME, "marked", "10 20", True, False),
        # Readers of 0.15 and 1.x would not agree.
        (MergeMode.EVENT_TIME_0X, "plain", "10 20", True, False),
        (MergeMode.OVERWRITE_WITH_LATEST_0X, "plain", "10 20", True, False),
    ],
)
def test_what_is_folded(mode: MergeMode, columns: str, log: str, bottom: bool, expected: bool) -> None:
    """Only what readers cannot tell from all its entries."""
    rules = SliceRules(
        schema=pa.schema([(name, pa.string()) for name in COLUMNS[columns]]),
        keys=KeySource.of(True, ("id",)),
        ordering_fields=("ts",),
        merge=MergeRule(
            mode=mode,
            ordering_types=(pa.string(),),
            unset=Unset(values=NotGiven()) if columns == "lacking" else None,
        ),
        visibility=ALL,
        float_text_in_logs=True,
    )
    pieces: tuple[LogPiece, ...] = runs(log)[0].pieces
    assert folds_exactly(rules, pieces, bottom=bottom) is expected
    assert not folds_exactly(rules, [replace(piece, partial=True) for piece in pieces], bottom=bottom)
