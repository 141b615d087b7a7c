"""Staged files, and the probe of what they require of a storage.

A staged file is written completely or not at all, and then placed under its final name."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO

from ..errors import PhantombaseError, StorageError, reason_of
from ..prefetch import at_once
from .contract import Storage
from .folders import TEMPORARY, join
from .snapshot import unguarded

PLACED = ".phantombase-probe"
"""The same name in every partition: a file that a killed process leaves is removed by the next one. Hudi ignores it."""


def probe(storage: Storage) -> None:
    """Tests the two promises that the protocol depends on, with temporary objects; StorageError if one is broken."""
    name = f"{TEMPORARY}/probe-{uuid.uuid4().hex}"
    first, second, placed = (f"{name}-{what}" for what in ("first", "second", "placed"))
    try:
        put = storage.put_if_absent(first, b"1"), storage.put_if_absent(first, b"2")
        # Each call has its own source: placing may remove it.
        storage.put_if_absent(second, b"2")
        place = storage.place(first, placed), storage.place(second, placed)
        if (put, place) != ((True, False), (True, False)) or storage.read(placed) != b"1":
            raise StorageError(
                "this storage does not keep put-if-absent and no-clobber placing",
                path=storage.base_path,
                todo="phantombase cannot work safely here.",
            )
    finally:
        for path in (first, second, placed):
            storage.delete(path)


def probe_partitions(storage: Storage, partitions: Iterable[str]) -> None:
    """Tests placing a file in each of these folders; StorageError if that fails: nothing could be published there.
    A partition may lie on another file system than the table's own folder, or be read-only. Folders that do not exist
    are skipped."""

    def try_to_place(partition: str) -> None:
        if storage.is_file_system and partition and storage.find(partition) is None:
            return  # the partition was removed: its folder is not made again
        source = f"{TEMPORARY}/probe-{uuid.uuid4().hex}"  # its own source: placing may remove it
        target = join(partition, PLACED)
        try:
            if storage.is_file_system:
                storage.put_if_absent(source, b"")
                storage.place(source, target)
            else:  # one store, so only permissions can differ: a put needs the same ones as a copy
                storage.put_if_absent(target, b"")
        except StorageError as error:
            raise StorageError(
                "files cannot be placed in this partition",
                path=f"{storage.base_path}/{partition}",
                expected="a folder on the file system of the table's own .hoodie folder, writable",
                found=error.found or str(error),
                todo="Nothing was decided. Move the partition there, let Hudi execute this compaction, or cancel it "
                "with compactor-daemon unschedule: on version 6 only while no log was written under the plan.",
            ) from error
        finally:
            if storage.is_file_system:
                storage.delete_all([target, source])

    tried = sorted(set(partitions))
    try:
        at_once(tried, try_to_place)
    finally:
        if not storage.is_file_system:
            storage.delete_all([join(partition, PLACED) for partition in tried])


@contextmanager
def staged_output(storage: Storage, path: str) -> Iterator[IO[bytes]]:
    """A new file, durable at the end; no incomplete file is left. StorageError: a full disk, for example."""
    file = storage.open_output(path)
    try:
        yield file
        storage.close_output(file)
    except BaseException as error:
        storage.abort_output(file)
        unguarded(storage).delete(path)  # no other process knows the name
        if isinstance(error, OSError):
            todo = "Make room, and run it again: what is finished is kept." if error.errno == errno.ENOSPC else None
            where = f"{storage.base_path}/{path}"
            raise StorageError("staging a file failed", path=where, found=reason_of(error), todo=todo) from error
        raise


def place_staged(storage: Storage, staged: str, final: str, size: int, lost: Callable[[], str] | None = None) -> None:
    """Gives a staged file its final name, unless that exists already; its size in bytes must be the recorded one. The
    result of the placing call is not trusted: the call may have failed after taking effect, or another process may have
    placed the file. So the final file is checked. `lost` makes the staged file again, and returns its path; it is
    called only if neither a final file nor a staged one of that size exists. StorageError: the final file is not the
    staged one."""
    failure: PhantombaseError | None = None
    if storage.find(final) is None:
        try:
            _place(storage, staged, final, size, lost)
        except PhantombaseError as error:
            failure = error
    found = storage.find(final)
    if found is None and failure is not None:
        raise failure
    if found is None or found.size != size:
        raise StorageError(
            "a placed file differs from the staged one",
            path=final,
            expected=f"{size} bytes",
            found="nothing" if found is None else f"{found.size} bytes",
            todo=None if lost is None else "If the error persists, remove this file and run again.",
        )


def _place(storage: Storage, staged: str, final: str, size: int, lost: Callable[[], str] | None) -> None:
    if lost is None or ((there := storage.find(staged)) is not None and there.size == size):
        storage.place(staged, final)
    elif storage.find(final) is None:  # checked last: another process's placing may have removed the staged file
        storage.place(lost(), final)
