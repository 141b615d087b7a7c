"""An object store (S3, Azure, Google Cloud Storage) as a `Storage`, through obstore; URLs: `object_url`.

    <prefix>/<path> is an object; a folder is only a part of names

A conditional write that is retried after a lost answer looks like a lost race, so the library retries none of them.
Each `put_if_absent` carries a unique id, and after any answer but "done" that id is read back.

An Azure store with a hierarchical namespace has directories: its listings name them, while obstore leaves them out and
reports that no such object exists. Hadoop marks an empty folder of another store by an empty blob of its name."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import IO, Any

import obstore
import pyarrow as pa
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from ..clocks import COPY_ENDS, PUT_AGAIN, retries
from ..errors import LockError, MissingFileError, StorageError
from ..reachable import waiting
from .contract import NAMES_IN_ONE_REQUEST, Entry, OwnLock
from .object_clients import Clients, Upload, open_clients, open_object
from .object_lease import content_tag, ensure_promises, hold_lease, read_object
from .object_url import AZURE, ObjectUrl
from .server_clock import ensure_agreed
from .snapshot import is_of_instant
from .storage_options import StorageOptions, without_secrets

_MARKER = "hdi_isfolder"
_DIRECTORY = "x-ms-resource-type"
"""The header that obstore's error quotes."""


def is_marker(clients: Clients, key: str) -> bool:
    """Whether this key is a folder: a directory, or a marker."""
    if clients.cloud is not AZURE:
        return False
    try:
        return obstore.get(clients.patient, key).attributes.get(_MARKER) == "true"
    except FileNotFoundError as error:
        return is_directory(error)


def is_directory(error: BaseException | None) -> bool:
    """Whether an object is missing because it is a directory."""
    return _DIRECTORY in str(error)


PUT_ID = "putid"
"""The metadata with the unique id of a put."""
_DELETED_AT_ONCE = 1000
_CONFLICT, _THERE_ON_AZURE = "409 Conflict", "BlobAlreadyExists"
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")


