"""The clients of a bucket: settings and credentials are those of the environment, as every S3 tool takes them.

AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_ALLOW_HTTP, ...; without
keys obstore asks the web identity, the container and the instance for them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache

from obstore.store import S3Store

from ..errors import UsageError


@dataclass(frozen=True, slots=True)
class Clients:
    """`patient` asks again when something fails. `once` does not: what becomes of a conditional write must be seen."""

    bucket: str
    patient: S3Store
    once: S3Store
    identity: int
    """Differs for clients of other settings."""


def without_scheme(url: str) -> str:
    """`bucket/prefix` of an URL."""
    return url.partition("://")[2]


def open_clients(bucket: str) -> Clients:
    """The clients of a bucket; UsageError: the environment says something impossible."""
    settings = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith("AWS_")))
    return _opened(bucket, settings)


@lru_cache(maxsize=64)
def _opened(bucket: str, settings: tuple[tuple[str, str], ...]) -> Clients:
    if not bucket:
        raise UsageError("no bucket in the URL", expected="s3://BUCKET/PATH")
    no_retries = {"max_retries": 0, "retry_timeout": timedelta(seconds=60)}
    try:
        return Clients(
            bucket=bucket,
            patient=S3Store(bucket, copy_if_not_exists="multipart"),
            once=S3Store(bucket, copy_if_not_exists="multipart", retry_config=no_retries),  # type: ignore[arg-type]
            identity=hash((bucket, settings)),
        )
    except Exception as error:
        raise UsageError("the environment's settings of S3 cannot be used", path=bucket, found=f"{error}") from error
