"""The clients of a bucket: with the options of the place, and with what the environment says beside them.

AWS_*, AZURE_* and GOOGLE_* are read as every tool of these stores reads them; without keys obstore asks the web
identity, the container and the instance for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from obstore.store import AzureStore, GCSStore, S3Store

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

from ..elapsed import Since
from ..errors import UsageError
from .object_url import AZURE, GCS, S3, Cloud, ObjectUrl
from .storage_options import CONNECTION, SETTINGS, Settings, environment_of, from_environment, secrets_of

_ANSWER_S, _TRANSFER_S, _COPY_S = 30, 600, 3600
"""How long a request may take: a small one, one that carries up to some GiB, and a copy within the store."""
_PATIENCE: RetryConfig = {
    "max_retries": 1000,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 3},
}
"""A store that is asked too much refuses everything for some seconds. Ten tries, as by default, take about three."""
_ONCE: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(seconds=60)}
_HIDDEN = "***"


@dataclass(slots=True)
class StoreFacts:
    """What this process has found out about a store through clients of the same settings; see their users."""

    trying: Lock = field(default_factory=Lock)
    keeps_promises: bool = False
    comparing: Lock = field(default_factory=Lock)
    agreed: Since | None = None
    """When its clock and this process's were found to agree."""
    given_back: dict[str, Any] = field(default_factory=dict)
    """By key, the versions in which this process left leases, until it takes them again."""
    logged: set[str] = field(default_factory=set)
    """Why uploads stay there."""


_known: dict[int, StoreFacts] = {}


def forget() -> None:
    """Everything that this process knows of stores, as if it had just begun."""
    _known.clear()


@dataclass(frozen=True, slots=True)
class Clients:
    """`patient` asks again when something fails. `once` does not: what becomes of a conditional write must be seen.

    `copying` is `once` with the time that a copy of some GiB takes. `place`: one name for all URLs of the place.
    """

    cloud: Cloud
    bucket: str
    place: str
    patient: Any
    once: Any
    copying: Any
    identity: int
    """Differs for clients of other settings."""
    settings: Settings
    """The options given; the environment says the rest."""
    _secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def known(self) -> StoreFacts:
        """The same for all clients of these settings."""
        return _known.setdefault(self.identity, StoreFacts())

    def text(self, error: Exception) -> str:
        """An error in one line, without secrets."""
        found = " ".join(f"{type(error).__name__}: {error}".split())
        for secret in self._secrets:
            found = found.replace(secret, _HIDDEN)
        return found[:500]

    @property
    def missing(self) -> str | None:
        """What to do if this process is refused: what another one could not send to it."""
        if not self.settings.withheld:
            return None
        return (
            "The options of the driver hold secrets, which never travel: give "
            f"{', '.join(self.settings.withheld)} to each executor (spark.executorEnv.NAME, or a role of the machine)."
        )


def version(meta: Any) -> Any:
    """What a conditional put names of the object that it replaces: the ETag, on GCS the generation."""
    return {name: value for name in ("e_tag", "version") if (value := meta.get(name))}


def open_clients(url: ObjectUrl, settings: Settings) -> Clients:
    """The clients of a place; UsageError: options or environment say something impossible."""
    environment = environment_of(url.cloud, os.environ)
    return _opened(url, settings, tuple(sorted(environment.items())))


