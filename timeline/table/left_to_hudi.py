"""What of some tables is left to Hudi: refused by name, before anything is changed.

Consistent-hashing buckets: such tables are read, compacted, cleaned and archived as others are. Which bucket a key
belongs to is in hashing metadata that only Hudi reads and changes. So phantombase adds no row, moves no rows to other
file groups, and brings no file groups back that a resize has replaced.

Change data capture: such tables are written, too. Hudi's CDC query finds what a write changed in the files that the
statistics of its commit name. So phantombase moves no rows to other file groups, and takes no completed write back.
"""

from __future__ import annotations

from ..errors import UnsupportedError
from ..format.table_config import PROPERTIES
from ..view.bucket_resize import HASHING_METADATA, is_consistently_hashed
from .table import Table


def merges_no_logs(table: Table) -> bool:
    """Whether log files must not be merged with each other.

    From version 8 on Hudi names log files of buckets that a resize makes after the resize: then names of log files do
    not show which writes were merged.
    """
    return table.layout.has_completion_times and is_consistently_hashed(table.storage)


def refuse_left_to_hudi(table: Table, what: str) -> None:
    """UnsupportedError for tables of both kinds; `what`: what is refused, such as "writing"."""
    refuse_consistent_hashing(table, what)
    refuse_change_capture(table, what)


def refuse_consistent_hashing(table: Table, what: str) -> None:
    """UnsupportedError for tables with consistent-hashing buckets."""
    if is_consistently_hashed(table.storage):
        raise _refusal(what, "the consistent-hashing bucket index", f"{table.storage.base_path}/{HASHING_METADATA}")


def refuse_change_capture(table: Table, what: str) -> None:
    """UnsupportedError for tables with change data capture."""
    if table.config.captures_changes:
        raise _refusal(what, "change data capture", f"{table.storage.base_path}/{PROPERTIES}")


def _refusal(what: str, kind: str, path: str) -> UnsupportedError:
    return UnsupportedError(f"{what} a table with {kind} is not supported", path=path, todo="Use Hudi for that.")
