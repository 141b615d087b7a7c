"""Peak memory of a sorted clustering while its one group grows and the memory limit stays.

    python -m bench.sorting [--quick]

A table of version 9 with 1, 4 and 16 base files of 500,000 rows in one partition, about 100 MB of rows each (quick:
125,000 rows). `cluster` sorts them as one group: by two columns, and along the Hilbert curve through them, in a process
of its own, under `--memory-limit 256m` (quick: 64m). The peak is that of private memory; beside it that of resident
memory. The rows are counted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from bench.processes import run
from bench.report import Goal, Report

_FACTORS = (1, 4, 16)
_ORDERS = ("order", "hilbert")
_ROWS, _LIMIT = 500_000, 256 << 20
_FLAT_MAX = 1.25
"""Peak at 16 times the rows against that at once."""


def main() -> int:
    """Command line; exit code 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the rows and of the limit")
    parser.add_argument("--write", nargs=3, metavar=("FOLDER", "FILES", "ROWS"), help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=3, metavar=("FOLDER", "ORDER", "LIMIT"), help=argparse.SUPPRESS)
    parser.add_argument("--codec", default="zstd", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        folder, files, rows = arguments.write
        print(json.dumps({"bytes": _write(folder, int(files), int(rows))}))
        return 0
    if arguments.one:
        folder, order, limit = arguments.one
        print(json.dumps(_sorted(folder, order, int(limit), arguments.codec)))
        return 0
    part = 4 if arguments.quick else 1
    report = Report(bench="sorting")
    limit = _LIMIT // part
    report.facts |= {"limit_mib": limit >> 20, "rows_x1": _ROWS // part}
    with tempfile.TemporaryDirectory(prefix="phantombase-bench-") as folder:
        peaks: dict[tuple[str, int], int] = {}
        for factor in _FACTORS:
            origin = Path(folder, "origin")
            written = run([*_SELF, "--write", str(origin), str(factor), str(_ROWS // part)]).answer
            report.facts[f"file_mib_x{factor}"] = written["bytes"] >> 20
            for order in _ORDERS:
                copy = shutil.copytree(origin, Path(folder, "copy"))
                ran = run([*_SELF, "--one", str(copy), order, str(limit)])
                assert ran.answer["rows"] == factor * _ROWS // part, "other rows"
                peaks[order, factor] = ran.peak_private_bytes
                report.timed(f"{order}_x{factor}", [ran.seconds])
                report.figure(f"{order}_peak_mib_x{factor}", ran.peak_private_bytes / (1 << 20))
                report.facts[f"{order}_resident_mib_x{factor}"] = ran.peak_bytes >> 20
                shutil.rmtree(copy)
            shutil.rmtree(origin)
    for order in _ORDERS:
        flat = Goal(figure=f"{order}_peak_x16_to_x1", limit=_FLAT_MAX, at_least=False)
        report.figure(flat.figure, peaks[order, _FACTORS[-1]] / peaks[order, 1], flat)
    return report.finish()


_SELF = (sys.executable, "-m", "bench.sorting")


def _write(folder: str, files: int, rows: int) -> int:
    """A table whose files are not sorted by `a` and `b`; the bytes of its base files."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from phantombase.writer_hooks.write.writer import writer

    for number in range(files):
        random = np.random.default_rng(number)
        ids = np.arange(number * rows, (number + 1) * rows)
        text = pc.utf8_lpad(pc.cast(pa.array(random.integers(0, 1 << 62, rows)), pa.string()), 19, "0")
        columns = {
            "id": pc.cast(pa.array(ids), pa.string()),
            "ts": pa.array(ids),
            "a": pa.array(random.integers(0, 1000, rows)),
            "b": pa.array(random.random(rows)),
            "note": pc.binary_join_element_wise(*[text] * 5, "-"),
        }
        write = writer(pa.table(columns)).table("rows", version=9).key("id").ordering("ts")
        write.option(small_file_bytes=0).bulk_insert(folder)
    return sum(path.stat().st_size for path in Path(folder).glob("*.parquet"))


def _sorted(folder: str, order: str, limit: int, codec: str) -> dict[str, int]:
    from phantombase.compactor_daemon.clustering.cluster import cluster_table
    from phantombase.compactor_daemon.clustering.options import ClusterOptions, Grouping, SortOrder
    from phantombase.timeline.codec.output_options import Codec, OutputOptions
    from phantombase.timeline.locks.table_lock import ProcessLock
    from phantombase.timeline.table.table import Table

    options = ClusterOptions(
        grouping=Grouping.SIZE, max_group_bytes=1 << 40, sort_by=("a", "b"), sort_order=SortOrder(order)
    )
    output = OutputOptions(codec=Codec(codec), memory_limit=limit, spill_dir=str(Path(folder).parent))
    done = cluster_table(Table.open(folder), options, ProcessLock("bench"), output=output).done
    assert done is not None
    return {"rows": done.rows, "files": done.files, "made": done.made}


if __name__ == "__main__":
    sys.exit(main())
