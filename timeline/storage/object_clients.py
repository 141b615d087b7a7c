"""The clients of a bucket, and the files that are read and written through them.

Options of the place come first, then the environment: AWS_*, AZURE_* and GOOGLE_*, as every tool of these stores reads
them. Without keys obstore requests them from the web identity, the container and the instance. An upload is visible
only when it is complete; reads are by ranges."""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import obstore
import pyarrow as pa
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import AzureStore, GCSStore, S3Store

from ..clocks import READ_AGAIN, retries
from ..errors import UsageError, fault_of
from ..ranges import Span, open_ranges
from ..reachable import is_server_url
from .contract import count_requests
from .object_url import AZURE, GCS, S3, Cloud, ObjectUrl
from .server_clock import RequestPace, StoreFacts
from .storage_options import (
    CONNECTION,
    MOST_REQUESTS,
    SETTINGS,
    Settings,
    environment_of,
    from_environment,
    most_requests,
    secrets_of,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

Translated: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Gives the errors of requests their place in the error tree."""

_WHOLE_BYTES = 32 << 20
"""Up to this size an object is fetched by one request when it is opened."""
_END_BYTES = 1 << 20
"""Holds the footers of most files: Hudi's contain a bloom filter of half a MiB."""
_GAP_BYTES = 256 << 10
"""A gap between two spans is fetched with them up to this size: it takes less time than another request."""
_PART_BYTES = 16 << 20
"""Up to this size an object is put by one request; a larger one takes two requests more than it has parts."""
_PARTS_AT_ONCE = 2
_BYTES_MAX = 5 << 30
"""The most that one UploadPartCopy copies."""


class Upload(io.RawIOBase):
    """An upload that no reader sees before `close`. An upload that is aborted, or abandoned, never appears.
    `key` is unique: an object under it is this upload."""

    def __init__(self, store: Any, key: str) -> None:
        super().__init__()
        self._store, self._key = store, key
        self._writer: Any = obstore.open_writer(store, key, buffer_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._size + len(view) > _BYTES_MAX:  # it could not be placed: fail before anything is decided
            raise OSError(errno.EFBIG, f"an object store places files of at most {_BYTES_MAX:,} bytes")
        with _as_os_error():
            self._writer.write(view if view.contiguous else bytes(view))
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Does nothing: the object appears complete, at the end."""

    def close(self) -> None:
        """Completes the upload: the object exists from here on."""
        if not self.closed:
            writer, self._writer = self._writer, None
            super().close()
            if self._size > _PART_BYTES:
                count_requests(1 - (-self._size // _PART_BYTES))  # the parts and the end; the begin is counted
            with _as_os_error():
                try:
                    writer.close()
                except (BaseError, OSError):
                    # After a lost answer obstore completes the upload again, which no longer exists then.
                    if not self._is_there():
                        raise

    def _is_there(self) -> bool:
        with suppress(BaseError, OSError):
            return bool(obstore.head(self._store, self._key)["size"] == self._size)
        return False

    def abort(self) -> None:
        """Abandons the upload: no object appears, and the parts that were sent are discarded."""
        if not self.closed:
            writer, self._writer = self._writer, None
            super().close()
            with suppress(BaseError, OSError):  # the bucket's rule for unfinished uploads removes the rest
                writer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)

    def __del__(self) -> None:
        # io's own would close, and publish an incomplete object.
        if getattr(self, "_writer", None) is not None:
            self.abort()


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Raises a failed request as an OSError, like a full disk."""
    try:
        yield
    except BaseError as error:
        raise OSError(errno.EIO, store_words(error)) from error


def open_object(store: Any, key: str, translated: Translated, *, whole: bool) -> pa.NativeFile:
    """Random access to an object; `whole`: see `Storage.open_input`. `translated`: gives errors their place in the
    tree, also those of later requests: pyarrow raises them unchanged."""
    fetch = partial(_fetch, store, key, translated)

    def again() -> Any:
        return obstore.get(store, key).bytes()

    with translated():
        if whole:
            found = obstore.get(store, key)
            size = found.meta["size"]
            if size > _WHOLE_BYTES:
                return open_ranges(fetch, size)
            data = found.bytes()
            return pa.BufferReader(pa.py_buffer(data if len(data) == size else _asked(again, size)))
        try:
            found = obstore.get(store, key, options={"range": {"suffix": _END_BYTES}})
        except BaseError:  # Azure does not serve the end of an object of unknown size, and an empty object has none
            return open_ranges(fetch, obstore.head(store, key)["size"])
        size, end = found.meta["size"], found.bytes()
        return open_ranges(fetch, size, end if len(end) == min(size, _END_BYTES) else b"")


def _fetch(store: Any, key: str, translated: Translated, spans: Sequence[Span]) -> Sequence[Any]:
    starts, counts = [at for at, _ in spans], [count for _, count in spans]

    def ask() -> Sequence[Any]:
        found: Sequence[Any] = obstore.get_ranges(store, key, starts=starts, lengths=counts, coalesce=_GAP_BYTES)
        return found

    with translated():
        answer: Sequence[Any] = _asked(ask, counts)
    return answer


def _asked(ask: Callable[[], Any], expected: int | list[int]) -> Any:
    """An answer of the expected length, or lengths. obstore accepts a part of a range as all of it, and does not retry
    after such an answer. BaseError, OSError: those of the last try."""
    for is_last in retries(READ_AGAIN):
        try:
            data = ask()
            found = len(data) if isinstance(expected, int) else [len(one) for one in data]
            if found == expected:
                return data
            raise OSError(errno.EIO, f"an answer of {found} bytes to a request for {expected}")
        except (FileNotFoundError, PermissionDeniedError, UnauthenticatedError):
            raise
        except (BaseError, OSError):
            if is_last:
                raise
    raise AssertionError("the last try raises")


_ANSWER_S, _TRANSFER_S, _COPY_S = 30, 600, 3600
"""Timeouts of a small request, of one that carries up to some GiB, and of a copy within the store."""
_SILENT_S = 60.0
"""So long a store may send nothing of an answer. A request that carries much may take longer: its answer comes last."""
_PATIENCE: RetryConfig = {
    "max_retries": 1000,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 3},
}
"""An overloaded store refuses all requests for some seconds. Ten tries, obstore's default, take about three."""
_ONCE: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(seconds=60)}
_HIDDEN = "***"
_URLS, _HTTP = ("endpoint", "base_url", "authority_host"), "allow_http"