@lru_cache(maxsize=64)
def _opened(url: ObjectUrl, settings: Settings, environment: tuple[tuple[str, str], ...]) -> Clients:
    named, cloud = dict(environment), url.cloud
    account = settings.of("account_name") or (cloud is AZURE and named.get("AZURE_STORAGE_ACCOUNT_NAME")) or None
    if cloud is AZURE and account is None:
        raise UsageError(
            "no account in the URL", path=url.bucket, expected=f"{cloud.expected}, or AZURE_STORAGE_ACCOUNT_NAME"
        )
    secrets = secrets_of(cloud, settings, named)
    own = _OPENERS[cloud.name](url, settings, named)

    def opened(seconds: int, *, patient: bool = False, **more: Any) -> Any:
        retries = _PATIENCE if patient else _ONCE
        return own(client_options=_connection(cloud, settings, named, seconds), retry_config=retries, **more)

    copying: Any = {"copy_if_not_exists": "multipart"} if cloud is S3 else {}
    try:
        return Clients(
            cloud=cloud,
            bucket=url.bucket,
            place=url.place(account),
            patient=opened(_TRANSFER_S, patient=True),
            once=opened(_ANSWER_S),
            copying=opened(_COPY_S, **copying),
            identity=hash((url.cloud.name, url.bucket, settings, environment)),
            settings=settings,
            _secrets=secrets,
        )
    except Exception as error:
        text = f"{error}"
        for secret in secrets:
            text = text.replace(secret, _HIDDEN)
        raise UsageError(
            f"the settings of {cloud.name} in options and environment cannot be used", path=url.bucket, found=text
        ) from None  # the cause may show a secret


def _connection(cloud: Cloud, settings: Settings, environment: Mapping[str, str], seconds: int) -> ClientConfig:
    """Options of the connection: given with the time-out, for obstore then asks the environment for none of them."""
    given = ((name, settings.of(name) or from_environment(cloud, name, environment)) for name in CONNECTION)
    found: Any = {name: value for name, value in given if value is not None}
    found["timeout"] = timedelta(seconds=seconds)
    return found  # type: ignore[no-any-return]


def _own(cloud: Cloud, settings: Settings, *without: str) -> Any:
    """The options of the store itself. Credentials that are given are used, even if the environment asks for none."""
    found: dict[str, Any] = {n: v for n, v in settings.values if n not in (*CONNECTION, *without)}
    if any(settings.of(setting.name) for setting in SETTINGS[cloud.name] if setting.secret and setting.credential):
        found.setdefault("skip_signature", "false")
    return found


def _s3(url: ObjectUrl, settings: Settings, environment: Mapping[str, str]) -> Callable[..., Any]:
    keys = ("access_key_id", "secret_access_key", "session_token")
    config = _own(S3, settings, *keys)
    endpoint = settings.of("endpoint") or from_environment(S3, "endpoint", environment)
    in_host = settings.of("virtual_hosted_style_request") or from_environment(
        S3, "virtual_hosted_style_request", environment
    )
    if endpoint is not None and (in_host or "").lower() == "true":
        scheme, _, host = endpoint.partition("://")
        config["endpoint"] = endpoint if host.startswith(f"{url.bucket}.") else f"{scheme}://{url.bucket}.{host}"
    if "endpoint" in config:
        config["aws_endpoint_url_s3"] = config["endpoint"]  # else AWS_ENDPOINT_URL_S3 would win
    key, secret, token = (settings.of(name) for name in keys)
    if (key is None) != (secret is None) or (token and not key):
        raise UsageError("half of a key of S3", expected="access_key_id and secret_access_key, both as options")
    if key is None:
        return lambda **more: S3Store(url.bucket, config=config, **more)
    # Not as options of the client: it would send the environment's session token with them.
    credential: Any = {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}
    return lambda **more: S3Store(url.bucket, config=config, credential_provider=lambda: credential, **more)


def _azure(url: ObjectUrl, settings: Settings, environment: Mapping[str, str]) -> Callable[..., Any]:
    config = _own(AZURE, settings)
    kinds = {  # credentials, and obstore's words for them
        "token": "bearer_token",
        "account_key": "access_key",
        "client_secret": "client_secret",
        "sas_key": "sas_token",
    }
    given = [kind for name, kind in kinds.items() if settings.of(name)]
    if len(given) > 1:
        raise UsageError("several credentials of Azure", expected="one of " + ", ".join(kinds), found=", ".join(given))
    if given:  # before those of the environment
        config["credential_type"] = given[0]
    return lambda **more: AzureStore(url.bucket, config=config, **more)


def _gcs(url: ObjectUrl, settings: Settings, environment: Mapping[str, str]) -> Callable[..., Any]:
    config = _own(GCS, settings)
    return lambda **more: GCSStore(url.bucket, config=config, **more)


_OPENERS = {S3.name: _s3, AZURE.name: _azure, GCS.name: _gcs}
