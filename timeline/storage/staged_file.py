"""Staged files, and the probe of what they require of a storage.

A staged file is written completely or not at all, and then placed under its final name.

What killed processes leave of uploads to an S3 store are parts, which no listing shows, and which cost money. obstore
can neither list nor abort them; boto3 can, where it is installed. No other step depends on it: an unfinished upload is
never visible, and a rule of the bucket may abort it too."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import IO, TYPE_CHECKING, Any

from ..errors import PhantombaseError, StorageError, reason_of
from ..event_log import get_logger
from ..prefetch import Threads, at_once
from .contract import Storage
from .folders import TEMPORARY, join
from .object_url import S3
from .snapshot import unguarded

if TYPE_CHECKING:
    from .object_store import ObjectStorage

_log = get_logger()

BUCKET_RULE = "Give the bucket a rule that aborts unfinished uploads after a day (AbortIncompleteMultipartUpload)."


def abort_uploads(storage: Storage, is_over: Callable[[str], bool], older_s: float, *, dry_run: bool = False) -> int:
    """Aborts uploads below the base path that started more than `older_s` seconds ago; returns their number.
    `is_over`: whether no process goes on with such an upload to this path, relative to the base path. Ages are by the
    clock of the store. `dry_run`: they are only counted. Does nothing on other storages than S3. Where uploads cannot
    be listed or aborted, that is logged once per process."""
    if storage.is_file_system:
        return 0
    from .object_store import ObjectStorage  # late: few processes need it

    if not isinstance(storage, ObjectStorage) or storage.clients.cloud is not S3:
        return 0
    try:
        import botocore.exceptions as botocore
    except ImportError:
        _log_once(storage, "boto3 is not installed", f"Install phantombase[s3]. Or: {BUCKET_RULE}")
        return 0
    try:
        return _abort(storage, is_over, older_s, dry_run)
    except (botocore.BotoCoreError, botocore.ClientError) as error:
        _log_once(storage, storage.clients.text(error), BUCKET_RULE)
        return 0


def _abort(storage: ObjectStorage, is_over: Callable[[str], bool], older_s: float, dry_run: bool) -> int:
    client, base = _client(storage), storage.key("")
    prefix = f"{base}/" if base else ""
    aborted = 0
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=storage.clients.bucket, Prefix=prefix):
        now = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
        for upload in page.get("Uploads", ()):
            key = upload["Key"]
            if (now - upload["Initiated"]).total_seconds() <= older_s or not is_over(key.removeprefix(prefix)):
                continue
            if not dry_run:
                client.abort_multipart_upload(Bucket=storage.clients.bucket, Key=key, UploadId=upload["UploadId"])
            aborted += 1
    if aborted and not dry_run:
        _log.info("unfinished_uploads_aborted", path=storage.base_path, uploads=aborted)
    return aborted


def _client(storage: ObjectStorage) -> Any:
    """One for all tables of a bucket: to make it takes longer than to ask."""
    if (made := storage.clients.known.boto3) is not None:
        return made
    from botocore.config import Config

    from .object_clients import aws_client, aws_setting

    given = storage.clients.settings
    is_virtual = (aws_setting(given, "virtual_hosted_style_request") or "").lower() == "true"
    endpoint = aws_setting(given, "endpoint") or ""
    config = Config(
        s3={"addressing_style": "virtual" if is_virtual else "path"},
        retries={"mode": "standard", "total_max_attempts": 3},
    )
    # The endpoint may contain the bucket, which boto3 adds itself.
    place = endpoint.replace(f"://{storage.clients.bucket}.", "://") if is_virtual else endpoint
    storage.clients.known.boto3 = made = aws_client("s3", given, "", place, config)
    return made


def _log_once(storage: ObjectStorage, why: str, todo: str) -> None:
    if why not in (logged := storage.clients.known.logged):
        logged.add(why)
        _log.info("unfinished_uploads_stay", path=storage.base_path, why=why, todo=todo)


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
def probed_partitions(storage: Storage, partitions: Iterable[str]) -> Iterator[Callable[[], None]]:
    """`probe_partitions`, on an object store while the body runs, which calls what this yields before it relies on it;
    its end does so, too."""
    if storage.is_file_system:
        probe_partitions(storage, partitions)
        yield lambda: None
        return
    with Threads(1) as pool:
        tried = pool.submit(probe_partitions, storage, partitions)
        yield tried.result
        tried.result()


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


def place_staged(
    storage: Storage,
    staged: str,
    final: str,
    size: int,
    lost: Callable[[], str] | None = None,
    *,
    is_checked: bool = True,
) -> None:
    """Gives a staged file its final name, unless that exists already; its size in bytes must be the recorded one. The
    result of the placing call is not trusted: the call may have failed after taking effect, or another process may have
    placed the file. So the final file is checked. `lost` makes the staged file again, and returns its path; it is
    called only if neither a final file nor a staged one of that size exists. `is_checked`: False where the caller calls
    this again before the file is shown: then only a call that failed is followed by a check. StorageError: the final
    file is not the staged one."""
    failure: PhantombaseError | None = None
    if storage.find(final) is None:
        try:
            _place(storage, staged, final, size, lost)
            if not is_checked:
                return
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
