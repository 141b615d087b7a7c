"""The manifests of the history (version 8 on): which of its files count; and names of files while they are written.

    manifest_<n>   JSON, every file that counts with its size; never changed
    _version_      text, the number of the manifest that counts; while it is missing, the greatest manifest does

A writer puts the next manifest, then replaces `_version_` by deleting and putting it. So a manifest above `_version_`
is what a dead writer left: its files were complete before it was put, and the next writer continues from it."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from phantombase.timeline.errors import ConflictError, MalformedError, MissingFileError, PhantombaseError
from phantombase.timeline.storage.contract import Storage, listed_if_there
from phantombase.timeline.storage.folders import TEMPORARY
from phantombase.timeline.storage.snapshot import check_guard, unguarded


@contextmanager
def staged_name(storage: Storage, ending: str) -> Iterator[str]:
    """A path for one staged file, which is removed at exit, placed or not. A killed process's file is removed later."""
    path = f"{TEMPORARY}/{uuid.uuid4().hex}{ending}"
    try:
        yield path
    finally:
        with suppress(PhantombaseError):
            unguarded(storage).delete(path)


VERSION_FILE = "_version_"
_TRIES = 3
_MANIFEST = re.compile(r"manifest_(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFile:
    """An entry of a manifest; `size` in bytes."""

    name: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest; `number` 0 and no files: nothing was archived yet. `last`: the greatest number in use."""

    number: int
    files: tuple[HistoryFile, ...]
    last: int


def manifest_path(folder: str, number: int) -> str:
    return f"{folder}/manifest_{number}"


def manifest_numbers(storage: Storage, folder: str) -> list[int]:
    names = [entry.name for entry in listed_if_there(storage, folder) or ()]
    return sorted(int(match[1]) for name in names if (match := _MANIFEST.fullmatch(name)))


def read_manifest(storage: Storage, folder: str, number: int) -> tuple[HistoryFile, ...]:
    """The entries of a manifest. MalformedError: unreadable. MissingFileError: there is none."""
    path = manifest_path(folder, number)
    data = storage.read(path)
    try:
        return tuple(HistoryFile(name=str(e["fileName"]), size=int(e["fileLen"])) for e in json.loads(data)["files"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedError("unreadable history manifest", path=path, found=repr(error)) from error


def newest_manifest(storage: Storage, folder: str) -> Manifest:
    """The manifest from which a writer continues; called under the table lock. It is the greatest manifest. If that one
    is above `_version_` and torn (Hudi writes in place on local disks), it is the manifest that `_version_` names.
    MalformedError: the latter is unreadable. MissingFileError: it does not exist."""
    numbers = manifest_numbers(storage, folder)
    counting = _version(storage, folder)
    last = max([*numbers, counting or 0])
    for number in reversed(numbers):
        try:
            return Manifest(number=number, files=read_manifest(storage, folder, number), last=last)
        except MalformedError:
            if counting is None or number <= counting:
                raise
    if counting:
        raise MissingFileError("the history's manifest is missing", path=manifest_path(folder, counting))
    return Manifest(number=0, files=(), last=last)


def put_manifest(storage: Storage, folder: str, before: Manifest, files: tuple[HistoryFile, ...]) -> Manifest:
    """Makes a manifest of these files count. `storage`: of a section. ConflictError: another put it, or `_version_`."""
    number = before.last + 1
    body = json.dumps({"files": [{"fileName": f.name, "fileLen": f.size} for f in files]}, indent=2).encode()
    if not storage.put_if_absent(manifest_path(folder, number), body):
        raise archived_by_another(storage, manifest_path(folder, number))
    set_version(storage, folder, number)
    return Manifest(number=number, files=files, last=number)


def set_version(storage: Storage, folder: str, number: int) -> None:
    """Makes a manifest the one that counts, unless it already is. Errors as `put_manifest`. A process that stalled
    right before its put, and lost the lock, may put an older number while `_version_` is missing. That process removes
    the number as soon as it finds that the lock is lost: then the greatest manifest counts. A process that holds the
    lock puts its own number again."""
    path, counting = f"{folder}/{VERSION_FILE}", _version(storage, folder)
    for _ in range(_TRIES):
        if counting == number:
            return
        storage.delete(path)
        storage.put_if_absent(path, str(number).encode())
        try:
            check_guard(storage)
        except PhantombaseError:
            _withdraw_older(unguarded(storage), folder, number)
            raise
        counting = _version(storage, folder)
        if counting is not None and counting > number:
            break
    if counting != number:
        raise archived_by_another(storage, path)


def _withdraw_older(storage: Storage, folder: str, number: int) -> None:
    """Removes `_version_` if it names this manifest and another process has put a newer one."""
    if _version(storage, folder) == number < newest_manifest(storage, folder).number:
        storage.delete(f"{folder}/{VERSION_FILE}")


def _version(storage: Storage, folder: str) -> int | None:
    path = f"{folder}/{VERSION_FILE}"
    try:
        text = storage.read(path).decode(errors="replace").strip()
    except MissingFileError:
        return None
    if text and not text.isdecimal():
        raise MalformedError("unreadable history version", path=path, expected="a number", found=repr(text))
    return int(text) if text else None


def archived_by_another(storage: Storage, path: str) -> ConflictError:
    """Another process has put this file of the archive."""
    return ConflictError(
        "another process archives this table",
        path=f"{storage.base_path}/{path}",
        expected="one archiving process at a time, under the table lock",
        todo="Give all processes that archive the same lock, then run again: it continues where this run stopped.",
    )
