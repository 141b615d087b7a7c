"""Staged files: written whole or not at all, and given their final names whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from ..errors import PhantombaseError, StorageError
from .contract import Storage


@contextmanager
def staged_output(storage: Storage, path: str) -> Iterator[IO[bytes]]:
    """A new file, durable at the end; nothing is left of a half-written one. StorageError: a full disk, say."""
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


def place_staged(storage: Storage, staged: Callable[[], str], final: str, size: int) -> None:
    """Staged file to final name, now or found done; its size in bytes must be the recorded one.

    What the call says is not asked: it may have taken effect and failed, or somebody else's may have. `staged` is
    asked for only where nothing is there yet. StorageError: what is there is not what was staged.
    """
    failure: PhantombaseError | None = None
    if storage.find(final) is None:
        try:
            storage.place(staged(), final)
        except PhantombaseError as error:
            failure = error
    found = storage.find(final)
    if found is None and failure is not None:
        raise failure
    if found is None or found.size != size:
        raise StorageError(
            "a placed file is not what was staged",
            path=final,
            expected=f"{size} bytes",
            found="nothing" if found is None else f"{found.size} bytes",
        )