class ObjectStorage:
    """See the module. Picklable: URL and options are sent; each process finds the secrets in its environment."""

    is_file_system, own_lock, names_at_once = False, OwnLock.SHARED, NAMES_IN_ONE_REQUEST

    def __init__(self, base_path: str, options: StorageOptions | None = None) -> None:
        self.base_path = base_path.rstrip("/")
        url = ObjectUrl.parse(base_path)
        self.prefix = url.prefix
        self.clients: Clients = open_clients(url, (options or StorageOptions()).at(url))

    def __reduce__(self) -> tuple[type[ObjectStorage], tuple[str, StorageOptions]]:
        return ObjectStorage, (self.base_path, without_secrets(self.clients.settings, self.clients.cloud))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStorage) and other.base_path == self.base_path

    def __hash__(self) -> int:
        return hash(self.base_path)

    @property
    def location(self) -> str:
        return self.clients.place

    def key(self, path: str) -> str:
        return "/".join(part for part in (self.prefix, path) if part)

    @contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        where = f"{self.base_path}/{path}"
        self.clients.begin_request()  # of a listing or a deletion of more than a thousand names it is one, too
        try:
            with waiting(f"waiting for {self.base_path}"):
                yield
        except (BaseError, OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and not any(none in str(error) for none in _NO_BUCKET):
                raise MissingFileError("no such object", path=where) from error
            raise StorageError(
                "storage failed", path=where, found=self.clients.text(error), todo=self.clients.advice(error)
            ) from error

    # --- reading

    def list(self, folder: str) -> list[Entry]:
        own = self.key(folder)
        with self._translated(folder):
            found = obstore.list_with_delimiter(self.clients.patient, own or None)
        folders = set(found["common_prefixes"])
        if not found["objects"] and not folders and not is_marker(self.clients, own):
            raise MissingFileError("no such folder", path=f"{self.base_path}/{folder}")
        entries = [_entry(o) for o in _files(found["objects"], own, folders)] + [
            Entry(name=_name(f), is_folder=True) for f in folders
        ]
        return sorted(entries, key=lambda e: e.name)

    def list_below(self, folder: str, before: str = "", after: str = "") -> Sequence[tuple[str, Entry]]:
        above, found = self.key(folder), list[Any]()
        end, start = (f"{above}/{name}" if name else None for name in (before, after))
        with self._translated(folder):
            for chunk in obstore.list(self.clients.patient, above or None, offset=start):
                wanted = [o for o in chunk if end is None or o["path"] < end]
                found += wanted
                if len(wanted) < len(chunk):
                    break  # names are listed in order
        folders = {parent for o in found for parent in _parents(o["path"])}
        return [(o["path"].removeprefix(f"{above}/"), _entry(o)) for o in _files(found, above, folders)]

    def find(self, path: str) -> Entry | None:
        marked = False
        if path:
            try:
                with self._translated(path):
                    entry = _entry(obstore.head(self.clients.patient, self.key(path)))
                if entry.size or not (marked := is_marker(self.clients, self.key(path))):
                    return entry
            except MissingFileError as error:
                marked = is_directory(error.__cause__)
        with self._translated(path):
            below = next(iter(obstore.list(self.clients.patient, self.key(path) or None, chunk_size=1)), ())
            return Entry(name=_name(path), is_folder=True) if marked or len(below) else None

    def _find_object(self, path: str) -> Entry | None:
        """`find` of a name that is no folder."""
        with suppress(MissingFileError), self._translated(path):
            return _entry(obstore.head(self.clients.patient, self.key(path)))
        return None

    def read(self, path: str) -> bytes:
        with self._translated(path):
            return read_object(self.clients, self.key(path))[0]

    def open_input(self, path: str, *, whole: bool = True) -> pa.NativeFile:
        return open_object(self.clients.patient, self.key(path), partial(self._translated, path), whole=whole)

    # --- writing

    def open_output(self, path: str) -> IO[bytes]:
        with self._translated(path):
            upload: Any = Upload(self.clients.sending, self.key(path))
            return upload  # type: ignore[no-any-return]

    def close_output(self, file: IO[bytes]) -> None:
        file.close()

    def abort_output(self, file: IO[bytes]) -> None:
        upload: Any = file
        upload.abort()

    def verify(self) -> None:
        ensure_promises(self)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        ensure_promises(self)
        return self.put_with_id(path, data)

    def put_with_id(self, path: str, data: bytes) -> bool:
        """`put_if_absent` without `ensure_promises`."""
        key, mine = self.key(path), uuid.uuid4().hex
        once = self.clients.once
        for _ in retries(PUT_AGAIN):
            self.clients.begin_request()
            try:
                obstore.put(once, key, data, mode="create", use_multipart=False, attributes={PUT_ID: mine})
                return True
            except (BaseError, OSError) as error:
                self._raise_final(error, path)
                failure = error
            # "Already there" may be this put after a lost answer; after a conflict (409) there may be no object.
            with suppress(MissingFileError):
                return self.put_id(path) == mine
        raise self._unknown("whether an object was put is not known", path, failure)

    def put_id(self, path: str) -> str | None:
        """The id that was put with an object; MissingFileError."""
        with self._translated(path):
            found = obstore.get(self.clients.patient, self.key(path))
            return found.attributes.get(PUT_ID)

    def make_folder(self, folder: str) -> None:
        """Does nothing: folders are names."""

    def place(self, source: str, target: str) -> bool:
        ensure_promises(self)
        return self.copy_if_absent(source, target)

    def copy_if_absent(self, source: str, target: str) -> bool:
        """`place` without `ensure_promises`. A copy cannot carry an id: a lost answer is an error."""
        doubt: Exception | None = None
        for _ in retries(PUT_AGAIN):
            self.clients.begin_request()
            try:
                obstore.copy(self.clients.copying, self.key(source), self.key(target), overwrite=False)
                return self._copied(source, target)
            except AlreadyExistsError as error:
                failure: Exception = error
                if _CONFLICT in str(error) and _THERE_ON_AZURE not in str(error):
                    doubt = error  # a request that competed with another, which may be an earlier try of it
            except (BaseError, OSError) as error:
                if not isinstance(error, FileNotFoundError) or self._find_object(source) is None:
                    self._raise_final(error, source)
                failure = doubt = error
            if self._find_object(target) is not None:
                if doubt is None:
                    return False
                break
        raise self._unknown("whether a file was placed is not known", target, doubt or failure)

    def _copied(self, source: str, target: str) -> bool:
        """True, once a copy that may be answered before it is complete has ended. StorageError: it takes too long."""
        if not self.clients.cloud.copies_later:
            return True
        whole = self.find(source)
        for _ in retries(COPY_ENDS):
            found = self.find(target)
            if whole is not None and found is not None and found.size == whole.size:
                return True
        raise StorageError(
            "a copy within the store does not end", path=f"{self.base_path}/{target}", todo="Run again later."
        )

    def _raise_final(self, error: Exception, path: str) -> None:
        """Raises an error that a retry does not change."""
        if isinstance(error, (FileNotFoundError, PermissionDeniedError, UnauthenticatedError, NotSupportedError)):
            with self._translated(path):
                raise error

    def _unknown(self, what: str, path: str, error: Exception) -> StorageError:
        return StorageError(what, path=f"{self.base_path}/{path}", found=self.clients.text(error), todo="Run again.")

    def overwrite(self, path: str, data: bytes) -> None:
        with self._translated(path):
            obstore.put(self.clients.sending, self.key(path), data, use_multipart=False)

    def delete(self, path: str) -> None:
        with suppress(MissingFileError), self._translated(path):
            obstore.delete(self.clients.patient, self.key(path))

    def delete_folder(self, folder: str) -> None:
        with self._translated(folder):
            for chunk in obstore.list(self.clients.patient, self.key(folder), chunk_size=_DELETED_AT_ONCE):
                self._delete([o["path"] for o in chunk])

    def delete_empty_folder(self, folder: str) -> bool:
        return True

    def _delete(self, keys: Sequence[str]) -> None:
        """Removes these objects; on some stores one that another process has removed ends the call for all of them."""
        try:
            if keys:
                obstore.delete(self.clients.patient, keys)
        except FileNotFoundError:
            for key in keys:
                with suppress(FileNotFoundError):
                    obstore.delete(self.clients.patient, key)

    def delete_all(self, paths: Collection[str]) -> None:
        keys = [self.key(path) for path in paths]
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            with self._translated(""):
                self._delete(keys[start : start + _DELETED_AT_ONCE])

    def set_modified(self, path: str, modified_ms: int) -> None:
        if self._find_object(path) is None:
            raise MissingFileError("no such object", path=f"{self.base_path}/{path}")
        raise StorageError(
            "an object store gives its objects their times itself",
            path=f"{self.base_path}/{path}",
            todo="From version 8 on, times are in names: upgrade the table with Hudi where its times are right, on a "
            "disk for instance, and copy it here afterwards.",
        )

    # --- the lock

    def hold(self, path: str, timeout_s: float, busy: LockError) -> AbstractContextManager[Callable[[], bool]]:
        ensure_agreed(self, self.clients.known)  # it puts an object, so the promises were tested
        return hold_lease(
            self.clients, self.key(path), f"{self.base_path}/{path}", timeout_s, busy, is_new=is_of_instant(path)
        )


def _entry(found: Any) -> Entry:
    # Full seconds, though some listings are finer: an object has the same time in all answers.
    modified_ms = int(found["last_modified"].timestamp()) * 1000
    tag = content_tag(found)
    return Entry(name=_name(found["path"]), is_folder=False, size=found["size"], modified_ms=modified_ms, tag=tag)


def _files(objects: Iterable[Any], own: str, folders: Collection[str]) -> Iterator[Any]:
    """The objects without markers of folders: `name/` of zero bytes, which is listed without its slash."""
    return (o for o in objects if o["path"] != own and not (o["path"] in folders and o["size"] == 0))


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _name(path: str) -> str:
    return path.rpartition("/")[2]
