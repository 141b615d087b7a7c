"""Log files of one block that are known to be mergeable by their front: never one that `check_slice` would refuse."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from phantombase.timeline.errors import MissingFileError, PhantombaseError
from phantombase.timeline.format.file_name import LogFileName
from phantombase.timeline.format.log_block import Visibility
from phantombase.timeline.format.record_key import KeySource
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.merge.rule import MergeRule, SliceRules
from phantombase.timeline.merge.slice_log import KnownBlocks, check_slice
from phantombase.timeline.read.incremental import Origin, Origins
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.view.view import DataFile, FileSlice
from tests.support.builders import (
    AVRO,
    CDC,
    HFILE,
    INSTANT_TIME,
    IS_PARTIAL,
    PARQUET,
    SCHEMA,
    avro_block,
    avro_schema,
    block,
    delete_block,
    rollback_block,
)

TEXT = avro_schema(("id", "string"), ("ts", "long"))
RULES = SliceRules(
    schema=pa.schema([("id", pa.string()), ("ts", pa.int64())]),
    keys=KeySource.of(True, ("id",)),
    ordering_fields=("ts",),
    merge=MergeRule(mode=MergeMode.EVENT_TIME, ordering_types=(pa.int64(),)),
    visibility=Visibility(latest="9" * 17, completed=frozenset(), pending=frozenset(), start="", by_file=True),
    float_text_in_logs=True,
)
FIRST, SECOND = "20261124000000001", "20261124000000002"


def rows(instant: str, count: int = 1) -> bytes:
    """A block of rows."""
    return avro_block(instant, TEXT, [{"id": f"k{n}", "ts": n} for n in range(count)])


def parquet(instant: str) -> bytes:
    """A block whose content is not looked at."""
    return block(PARQUET, {INSTANT_TIME: instant, SCHEMA: TEXT}, b"anything at all")


class Logs:
    """Log files of one slice each, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self.storage = LocalStorage(str(folder))
        self.known = KnownBlocks(self.storage, RULES)

    def held(self, data: bytes) -> bool:
        """Whether a file of these bytes is known; if it is, it can be merged."""
        name = LogFileName(file_id="f", instant=FIRST, version=self._count, token="0-0-0")
        self._count += 1
        (self._folder / str(name)).write_bytes(data)
        log = DataFile(partition="", name=name, size=len(data))
        held = self.known.hold(log.path)
        if held:
            check_slice(
                self.storage, FileSlice(partition="", file_id="f", base_instant="1", base=None, logs=(log,)), RULES
            )
        (self._folder / str(name)).unlink()
        return held


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def test_blocks_of_one_writer_are_known(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, deletes and Parquet; of each kind one is judged."""
    judged: Counter[str] = Counter()
    judge = logs.known._judge

    def counted(source: pa.NativeFile, path: str) -> bool:
        judged["all"] += 1
        return judge(source, path)

    monkeypatch.setattr(logs.known, "_judge", counted)
    long = avro_schema(("id", "string"), ("ts", "long"), *((f"column_{n}", ["null", "string"]) for n in range(300)))
    for instant in (FIRST, SECOND):
        for number in (1, 2, 200):
            assert logs.held(rows(instant, number))
            assert logs.held(delete_block(instant, [(f"k{n}", None) for n in range(number)]))
            assert logs.held(parquet(instant))
            assert logs.held(block(AVRO, {INSTANT_TIME: instant, SCHEMA: long}, b"\0\0\0\3\0\0\0\0"))
    assert judged["all"] == 4


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"#HUDI#",
        rows(FIRST) + rows(FIRST),
        rows(FIRST) + b"torn",
        rows(FIRST)[:-1],
        rollback_block(FIRST, SECOND),
        block(HFILE, {INSTANT_TIME: FIRST, SCHEMA: TEXT}, b"12345678"),
        block(CDC, {INSTANT_TIME: FIRST, SCHEMA: TEXT}, b"12345678"),
        block(AVRO, {INSTANT_TIME: FIRST, SCHEMA: TEXT}, b"\0\0\0\2\0\0\0\0"),
        block(AVRO, {INSTANT_TIME: FIRST, SCHEMA: TEXT}, b"\0\0\0\3\xff\0\0\0"),
        block(AVRO, {INSTANT_TIME: FIRST, SCHEMA: TEXT}, b"\0\0\0\3"),
        block(AVRO, {INSTANT_TIME: FIRST, SCHEMA: TEXT, IS_PARTIAL: "true"}, b"\0\0\0\3\0\0\0\0").replace(
            b'"ts"', b'"tt"'
        ),
        block(AVRO, {INSTANT_TIME: FIRST, SCHEMA: TEXT}, b"\0\0\0\3\0\0\0\0", version=2),
        b"#HUDI#" + bytes(60),
        # Its end is torn, so a reader goes on at the next magic, which is inside.
        block(AVRO, {INSTANT_TIME: FIRST, SCHEMA: TEXT}, b"\0\0\0\3\0\0\0\0" + block(HFILE, {INSTANT_TIME: FIRST}))[:-1]
        + b"!",
    ],
)
@pytest.mark.parametrize("learned", [False, True], ids=["first", "after sound ones"])
def test_everything_else_is_left_to_the_check(logs: Logs, data: bytes, learned: bool) -> None:
    """Also when sound blocks of the same front are known."""
    if learned:
        assert all(map(logs.held, (rows(FIRST), parquet(FIRST), delete_block(FIRST, [("k", None)]))))
    assert not logs.held(data)


def test_a_column_that_no_compaction_may_merge_is_not_known(logs: Logs) -> None:
    """A change log's own column."""
    schema = avro_schema(("id", "string"), ("ts", "long"), ("_hoodie_operation", ["null", "string"]))
    assert logs.held(rows(FIRST))
    assert not logs.held(block(AVRO, {INSTANT_TIME: FIRST, SCHEMA: schema}, b"\0\0\0\3\0\0\0\0"))


def test_a_file_that_is_gone_is_an_error(logs: Logs) -> None:
    """It is no answer."""
    with pytest.raises(MissingFileError):
        logs.known.hold("nothing")


def test_mutated_files_are_never_taken_for_sound_ones(logs: Logs) -> None:
    """Bytes of the front and of the end are changed, swapped between kinds, cut and repeated."""
    sound = [rows(FIRST, 3), rows(SECOND, 40), delete_block(FIRST, [("a", None)]), parquet(SECOND)]
    assert all(map(logs.held, sound))
    rng, seen = Random(1), Counter[bool]()
    for _ in range(3000):
        data = bytearray(rng.choice(sound))
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            place = rng.randrange(min(60, len(data))) if rng.random() < 0.5 else rng.randrange(len(data))
            match rng.randrange(5):
                case 0 | 1:
                    data[place] = rng.choice((0, 1, 2, 3, 127, 128, 255, rng.randrange(256)))
                case 2:
                    del data[place : place + rng.choice((1, 2, 8))]
                case 3:
                    data[place:place] = rng.randbytes(rng.choice((1, 4, 8)))
                case _:
                    end = -rng.randrange(1, 24)
                    data[end:] = rng.choice(sound)[end:]
        try:
            seen[logs.held(bytes(data))] += 1
        except PhantombaseError as error:
            pytest.fail(f"{bytes(data)!r} was known: {error}")
    assert min(seen[True], seen[False]) > 100, seen


# Stamps of table services give way to the times of the writes.


LOGS = Origin(stamps=frozenset({"3"}), slices=())
CLUSTERED = Origin(stamps=frozenset({"5"}), slices=())


def origins_rows(**times: str) -> pa.RecordBatch:
    return pa.record_batch({"_hoodie_record_key": list(times), "_hoodie_commit_time": list(times.values())})


def test_a_stamp_is_followed_through_all_services() -> None:
    """A clustering took in what a log compaction had stamped; what no origin knows keeps its stamp."""
    read = {LOGS: [origins_rows(a="1"), origins_rows(b="2")], CLUSTERED: [origins_rows(a="3", b="3", c="4")]}
    (found,) = Origins(origins=[LOGS, CLUSTERED], read=read.__getitem__).restored(
        [origins_rows(a="5", b="3", c="5", d="5", e="6")]
    )
    assert found.to_pydict() == origins_rows(a="1", b="2", c="4", d="5", e="6").to_pydict()


def test_an_origin_is_read_once_and_only_if_a_row_has_its_stamp() -> None:
    asked: list[Origin] = []

    def read(origin: Origin) -> list[pa.RecordBatch]:
        asked.append(origin)
        return []

    origins = Origins(origins=[LOGS, CLUSTERED], read=read)
    list(origins.restored([origins_rows(a="1"), origins_rows(a="3"), origins_rows(b="3")]))
    assert asked == [LOGS]
