"""A name for a file of the archive while it is written."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import TEMPORARY


@contextmanager
def staged_name(storage: Storage, ending: str) -> Iterator[str]:
    """A path for one file, which is removed at the end, placed or not. What a killed process leaves goes later."""
    path = f"{TEMPORARY}/{uuid.uuid4().hex}{ending}"
    try:
        yield path
    finally:
        with suppress(PhantombaseError):
            storage.delete(path)
