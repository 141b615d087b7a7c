"""Peak memory of merging one slice, to compact it and to read it, while its log data grows and the limit stays.

    python -m bench.memory [--quick]

One file slice: a base file of 500 k rows, and 1, 4 and 16 times 96 MiB of Avro log blocks (quick: 24 MiB) in which
every record has a key of its own, half of them in the base: nothing can be forgotten early. Each is compacted by
the product's own slice task in a process of its own under `--memory-limit 256m`, and once without a limit
for comparison; then the same slices are read, batch by batch, by the product's own slice stream. The peak is that of
private memory: pages of mapped files are not in it.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from bench.processes import run
from bench.report import Goal, Report
from phantombase.timeline.codec.avro_schema import META_COLUMNS

if TYPE_CHECKING:
    from phantombase.timeline.merge.rule import SliceRules
    from phantombase.timeline.view.view import FileSlice

_LIMIT_BYTES = 256 << 20
_FACTORS = (1, 4, 16)
_BLOCK_RECORDS = 200_000
_BASE_ROWS = 500_000
_NOTE_BYTES = 120
_FLAT_MAX = 1.25
"""Peak at 16 times the log data against that at once."""

SCHEMA = pa.schema([*((name, pa.string()) for name in META_COLUMNS), ("ts", pa.int64()), ("note", pa.string())])
AVRO = json.dumps(
    {
        "type": "record",
        "name": "t",
        "fields": [{"name": name, "type": ["null", "string"], "default": None} for name in META_COLUMNS]
        + [{"name": "ts", "type": "long"}, {"name": "note", "type": "string"}],
    }
)


def main() -> int:
    """Command line; exit code 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description="Peak memory while log data grows and the limit stays.")
    parser.add_argument("--quick", action="store_true", help="a quarter of the log data")
    parser.add_argument("--one", nargs=4, metavar=("WORK", "FOLDER", "LOGS", "LIMIT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        work, folder, logs, limit = arguments.one
        print(json.dumps({"rows": _WORK[work](folder, int(logs), int(limit) or None)}))
        return 0
    report = Report(bench="memory")
    with tempfile.TemporaryDirectory(prefix="phantombase-bench-") as folder:
        log_bytes = _write(Path(folder), (24 if arguments.quick else 96) << 20)
        report.facts |= {"limit_mib": _LIMIT_BYTES >> 20, "log_mib": [f * log_bytes >> 20 for f in _FACTORS]}
        for work in _WORK:
            _measure(report, folder, work)
    return report.finish()


def _measure(report: Report, folder: str, work: str) -> None:
    peaks = {}
    for factor, limit in [*((f, _LIMIT_BYTES) for f in _FACTORS), (_FACTORS[-1], 0)]:
        name = f"{work}_x{factor}" if limit else f"{work}_x{factor}_no_limit"
        ran = run([sys.executable, "-m", "bench.memory", "--one", work, folder, str(factor), str(limit)])
        peaks[factor, limit] = ran.peak_private_bytes
        report.facts[f"rows_{name}"] = ran.answer["rows"]
        report.timed(name, [ran.seconds])
        report.figure(f"peak_mib_{name}", ran.peak_private_bytes / (1 << 20))
    flat = Goal(figure=f"{work}_peak_x16_to_x1", limit=_FLAT_MAX, at_least=False)
    report.figure(flat.figure, peaks[_FACTORS[-1], _LIMIT_BYTES] / peaks[1, _LIMIT_BYTES], flat)


def _write(folder: Path, log_bytes: int) -> int:
    """A base file and the greatest number of log files, each of about `log_bytes`; returns the size of one."""
    base = _records(np.arange(_BASE_ROWS) * 2)
    pq.write_table(_as_arrow(base), folder / _base_name(), row_group_size=125_000)
    size = 0
    per_file = log_bytes // base.dtype.itemsize
    for number in range(_FACTORS[-1]):
        first = number * per_file
        with (folder / _log_name(number)).open("wb") as file:
            for start in range(first, first + per_file, _BLOCK_RECORDS):
                keys = np.arange(start, min(start + _BLOCK_RECORDS, first + per_file))
                file.write(_block(_records(keys)))
            size = file.tell()
    return size


def _base_name() -> str:
    return "f_0-0-0_1.parquet"


def _log_name(number: int) -> str:
    return f".f_1.log.{number + 1}_0-0-0"


def _records(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    """Avro records of one width: texts of fixed length, times whose varints have five bytes."""
    text = np.char.zfill(keys.astype("U9"), 9).astype("S9")
    kind = np.dtype(
        {
            "names": ["length", "t0", "time", "t1", "seq", "t2", "key", "nulls", "ts", "t3", "note"],
            "formats": [">i4", "S2", "S3", "S2", "S12", "S2", "S9", "S2", "S5", "S2", f"S{_NOTE_BYTES}"],
        }
    )
    records = np.zeros(len(keys), kind)
    records["length"] = kind.itemsize - 4
    for tag, name, width in (("t0", "time", 3), ("t1", "seq", 12), ("t2", "key", 9)):
        records[tag] = bytes([2, 2 * width])
        records[name] = {"time": b"002", "seq": np.char.add(b"002", text), "key": text}[name]
    records["t3"] = bytes([2 * _NOTE_BYTES & 0x7F | 0x80, _NOTE_BYTES >> 6])
    records["note"] = np.char.multiply(text, _NOTE_BYTES // 9 + 1).astype(f"S{_NOTE_BYTES}")
    records["ts"] = b"\x80\x80\x80\x80\x01"
    return records


def _as_arrow(records: npt.NDArray[np.void]) -> pa.Table:
    count = len(records)
    texts = {name: pa.array(records[name].astype(str)) for name in ("time", "seq", "key", "note")}
    columns = [texts["time"], texts["seq"], texts["key"], pa.nulls(count, pa.string()), pa.nulls(count, pa.string())]
    return pa.Table.from_arrays([*columns, pa.array(np.zeros(count, np.int64)), texts["note"]], schema=SCHEMA)


def _block(records: npt.NDArray[np.void]) -> bytes:
    """A log block: framing, headers, content."""
    content = struct.pack(">ii", 3, len(records)) + records.tobytes()
    headers = struct.pack(">i", 2) + b"".join(
        struct.pack(">ii", key, len(value)) + value for key, value in ((0, b"2"), (2, AVRO.encode()))
    )
    body = struct.pack(">ii", 1, 3) + headers + struct.pack(">q", len(content)) + content + struct.pack(">i", 0)
    return b"#HUDI#" + struct.pack(">q", len(body) + 8) + body + struct.pack(">q", len(body) + 14)


def _slice(folder: str, logs: int) -> FileSlice:
    from phantombase.timeline.format.file_name import BaseFileName, LogFileName
    from phantombase.timeline.view.view import DataFile, FileSlice

    def size(name: str) -> int:
        return (Path(folder) / name).stat().st_size

    base, names = _base_name(), [_log_name(i) for i in range(logs)]
    return FileSlice(
        partition="",
        file_id="f",
        base_instant="1",
        base=DataFile(partition="", name=BaseFileName.parse(base), size=size(base)),
        logs=tuple(DataFile(partition="", name=LogFileName.parse(n), size=size(n)) for n in names),
    )


def _rules(folder: str, limit: int | None) -> SliceRules:
    from phantombase.timeline.format.log_block import Visibility
    from phantombase.timeline.format.record_key import KeySource
    from phantombase.timeline.format.table_config import MergeMode
    from phantombase.timeline.merge.rule import MergeRule, SliceRules

    return SliceRules(
        schema=SCHEMA,
        keys=KeySource.of(True, ()),
        ordering_fields=(),
        merge=MergeRule(mode=MergeMode.COMMIT_TIME, ordering_types=()),
        visibility=Visibility(latest="9", completed=frozenset(), pending=frozenset(), start="1", by_file=True),
        float_text_in_logs=True,
        memory_bytes=limit,
        spill_folder=folder,
    )


def _compact(folder: str, logs: int, limit: int | None) -> int:
    from dataclasses import replace

    from phantombase.compactor_daemon.attempt.slice_task import SliceChunk, SliceTask, StageSpec, compact_slice
    from phantombase.timeline.codec.output_options import OutputOptions
    from phantombase.timeline.storage.local import LocalStorage

    common = StageSpec(
        instant="3",
        attempt=1,
        rules=replace(_rules(folder, limit), identity=True),
        schema_text=AVRO,
        output=OutputOptions(memory_limit=limit or OutputOptions().memory_limit),
    )
    task = SliceTask(common, SliceChunk(position=logs * 2 + (limit is None), slice=_slice(folder, logs)))
    Path(folder, ".hoodie/.phantombase/3/1").mkdir(parents=True, exist_ok=True)
    return compact_slice(LocalStorage(folder), task).ledger.rows_out


def _read(folder: str, logs: int, limit: int | None) -> int:
    import phantombase.compactor_daemon  # noqa: F401  # chooses Arrow's memory pool, as `phantombase.read` does
    from phantombase.timeline.merge.slice_stream import SliceStream
    from phantombase.timeline.storage.local import LocalStorage

    stream = SliceStream(LocalStorage(folder), _slice(folder, logs), _rules(folder, limit))
    return sum(batch.num_rows for batch in stream.batches())


_WORK = {"compact": _compact, "read": _read}


if __name__ == "__main__":
    sys.exit(main())
