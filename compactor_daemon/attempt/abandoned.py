"""Removes what killed processes left half written: temporary files, and uploads to an object store."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from phantombase.timeline.errors import MalformedError
from phantombase.timeline.format.file_name import is_of_phantombase, parse_data_file
from phantombase.timeline.storage.contract import Storage, listed_if_there
from phantombase.timeline.storage.folders import RECORDS, TEMPORARY
from phantombase.timeline.storage.probe import PLACED
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.storage.unfinished_uploads import abort_uploads

_ABANDONED_MS = 3_600_000
"""A temporary file that has not changed for this long has lost its writer."""
_UPLOAD_S = 86_400
"""An upload takes as long as the merge that feeds it: a day, as in a bucket's rule."""


def abort_abandoned_uploads(storage: Storage) -> None:
    """Aborts abandoned uploads to staged and to final names of phantombase; ages are by the clock of the storage."""
    abort_uploads(storage, _is_ours, _UPLOAD_S)


@contextmanager
def abandoned_uploads_aborted(storage: Storage) -> Iterator[None]:
    """Aborts them while the body runs: what lists them takes long to load, and nothing rests on it."""
    with ThreadPoolExecutor(1) as pool:
        aborted = pool.submit(abort_abandoned_uploads, storage)
        yield
    aborted.result()


def remove_abandoned(storage: Storage) -> None:
    """Removes abandoned temporary files.

    Ages are by the clock of the storage. The clock of this process may be hours ahead: then files that are just being
    written would be removed.
    """
    entries = listed_if_there(storage, TEMPORARY)
    if not entries:
        return
    now_ms = storage_ms(storage)
    for entry in entries:
        if now_ms - entry.modified_ms > _ABANDONED_MS:
            storage.delete(f"{TEMPORARY}/{entry.name}")


def _is_ours(path: str) -> bool:
    """Whether an upload to this path is one of phantombase; others may be under way there, as those of Hudi."""
    name = path.rpartition("/")[2]
    if path.startswith(f"{RECORDS}/") or name == PLACED:
        return True
    try:
        file = parse_data_file(name)
    except MalformedError:
        return False
    return file is not None and is_of_phantombase(file.token)