_known: dict[int, StoreFacts] = {}


def forget() -> None:
    """Drops everything that this process knows of stores."""
    _known.clear()


@dataclass(frozen=True, slots=True)
class Clients:
    """`patient` retries when a request fails; so does `sending`, which waits for an answer longer. `once` does not: the
    outcome of a conditional write must be known. `copying` is `once` with the timeout of a copy of some GiB. `place`:
    one name for all URLs of the place."""

    cloud: Cloud
    bucket: str
    place: str
    patient: Any
    sending: Any
    once: Any
    copying: Any
    identity: int
    """Differs for clients of other settings."""
    settings: Settings
    """The options given; all others come from the environment."""
    rate: float | None = None
    """The most requests a second, see `RequestPace`."""
    _secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def known(self) -> StoreFacts:
        """The same for all clients of these settings."""
        found = _known.get(self.identity)
        return found if found is not None else _known.setdefault(self.identity, StoreFacts(pace=RequestPace(self.rate)))

    def begin_request(self) -> None:
        """Counts a request, and waits while others fill the time. Renewals of leases do neither."""
        count_requests()
        self.known.pace.wait()

    def text(self, error: Exception) -> str:
        """An error in one line, without secrets."""
        return _hidden(store_words(error), self._secrets)

    def advice(self, error: Exception) -> str | None:
        """What to do if a store refuses this process: supply the secrets that another process did not send to it, or
        any. None: it is another error."""
        if withheld := ", ".join(self.settings.withheld):
            return (
                "The options of the driver hold secrets, which are never sent: give "
                f"{withheld} to each executor (spark.executorEnv.NAME, or a role of the machine)."
            )
        if not any(host in str(error) for host in _ROLES):
            return None
        return (
            f"Give credentials of {self.cloud.name}, as options or as variables {self.cloud.environment}...: this "
            "machine has no role that gives some."
        )


_ROLES = ("169.254.169.254", "169.254.170.", "metadata.google.internal")
"""Where the role of a machine or container is asked for credentials."""
_TRIES = re.compile(r"(?:,? after \d+ retries)?(?:, max_retries: \d+)?(?:, retry_timeout: [\d.]+\w+)? +- ")
_CAUSE = re.compile(r'message: "([^"]+)"')
"""The cause that the system gave, in what obstore appends for its own debugging."""


def store_words(error: Exception) -> str:
    """What a store or the way to it says, in one line: the request, its answer, and the system's own reason."""
    text, _, inner = str(error).partition("Debug source:")
    words = _TRIES.sub(": ", re.sub(r"^Generic \w+ error: ", "", " ".join(text.split())))
    causes = [one for one in _CAUSE.findall(inner) if one not in words]
    causes += ["no answer in time"] if "kind: Timeout" in inner else []
    return "; ".join([words[:500] or fault_of(error), *causes[-1:]])


