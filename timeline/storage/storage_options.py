"""Options of object stores: where the store is, how it is entered, and how it encrypts (pure).

Each has one name here (obstore's), environment variables, and mostly a name of Hadoop (`object_url`); any of them is
accepted. A given option wins over a Spark session's Hadoop configuration, and that over the environment. Credentials
come from one source together: a mix of two sources would be valid for no user."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from ..errors import UnsupportedError, UsageError
from .object_url import AZURE, CLOUDS, GCS, S3, Cloud, ObjectUrl, from_hadoop, hadoop_meaning, hadoop_name, hadoop_names


@dataclass(frozen=True, slots=True)
class Setting:
    """One option. `secret`: it is never shown, and never sent. `credential`: see the module."""

    name: str
    variables: tuple[str, ...]
    secret: bool = False
    credential: bool = False


def _secret(name: str, *variables: str) -> Setting:
    return Setting(name, variables, secret=True, credential=True)


def _connection(cloud: Cloud) -> tuple[Setting, ...]:
    names = (*CONNECTION, MOST_REQUESTS)
    return tuple(Setting(name, (cloud.environment + name.upper(),), secret=name == "proxy_url") for name in names)


MOST_REQUESTS = "max_requests_per_second"
"""How many requests a process makes of a bucket in a second; obstore does not know it."""

CONNECTION = (
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
"""Options of the connection. The URL of a proxy may contain a password."""

_OF_S3 = (
    Setting("endpoint", ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3")),
    Setting("region", ("AWS_REGION", "AWS_DEFAULT_REGION")),
    Setting("virtual_hosted_style_request", ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST",)),
    Setting("request_payer", ("AWS_REQUEST_PAYER",)),
    Setting("server_side_encryption", ("AWS_SERVER_SIDE_ENCRYPTION",)),
    Setting("sse_kms_key_id", ("AWS_SSE_KMS_KEY_ID",)),
    Setting("sse_bucket_key_enabled", ("AWS_SSE_BUCKET_KEY_ENABLED",)),
    Setting("disable_bulk_delete", ("AWS_DISABLE_BULK_DELETE",)),
    Setting("skip_signature", ("AWS_SKIP_SIGNATURE",), credential=True),
    _secret("access_key_id", "AWS_ACCESS_KEY_ID"),
    _secret("secret_access_key", "AWS_SECRET_ACCESS_KEY"),
    _secret("session_token", "AWS_SESSION_TOKEN", "AWS_TOKEN"),
    *_connection(S3),
)
_OF_AZURE = (
    Setting("account_name", ("AZURE_STORAGE_ACCOUNT_NAME",)),
    Setting("endpoint", ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")),
    Setting("authority_host", ("AZURE_AUTHORITY_HOST", "AZURE_STORAGE_AUTHORITY_HOST")),
    Setting("skip_signature", ("AZURE_SKIP_SIGNATURE",), credential=True),
    Setting("client_id", ("AZURE_CLIENT_ID", "AZURE_STORAGE_CLIENT_ID"), credential=True),
    Setting("tenant_id", ("AZURE_TENANT_ID", "AZURE_STORAGE_TENANT_ID"), credential=True),
    _secret("account_key", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"),
    _secret("sas_key", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
    _secret("client_secret", "AZURE_CLIENT_SECRET", "AZURE_STORAGE_CLIENT_SECRET"),
    _secret("token", "AZURE_STORAGE_TOKEN"),
    *_connection(AZURE),
)
_OF_GCS = (
    Setting("base_url", ("GOOGLE_BASE_URL",)),
    Setting("skip_signature", ("GOOGLE_SKIP_SIGNATURE",), credential=True),
    Setting("service_account", ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"), credential=True),
    Setting("application_credentials", ("GOOGLE_APPLICATION_CREDENTIALS",), credential=True),
    _secret("service_account_key", "GOOGLE_SERVICE_ACCOUNT_KEY"),
    _secret("bearer_token", "GOOGLE_BEARER_TOKEN"),
    *_connection(GCS),
)
SETTINGS: Mapping[str, tuple[Setting, ...]] = {S3.name: _OF_S3, AZURE.name: _OF_AZURE, GCS.name: _OF_GCS}
"""The options by the name of the kind of store."""

_LEAST_RATE = 5
_OWN_KEYS = ("AWS_SSE_CUSTOMER_KEY_BASE64", "AZURE_ENCRYPTION_KEY")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options that apply to one place, by their names. `withheld`: secrets that another process did not send."""

    values: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    withheld: tuple[str, ...] = ()

    def of(self, name: str) -> str | None:
        return dict(self.values).get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """Options under any of their names. `hadoop`: a Hadoop configuration; `given` wins. Picklable, without secrets."""

    given: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    hadoop: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    withheld: tuple[str, ...] = ()

    @staticmethod
    def of(given: Mapping[str, str] | StorageOptions | None) -> StorageOptions:
        """UsageError: an unknown name."""
        if isinstance(given, StorageOptions):
            return given
        if given is not None and not isinstance(given, Mapping):
            raise UsageError("not options of a storage", expected="a dictionary, like {'region': 'eu-west-1'}")
        for name in map(str, given or {}):
            if not (hadoop_name(name) or any(_setting(cloud, name) for cloud in CLOUDS)):
                raise _unknown(name)
        return StorageOptions(given=tuple((name, str(value)) for name, value in (given or {}).items()))

    @property
    def without_secrets(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, value) for name, value in self.given if not _secret_variable(name))

    @property
    def secret_variables(self) -> dict[str, str]:
        """The secrets given, as environment variables of another process."""
        return {found: value for name, value in self.given if (found := _secret_variable(name)) is not None}

    def __reduce__(self) -> tuple[Any, ...]:
        secret = {name: found for name, _ in (*self.given, *self.hadoop) if (found := _secret_variable(name))}
        given, hadoop = (
            tuple((name, value) for name, value in pairs if name not in secret) for pairs in (self.given, self.hadoop)
        )
        withheld = tuple(dict.fromkeys(secret.values())) or self.withheld
        return partial(StorageOptions, given=given, hadoop=hadoop, withheld=withheld), ()

    def over(self, hadoop: Mapping[str, str]) -> StorageOptions:
        """These options, and below them a Hadoop configuration: its other settings are ignored."""
        return replace(self, hadoop=tuple({**hadoop, **dict(self.hadoop)}.items()))

    def at(self, url: ObjectUrl) -> Settings:
        """The options that apply to a place. UsageError: two names of one option have two values."""
        above, below = _named(self.given, url), from_hadoop(dict(self.hadoop), url)
        if above.keys() & _credentials(url.cloud):
            below = {name: value for name, value in below.items() if name not in _credentials(url.cloud)}
        values = {**below, **above}
        if url.account is not None and values.setdefault("account_name", url.account) != url.account:
            raise UsageError(
                "the URL and an option name two accounts",
                found=f"{url.account}, account_name",
                todo="Leave one of them out.",
            )
        if url.endpoint is not None:
            values.setdefault("endpoint", url.endpoint)
        if values.get("server_side_encryption", "").lower() == "sse-c":
            raise own_key_refused("server_side_encryption=sse-c")
        return Settings(values=tuple(sorted(values.items())), withheld=self.withheld)


