"""The clients of a bucket: settings and credentials are those of the environment, as every S3 tool takes them.

AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_ALLOW_HTTP, ...; without
keys obstore asks the web identity, the container and the instance for them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from obstore.store import S3Store

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

from ..errors import UsageError

_CONNECTION = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "http2_only",
    "proxy_url",
    "proxy_ca_certificate",
    "proxy_excludes",
    "root_certificate",
    "user_agent",
)
_ANSWER_S, _TRANSFER_S, _COPY_S = 30, 600, 3600
"""How long a request may take: a small one, one that carries up to some GiB, and a copy within the store."""
_PATIENCE: RetryConfig = {
    "max_retries": 1000,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 3},
}
"""A store that is asked too much refuses everything for some seconds. Ten tries, as by default, take about three."""


@dataclass(frozen=True, slots=True)
class Clients:
    """`patient` asks again when something fails. `once` does not: what becomes of a conditional write must be seen.

    `copying` is `once` with the time that a copy of some GiB takes.
    """

    bucket: str
    patient: S3Store
    once: S3Store
    copying: S3Store
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
    no_retries: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(seconds=60)}
    try:
        return Clients(
            bucket=bucket,
            patient=S3Store(bucket, retry_config=_PATIENCE, client_options=_options(settings, _TRANSFER_S)),
            once=S3Store(bucket, retry_config=no_retries, client_options=_options(settings, _ANSWER_S)),
            copying=S3Store(
                bucket,
                retry_config=no_retries,
                client_options=_options(settings, _COPY_S),
                copy_if_not_exists="multipart",
            ),
            identity=hash((bucket, settings)),
        )
    except Exception as error:
        raise UsageError("the environment's settings of S3 cannot be used", path=bucket, found=f"{error}") from error


def _options(settings: tuple[tuple[str, str], ...], seconds: int) -> ClientConfig:
    """Options of the connection: given with the time-out, for obstore then asks the environment for none of them."""
    named = {key.removeprefix("AWS_").lower(): value for key, value in settings}
    found: Any = {name: named[name] for name in _CONNECTION if name in named}
    found["timeout"] = timedelta(seconds=seconds)
    return found  # type: ignore[no-any-return]
