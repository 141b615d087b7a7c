"""Which folders of a table are partitions."""

from __future__ import annotations

from collections.abc import Iterable

from ..storage.contract import Entry
from ..storage.folders import HOODIE

_PARTITION_MARK = ".hoodie_partition_metadata"


def is_partition(entries: Iterable[Entry]) -> bool:
    """Whether a folder with these entries is a partition."""
    return any(e.name.startswith(_PARTITION_MARK) and not e.is_folder for e in entries)


def subfolders(folder: str, entries: Iterable[Entry]) -> list[str]:
    """Paths of the subfolders that may be or contain partitions: all except Hudi's own, as in Hudi."""
    names = [e.name for e in entries if e.is_folder and e.name != HOODIE]
    return [f"{folder}/{name}" if folder else name for name in names]
