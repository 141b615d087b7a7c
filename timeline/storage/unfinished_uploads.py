"""Aborts unfinished uploads to an S3 store: parts of killed processes, which no listing shows, and which cost money.

obstore can neither list nor abort them; boto3 can, where it is installed. No other step depends on it: an unfinished
upload is never visible, and a rule of the bucket may abort it too."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from ..event_log import get_logger
from .contract import Storage
from .object_url import S3

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
    return aws_client("s3", given, "", place, config)


def _log_once(storage: ObjectStorage, why: str, todo: str) -> None:
    if why not in (logged := storage.clients.known.logged):
        logged.add(why)
        _log.info("unfinished_uploads_stay", path=storage.base_path, why=why, todo=todo)
