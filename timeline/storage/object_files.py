"""Files of an object store as they are written and read: uploads that show nothing before their end, and ranges."""

from __future__ import annotations

import errno
import io
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from ..ranges import Span, open_ranges

Translated: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Gives the errors of requests their place in the error tree."""

_WHOLE_BYTES = 32 << 20
"""Up to this size an object is fetched by one request when it is opened."""
_END_BYTES = 1 << 20
"""Holds the footers of most files: Hudi's have a bloom filter of half a MiB in them."""
_GAP_BYTES = 256 << 10
"""What lies between two spans is fetched with them up to this size: it takes less time than another request."""
_PART_BYTES = 16 << 20
"""Up to this size an object is put by one request; a larger one takes two requests more than it has parts."""
_PARTS_AT_ONCE = 2
_PAUSES_S = (0.2, 1.0)
"""Between tries of a request that was answered with other bytes than were asked for, or refused."""
_BYTES_MAX = 5 << 30
"""What one UploadPartCopy copies."""


class Upload(io.RawIOBase):
    """An upload that no reader sees before `close`. An upload that is aborted, or abandoned, never appears.

    `key` is a name of its own: an object there is this upload.
    """

    def __init__(self, store: Any, key: str) -> None:
        super().__init__()
        self._store, self._key = store, key
        self._writer: Any = obstore.open_writer(store, key, buffer_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._size + len(view) > _BYTES_MAX:  # it could not be placed: to be known before anything is decided
            raise OSError(errno.EFBIG, f"an object store places files of at most {_BYTES_MAX:,} bytes")
        with _as_os_error():
            self._writer.write(view if view.contiguous else bytes(view))
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing: what is written appears at the end, all at once."""

    def close(self) -> None:
        """The object is whole and there."""
        if not self.closed:
            writer, self._writer = self._writer, None
            super().close()
            with _as_os_error():
                try:
                    writer.close()
                except (BaseError, OSError):
                    # Its answer lost, a completion is asked for again, and then there is no such upload any more.
                    if not self._is_there():
                        raise

    def _is_there(self) -> bool:
        with suppress(BaseError, OSError):
            return bool(obstore.head(self._store, self._key)["size"] == self._size)
        return False

    def abort(self) -> None:
        """Nothing appears; the parts that were sent are given back."""
        if not self.closed:
            writer, self._writer = self._writer, None
            super().close()
            with suppress(BaseError, OSError):  # the bucket's rule for unfinished uploads takes what stays
                writer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)

    def __del__(self) -> None:
        # io's own would close, and show half a file.
        if getattr(self, "_writer", None) is not None:
            self.abort()


@contextmanager
def _as_os_error() -> Iterator[None]:
    """A failed request is to a file what a full disk is: an OSError."""
    try:
        yield
    except BaseError as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}"[:500]) from error


def open_object(store: Any, key: str, translated: Translated, *, whole: bool) -> pa.NativeFile:
    """Random access to an object; `whole`: see `Storage.open_input`. `translated`: gives errors their place in the
    tree, also those of later requests: pyarrow hands them on as they are.
    """
    fetch = partial(_fetch, store, key, translated)
    with translated():
        if whole:
            found = obstore.get(store, key)
            size = found.meta["size"]
            if size > _WHOLE_BYTES:
                return open_ranges(fetch, size)
            data = found.bytes()
            return pa.BufferReader(pa.py_buffer(data if len(data) == size else _asked(lambda: _get(store, key), size)))
        try:
            found = obstore.get(store, key, options={"range": {"suffix": _END_BYTES}})
        except BaseError:  # Azure cannot be asked for the end of an object of unknown size, and an empty one has none
            return open_ranges(fetch, obstore.head(store, key)["size"])
        size, end = found.meta["size"], found.bytes()
        return open_ranges(fetch, size, end if len(end) == min(size, _END_BYTES) else b"")


def _get(store: Any, key: str) -> Any:
    return obstore.get(store, key).bytes()


def _fetch(store: Any, key: str, translated: Translated, spans: Sequence[Span]) -> Sequence[Any]:
    starts, counts = [at for at, _ in spans], [count for _, count in spans]

    def ask() -> Sequence[Any]:
        found: Sequence[Any] = obstore.get_ranges(store, key, starts=starts, lengths=counts, coalesce=_GAP_BYTES)
        return found

    with translated():
        answer: Sequence[Any] = _asked(ask, counts)
    return answer


def _asked(ask: Callable[[], Any], expected: int | list[int]) -> Any:
    """An answer of the expected length, or lengths. obstore takes a part of a range for the whole, and does not ask
    again after an odd answer. BaseError, OSError: the last of some tries."""
    for pause_s in (*_PAUSES_S, None):
        try:
            data = ask()
            found = len(data) if isinstance(expected, int) else [len(one) for one in data]
            if found == expected:
                return data
            raise OSError(errno.EIO, f"an answer of {found} bytes to a request for {expected}")
        except (FileNotFoundError, PermissionDeniedError, UnauthenticatedError):
            raise
        except (BaseError, OSError):
            if pause_s is None:
                raise
            time.sleep(pause_s * random.uniform(1, 1.5))
    raise AssertionError("the last try raises")