def _hidden(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
    return text


def version(meta: Any) -> Any:
    """What a conditional put names of the object that it replaces: the ETag, on GCS the generation."""
    return {name: value for name in ("e_tag", "version") if (value := meta.get(name))}


def open_clients(url: ObjectUrl, settings: Settings) -> Clients:
    """The clients of a place, with the connections of its bucket. UsageError: options or environment have impossible
    values."""
    environment = environment_of(url.cloud, os.environ)
    found = _opened(replace(url, prefix=""), settings, tuple(sorted(environment.items())))
    return replace(found, place=f"{found.place}/{url.prefix}".rstrip("/"))


@lru_cache(maxsize=64)
def _opened(url: ObjectUrl, settings: Settings, environment: tuple[tuple[str, str], ...]) -> Clients:
    named, cloud = dict(environment), url.cloud
    account = settings.of("account_name") or (cloud is AZURE and named.get("AZURE_STORAGE_ACCOUNT_NAME")) or None
    if cloud is AZURE and account is None:
        expected = f"{cloud.expected}, or AZURE_STORAGE_ACCOUNT_NAME"
        raise UsageError("no account in the URL", path=f"abfs://{url.bucket}/{url.prefix}", expected=expected)
    secrets = secrets_of(cloud, settings, named)
    own = _OPENERS[cloud.name](url, settings, named)
    _check_urls(url, settings, named)

    def opened(seconds: int, silent_s: float | None = None, *, patient: bool = False, **more: Any) -> Any:
        retries = _PATIENCE if patient else _ONCE
        return own(client_options=_connection(cloud, settings, named, seconds, silent_s), retry_config=retries, **more)

    copying: Any = {"copy_if_not_exists": "multipart"} if cloud is S3 else {}
    try:
        return Clients(
            cloud=cloud,
            bucket=url.bucket,
            place=url.place(account),
            patient=opened(_TRANSFER_S, _SILENT_S, patient=True),
            sending=opened(_TRANSFER_S, patient=True),
            once=opened(_ANSWER_S),
            copying=opened(_COPY_S, **copying),
            identity=hash((url.cloud.name, url.bucket, settings, environment)),
            settings=settings,
            rate=most_requests(cloud, settings, named),
            _secrets=secrets,
        )
    except Exception as error:
        what = f"the settings of {cloud.name} in options and environment cannot be used"
        # The cause may show a secret.
        raise UsageError(
            what,
            path=url.bucket,
            found=_hidden(store_words(error), secrets),
            todo="Correct the option, or the variable of the environment.",
        ) from None


def _check_urls(url: ObjectUrl, settings: Settings, environment: Mapping[str, str]) -> None:
    """UsageError: obstore panics over what is no URL, and does not say why it refuses one without TLS."""
    names = {setting.name for setting in SETTINGS[url.cloud.name]}
    found = {n: settings.of(n) or from_environment(url.cloud, n, environment) or "" for n in names & {*_URLS, _HTTP}}
    for name in filter(found.get, _URLS):
        if not is_server_url(found[name]):
            raise UsageError("not the URL of a server", path=url.bucket, expected="http[s]://HOST[:PORT]", found=name)
        if found[name].startswith("http:") and found[_HTTP].lower() not in ("1", "true", "on", "yes", "y"):
            raise UsageError(
                "a server without TLS is not allowed", path=url.bucket, found=name, todo=f"Add the option {_HTTP}=true."
            )


def _connection(
    cloud: Cloud, settings: Settings, environment: Mapping[str, str], seconds: int, silent_s: float | None
) -> ClientConfig:
    """Options of the connection: passed with the timeout, since obstore then reads none from the environment."""
    given = ((name, settings.of(name) or from_environment(cloud, name, environment)) for name in CONNECTION)
    found: Any = {name: value for name, value in given if value is not None}
    found["timeout"] = timedelta(seconds=seconds)
    if silent_s is not None:
        found["read_timeout"] = timedelta(seconds=silent_s)
    return found  # type: ignore[no-any-return]


def _own(cloud: Cloud, settings: Settings, *without: str) -> Any:
    """The options of the store itself. Given credentials are used, even if the environment sets `skip_signature`."""
    found: dict[str, Any] = {n: v for n, v in settings.values if n not in (*CONNECTION, MOST_REQUESTS, *without)}
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
    kinds = {  # credentials, and obstore's names of them
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


def aws_client(service: str, given: Settings, region: str = "", endpoint: str = "", config: Any = None) -> Any:
    """A client of boto3 for a service of AWS. It finds credentials and region in the places where the clients of S3 do.
    `region`, `endpoint` empty: those of the settings, and of AWS's environment. `config`: botocore's; by default a
    request is made once. ImportError: the package is missing."""
    import boto3
    from botocore.config import Config

    usual = Config(connect_timeout=_ANSWER_S, read_timeout=_ANSWER_S, retries={"total_max_attempts": 1})
    return boto3.client(
        service,
        endpoint_url=endpoint or None,
        region_name=region or aws_setting(given, "region"),
        aws_access_key_id=given.of("access_key_id"),
        aws_secret_access_key=given.of("secret_access_key"),
        aws_session_token=given.of("session_token"),
        config=usual.merge(config) if config is not None else usual,
    )


def aws_setting(given: Settings, name: str) -> str | None:
    """An option of S3 as it is given, or in the environment."""
    return given.of(name) or from_environment(S3, name, os.environ)
