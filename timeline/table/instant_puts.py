"""Puts files of instants by put-if-absent, under the table lock."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ConflictError, PhantombaseError
from ..format.instant import Instant
from ..locks.section import Section
from .table import Table


def put_requested(table: Table, requested: Instant, content: bytes, section: Section) -> None:
    """Makes a plan visible. ConflictError: another process, without the lock, has one at the same instant."""
    path = table.instant_path(requested)
    section.check()
    if not table.storage.put_if_absent(path, content):
        raise ConflictError(
            "another process began an action at the same instant",
            path=path,
            instant=requested.requested_time,
            todo="All processes that write to a table must share one lock. Run again.",
        )


def put_completed(
    table: Table, path: str, data: bytes, unknown: Callable[[PhantombaseError], PhantombaseError]
) -> bool:
    """Puts a completed file. False: one was there, or the storage did not answer and it is there now.

    An error of a file system: it is not there. `unknown`: makes the error for a storage that did not answer where the
    file is not there: the request may still be under way.
    """
    storage = table.storage
    try:
        return storage.put_if_absent(path, data)
    except PhantombaseError as error:  # it may have taken effect
        if storage.find(path) is None:
            if storage.is_file_system:
                raise
            raise unknown(error) from error
        return False
