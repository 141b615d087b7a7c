"""Stamps of table services give way to the times of the writes."""

from __future__ import annotations

import pyarrow as pa

from phantombase.timeline.read.origins import Origin, Origins

LOGS = Origin(stamps=frozenset({"3"}), slices=())
CLUSTERED = Origin(stamps=frozenset({"5"}), slices=())


def rows(**times: str) -> pa.RecordBatch:
    return pa.record_batch({"_hoodie_record_key": list(times), "_hoodie_commit_time": list(times.values())})


def test_a_stamp_is_followed_through_all_services() -> None:
    """A clustering took in what a log compaction had stamped; what no origin knows keeps its stamp."""
    read = {LOGS: [rows(a="1"), rows(b="2")], CLUSTERED: [rows(a="3", b="3", c="4")]}
    (found,) = Origins(origins=[LOGS, CLUSTERED], read=read.__getitem__).restored(
        [rows(a="5", b="3", c="5", d="5", e="6")]
    )
    assert found.to_pydict() == rows(a="1", b="2", c="4", d="5", e="6").to_pydict()


def test_an_origin_is_read_once_and_only_if_a_row_has_its_stamp() -> None:
    asked: list[Origin] = []

    def read(origin: Origin) -> list[pa.RecordBatch]:
        asked.append(origin)
        return []

    origins = Origins(origins=[LOGS, CLUSTERED], read=read)
    list(origins.restored([rows(a="1"), rows(a="3"), rows(b="3")]))
    assert asked == [LOGS]
