"""URLs of object stores, what differs between the stores, and Hadoop's names of their options (pure).

    s3://BUCKET/PREFIX, s3a://BUCKET/PREFIX                      S3
    gs://BUCKET/PREFIX                                           Google Cloud Storage
    abfs[s]://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX      Azure; wasb[s]://CONTAINER@ACCOUNT.blob...
    abfs[s]://CONTAINER/PREFIX, az://CONTAINER/PREFIX            Azure; the account is a setting

    fs.s3a.NAME, fs.s3a.bucket.BUCKET.NAME                       Hadoop's options: S3
    fs.azure.NAME, fs.azure.NAME.ACCOUNT.dfs.core.windows.net    Azure
    fs.gs.NAME                                                   Google Cloud Storage

An option with a bucket or an account in its name wins. Options of other subjects (threads, buffers) are ignored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..errors import UnsupportedError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """A kind of object store: its names in messages, and how it keeps the promises.
    `environment`: the prefix of its environment variables. `put`, `copy`, `replace`: the conditions that put-if-absent,
    copy-if-absent and replace-if-unchanged rest on. `copies_later`: a copy may be answered before it is complete."""

    name: str
    schemes: tuple[str, ...]
    environment: str
    expected: str
    put: str
    copy: str
    replace: str
    copies_later: bool = False


S3 = Cloud(
    name="S3",
    schemes=("s3", "s3a"),
    environment="AWS_",
    expected="s3://BUCKET/PATH",
    put="PUT with If-None-Match: *",
    copy="CompleteMultipartUpload with If-None-Match: *",
    replace="PUT with If-Match",
)
AZURE = Cloud(
    name="Azure",
    schemes=("abfs", "abfss", "wasb", "wasbs", "az"),
    environment="AZURE_",
    expected="abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
    put="Put Blob with If-None-Match: *",
    copy="Copy Blob with If-None-Match: *",
    replace="Put Blob with If-Match",
    copies_later=True,
)
GCS = Cloud(
    name="GCS",
    schemes=("gs",),
    environment="GOOGLE_",
    expected="gs://BUCKET/PATH",
    put="PUT with x-goog-if-generation-match: 0",
    copy="copy with x-goog-if-generation-match: 0",
    replace="PUT with x-goog-if-generation-match",
)
CLOUDS = (S3, AZURE, GCS)


def cloud_of(url: str) -> Cloud | None:
    """The kind of object store that a URL or path names; None: another storage."""
    scheme = url.partition("://")[0] if "://" in url else ""
    return next((cloud for cloud in CLOUDS if scheme in cloud.schemes), None)


_HOST = re.compile(r"(?P<account>[a-z0-9]+)\.(?P<zone>(?:[^.]+\.)*?)(?:dfs|blob)\.(?P<domain>.+)")
_USUAL = ("", "core.windows.net")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectUrl:
    """A place in an object store. `bucket`: Azure's container. `account`, `endpoint`: Azure's, if the URL has them."""

    cloud: Cloud
    bucket: str
    prefix: str
    account: str | None = None
    endpoint: str | None = None

    @staticmethod
    def parse(url: str) -> ObjectUrl:
        """The place; UsageError: the URL names no bucket, or no account where one is expected. UnsupportedError: a
        kind of bucket that phantombase cannot work on."""
        rest = url.partition("://")[2]
        cloud = cloud_of(url)
        assert cloud is not None, url
        authority, _, prefix = rest.partition("/")
        bucket, at, host = authority.partition("@")
        if not bucket or (at and cloud is not AZURE):
            raise UsageError("no bucket in the URL", path=url, expected=cloud.expected)
        if cloud is S3:
            _check_kind(bucket, url)
        if not at:
            return ObjectUrl(cloud=cloud, bucket=bucket, prefix=prefix.strip("/"))
        if (found := _HOST.fullmatch(host)) is None:
            raise UsageError("no account in the URL", path=url, expected=cloud.expected, found=host)
        account, zone, domain = found.group("account", "zone", "domain")
        endpoint = None if (zone, domain) == _USUAL else f"https://{account}.{zone}blob.{domain}"
        return ObjectUrl(cloud=cloud, bucket=bucket, prefix=prefix.strip("/"), account=account, endpoint=endpoint)

    def place(self, account: str | None) -> str:
        """One name for all URLs of the place. `account`: that of the settings, used if the URL has none."""
        root = f"{self.bucket}@{self.account or account}" if self.cloud is AZURE else self.bucket
        return f"{self.cloud.schemes[0]}://{root}/{self.prefix}".rstrip("/")


def _check_kind(bucket: str, url: str) -> None:
    """UnsupportedError: this name of S3 is not that of a usual bucket, or of an access point to one."""
    if bucket.startswith("arn:") or bucket.endswith(".mrap"):
        what, todo = "an access point by its ARN, or of several regions", "Name its alias (...-s3alias), or the bucket."
    elif bucket.endswith("--x-s3"):
        what = "a directory bucket (S3 Express One Zone): its listings have no order, which timelines need"
        todo = "Use a general purpose bucket."
    elif bucket.endswith("--ol-s3"):
        what, todo = "an access point of Object Lambda: it changes what is read", "Name the bucket itself."
    else:
        return
    raise UnsupportedError(what, path=url, expected=S3.expected, found=bucket, todo=todo)


_S3A, _AZURE, _GS = "fs.s3a.", "fs.azure.", "fs.gs."

_PLAIN: Mapping[str, Mapping[str, str]] = {
    _S3A: {
        "access.key": "access_key_id",
        "secret.key": "secret_access_key",
        "session.token": "session_token",
        "endpoint.region": "region",
        "requester.pays.enabled": "request_payer",
    },
    _AZURE: {
        "account.key": "account_key",
        "sas.fixed.token": "sas_key",
        "account.oauth2.client.id": "client_id",
        "account.oauth2.client.secret": "client_secret",
    },
    _GS: {"auth.service.account.json.keyfile": "service_account", "storage.root.url": "base_url"},
}
"""Options whose values are used unchanged."""

_READ: Mapping[str, tuple[str, ...]] = {
    _S3A: (
        "endpoint",
        "connection.ssl.enabled",
        "path.style.access",
        "encryption.algorithm",
        "server-side-encryption-algorithm",
        "encryption.key",
        "server-side-encryption.key",
        "aws.credentials.provider",
        "proxy.host",
        "proxy.port",
    ),
    _AZURE: ("account.oauth2.client.endpoint",),
    _GS: ("auth.type",),
}
"""Options whose values are translated."""

_ENCRYPTION = {"AES256": "AES256", "SSE-S3": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse"}
_OF_AWS = re.compile(r"s3([.-](?P<region>[a-z0-9-]+))?\.amazonaws\.com(\.cn)?")
_TENANT = re.compile(r"(?P<host>https://[^/]+)/(?P<tenant>[^/]+)/oauth2/.*")


def hadoop_names() -> set[str]:
    """The known names of Hadoop, without those of a bucket or an account."""
    return {above + name for above in _PLAIN for name in (*_PLAIN[above], *_READ[above])}


def hadoop_name(name: str) -> bool:
    """Whether a name is known, with or without a bucket or an account."""
    if name.startswith(f"{_S3A}bucket."):
        return any(name.endswith(f".{known}") for known in (*_PLAIN[_S3A], *_READ[_S3A]))
    of_accounts = (_AZURE + known for known in (*_PLAIN[_AZURE], *_READ[_AZURE]))
    return name in hadoop_names() or any(name.startswith(f"{known}.") for known in of_accounts)


def hadoop_meaning(name: str) -> str | None:
    """Our name of an option whose value is used unchanged; None: another option, or an unknown name."""
    for above, names in _PLAIN.items():
        for known, ours in names.items():
            of_bucket = name.startswith(f"{above}bucket.") and name.endswith(f".{known}")
            if name == above + known or name.startswith(f"{above}{known}.") or of_bucket:
                return ours
    return None


def names_at(path: str) -> list[str]:
    """The names to read from a Hadoop configuration for one URL; none for another storage."""
    if cloud_of(path) is None:
        return []
    url = ObjectUrl.parse(path)
    return [name for above in _PLAIN for known in (*_PLAIN[above], *_READ[above]) for name in _names(above, known, url)]


def from_hadoop(conf: Mapping[str, str], url: ObjectUrl) -> dict[str, str]:
    """Options for a place, by our names. UnsupportedError: an encryption that is not supported."""
    above = {S3: _S3A, AZURE: _AZURE, GCS: _GS}[url.cloud]

    def get(known: str) -> str | None:
        return next((conf[name].strip() for name in _names(above, known, url) if conf.get(name, "").strip()), None)

    found = {ours: value for known, ours in _PLAIN[above].items() if (value := get(known)) is not None}
    return {**found, **_TRANSLATED[above](get)}


def _names(above: str, known: str, url: ObjectUrl) -> Iterable[str]:
    """The names of one option, the closest to the place first."""
    if above == _S3A and url.cloud is S3:
        yield f"{_S3A}bucket.{url.bucket}.{known}"
    if above == _AZURE and url.account is not None:
        blob = (url.endpoint or f"https://{url.account}.blob.core.windows.net").removeprefix("https://")
        yield f"{_AZURE}{known}.{blob.replace('.blob.', '.dfs.')}"
        yield f"{_AZURE}{known}.{blob}"
    yield above + known


_Get = Callable[[str], str | None]


def _s3(get: _Get) -> dict[str, str]:
    found: dict[str, str] = {}
    plain = get("connection.ssl.enabled") == "false"
    if endpoint := get("endpoint"):
        host = endpoint.rpartition("://")[2].rstrip("/")
        if aws := _OF_AWS.fullmatch(host):
            if aws["region"] and not get("endpoint.region"):
                found["region"] = aws["region"]
        else:
            found["endpoint"] = endpoint if "://" in endpoint else f"{'http' if plain else 'https'}://{endpoint}"
    if plain or found.get("endpoint", "").startswith("http://"):
        found["allow_http"] = "true"
    if path_style := get("path.style.access"):
        found["virtual_hosted_style_request"] = "false" if path_style == "true" else "true"
    if algorithm := get("encryption.algorithm") or get("server-side-encryption-algorithm"):
        found["server_side_encryption"] = _encryption(algorithm)
        key = get("encryption.key") or get("server-side-encryption.key")
        if key and found["server_side_encryption"] != "AES256":
            found["sse_kms_key_id"] = key
    if "AnonymousAWSCredentialsProvider" in (get("aws.credentials.provider") or ""):
        found["skip_signature"] = "true"
    if proxy := get("proxy.host"):
        found["proxy_url"] = f"http://{proxy}:{get('proxy.port') or 80}"
    return found


def _encryption(algorithm: str) -> str:
    if algorithm.upper() not in _ENCRYPTION:
        expected, found = ", ".join(_ENCRYPTION), f"{_S3A}encryption.algorithm={algorithm}"
        raise UnsupportedError("an encryption of S3 that phantombase cannot make", expected=expected, found=found)
    return _ENCRYPTION[algorithm.upper()]


def _azure(get: _Get) -> dict[str, str]:
    found = _TENANT.fullmatch(get("account.oauth2.client.endpoint") or "")
    return {"tenant_id": found["tenant"], "authority_host": found["host"]} if found else {}


def _gs(get: _Get) -> dict[str, str]:
    return {"skip_signature": "true"} if get("auth.type") == "UNAUTHENTICATED" else {}


_TRANSLATED: Mapping[str, Callable[[_Get], dict[str, str]]] = {_S3A: _s3, _AZURE: _azure, _GS: _gs}
