"""What compacting one file slice reads and writes, as Hudi counts it (FileSliceMetricUtils of 0.15.0 and 1.2.0; pure).

    read    base file and all log files
    write   the base file once more, or for a slice without one Hudi's target size of a new one

Megabytes are whole, 1 << 20 bytes; read and write are floored separately before they are added, so a small slice costs
0 MB.
"""

from __future__ import annotations

from ..view.view import FileSlice

MB = 1 << 20
NEW_FILE_BYTES = 120 * MB
"""Hudi's target size of a base file (`hoodie.parquet.max.file.size`); Hudi assumes it for a slice without base file."""


def read_bytes(slice_: FileSlice) -> int:
    """Bytes of the base file and of all log files."""
    return slice_.base_bytes + slice_.log_bytes


def write_bytes(slice_: FileSlice) -> int:
    """Bytes of the base file, or `NEW_FILE_BYTES` for a slice without one."""
    return slice_.base_bytes or NEW_FILE_BYTES


def io_mb(slice_: FileSlice) -> int:
    """Megabytes read and written: Hudi's TOTAL_IO_MB, which is compared with a strategy's target."""
    return read_bytes(slice_) // MB + write_bytes(slice_) // MB