Given: TypeAlias = "Mapping[str, str] | StorageOptions | None"
"""Options in the forms that functions accept."""


def parse_pairs(pairs: Iterable[str] | None) -> StorageOptions:
    """Options of the command line; UsageError: not NAME=VALUE, or an unknown name."""
    found: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(
                "--storage-option is not NAME=VALUE", found=f"{name.split(':')[0]}", expected="like region=eu-west-1"
            )
        if found.setdefault(name, value) != value:
            raise UsageError(
                "--storage-option gives a name twice with different values", found=name, todo="Give one value."
            )
    return StorageOptions.of(found)


def without_secrets(settings: Settings, cloud: Cloud) -> StorageOptions:
    """The options that may be sent to another process, which must find the secrets itself."""
    secret = {setting.name: setting.variables[0] for setting in SETTINGS[cloud.name] if setting.secret}
    return StorageOptions(
        given=tuple((name, value) for name, value in settings.values if name not in secret),
        withheld=tuple(secret[name] for name, _ in settings.values if name in secret) or settings.withheld,
    )


def environment_of(cloud: Cloud, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of a kind of store. UnsupportedError: keys of the customer's own."""
    found = {name: value for name, value in environment.items() if name.startswith(cloud.environment)}
    for name in _OWN_KEYS:
        if name in found:
            raise own_key_refused(name)
    if found.get("AWS_SERVER_SIDE_ENCRYPTION", "").lower() == "sse-c":
        raise own_key_refused("AWS_SERVER_SIDE_ENCRYPTION")
    return found


def from_environment(cloud: Cloud, name: str, environment: Mapping[str, str]) -> str | None:
    variables = next(setting.variables for setting in SETTINGS[cloud.name] if setting.name == name)
    return next((environment[variable] for variable in variables if variable in environment), None)


def most_requests(cloud: Cloud, settings: Settings, environment: Mapping[str, str]) -> float | None:
    """The value of `MOST_REQUESTS`; None: no limit. UsageError: another one is impossible."""
    text = settings.of(MOST_REQUESTS) or from_environment(cloud, MOST_REQUESTS, environment)
    if text is None:
        return None
    with suppress(ValueError):
        if _LEAST_RATE <= float(text) < math.inf:
            return float(text)
    # The turn of a heartbeat must come in time.
    raise UsageError(f"not a {MOST_REQUESTS}", expected=f"a number from {_LEAST_RATE} on", found=text)


def secrets_of(cloud: Cloud, settings: Settings, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values that no message may show."""
    names = [setting.name for setting in SETTINGS[cloud.name] if setting.secret]
    found = (settings.of(name) or from_environment(cloud, name, environment) for name in names)
    return tuple(value for value in found if value)


def own_key_refused(found: str) -> UnsupportedError:
    """Encryption with keys that each request carries: UploadPartCopy needs the key twice, and obstore (object_store
    0.14) sends it once."""
    what = "encryption with keys of the customer's own (SSE-C) is not supported"
    return UnsupportedError(what, expected="server_side_encryption=AES256 or aws:kms", found=found)


def _named(given: tuple[tuple[str, str], ...], url: ObjectUrl) -> dict[str, str]:
    found: dict[str, str] = {}
    hadoop = from_hadoop({name: value for name, value in given if hadoop_name(name)}, url)
    pairs = [*hadoop.items(), *((_setting(url.cloud, name), value) for name, value in given)]
    for name, value in pairs:
        if name is not None and found.setdefault(name, value) != value:
            raise UsageError(
                "--storage-option gives a name twice with different values", found=name, todo="Give one value."
            )
    return found


def _setting(cloud: Cloud, name: str) -> str | None:
    """The option of a kind of store with this name or environment variable; None: there is none."""
    for setting in SETTINGS[cloud.name]:
        if name.lower() == setting.name or name.upper() in setting.variables:
            return setting.name
    return None


def _credentials(cloud: Cloud) -> set[str]:
    return {setting.name for setting in SETTINGS[cloud.name] if setting.credential}


def _secret_variable(name: str) -> str | None:
    """The environment variable of a secret, under any of its names; None: an option that is no secret."""
    ours = hadoop_meaning(name)
    for cloud in CLOUDS:
        named = ours or _setting(cloud, name)
        found = next((s for s in SETTINGS[cloud.name] if s.name == named and s.secret), None)
        if found is not None:
            return found.variables[0]
    return None


def _unknown(name: str) -> UsageError:
    settings = [setting for of in SETTINGS.values() for setting in of]
    names = {n for s in settings for n in (s.name, *s.variables)} | hadoop_names()
    close = difflib.get_close_matches(name, names, n=1) or difflib.get_close_matches(name.lower(), names, n=1)
    todo = f"Did you mean {close[0]}?" if close else "docs/guides/object-stores.md lists them."
    return UsageError("not an option of a storage", found=name, todo=todo)
