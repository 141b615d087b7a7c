"""Staged files: written completely or not at all, then given their final names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from ..errors import PhantombaseError, StorageError
from .contract import Storage


@contextmanager
def staged_output(storage: Storage, path: str) -> Iterator[IO[bytes]]:
    """A new file, durable at the end; no incomplete file is left. StorageError: a full disk, for example."""
    file = storage.open_output(path)
    try:
        yield file
        storage.close_output(file)
    except BaseException as error:
        storage.abort_output(file)
        storage.delete(path)
        if isinstance(error, OSError):
            raise StorageError("staging a file failed", path=path, found=f"{error}") from error
        raise


def place_staged(storage: Storage, staged: str, final: str, size: int, lost: Callable[[], str] | None = None) -> None:
    """Gives a staged file its final name, unless it has it already; its size in bytes must be the recorded one.

    The result of the placing call is not trusted: the call may have failed after taking effect, or another process may
    have placed the file. So the final file is checked. `lost` makes the staged file anew, and returns its path; it is
    called only if there is no final file, and no staged one of that size. StorageError: the final file is not the
    staged one.
    """
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
            todo=None if lost is None else "If it stays so, remove this file, and run again: it is made anew.",
        )


def _place(storage: Storage, staged: str, final: str, size: int, lost: Callable[[], str] | None) -> None:
    if lost is None or ((there := storage.find(staged)) is not None and there.size == size):
        storage.place(staged, final)
    elif storage.find(final) is None:  # looked at last: another process's placing may have taken the staged file away
        storage.place(lost(), final)
