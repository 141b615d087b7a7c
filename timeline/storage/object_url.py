"""URLs of object stores, and what differs between the stores (pure).

s3://BUCKET/PREFIX, s3a://BUCKET/PREFIX                      S3
gs://BUCKET/PREFIX                                           Google Cloud Storage
abfs[s]://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX      Azure; wasb[s]://CONTAINER@ACCOUNT.blob...
abfs[s]://CONTAINER/PREFIX, az://CONTAINER/PREFIX            Azure; the account is a setting
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """A kind of object store: its words in messages, and how it keeps the promises.

    `environment`: how the names of its environment variables begin. `put`, `copy`, `replace`: the conditions that
    put-if-absent, copy-if-absent and replace-if-unchanged rest on. `copies_later`: a copy may be answered before it is
    complete.
    """

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
    """The kind of object store that an URL or path names; None: another storage."""
    scheme = url.partition("://")[0] if "://" in url else ""
    return next((cloud for cloud in CLOUDS if scheme in cloud.schemes), None)


_HOST = re.compile(r"(?P<account>[a-z0-9]+)\.(?P<zone>(?:[^.]+\.)*?)(?:dfs|blob)\.(?P<domain>.+)")
_USUAL = ("", "core.windows.net")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectUrl:
    """A place in an object store. `bucket`: Azure's container. `account`, `endpoint`: Azure's, where it says them."""

    cloud: Cloud
    bucket: str
    prefix: str
    account: str | None = None
    endpoint: str | None = None

    @staticmethod
    def parse(url: str) -> ObjectUrl:
        """The place; UsageError: the URL names no bucket, or no account where one is expected."""
        rest = url.partition("://")[2]
        cloud = cloud_of(url)
        assert cloud is not None, url
        authority, _, prefix = rest.partition("/")
        bucket, at, host = authority.partition("@")
        if not bucket or (at and cloud is not AZURE):
            raise UsageError("no bucket in the URL", path=url, expected=cloud.expected)
        if not at:
            return ObjectUrl(cloud=cloud, bucket=bucket, prefix=prefix.strip("/"))
        if (found := _HOST.fullmatch(host)) is None:
            raise UsageError("no account in the URL", path=url, expected=cloud.expected, found=host)
        account, zone, domain = found.group("account", "zone", "domain")
        endpoint = None if (zone, domain) == _USUAL else f"https://{account}.{zone}blob.{domain}"
        return ObjectUrl(cloud=cloud, bucket=bucket, prefix=prefix.strip("/"), account=account, endpoint=endpoint)

    def place(self, account: str | None) -> str:
        """One name for all URLs of the place. `account`: that of the settings, where the URL says none."""
        root = f"{self.bucket}@{self.account or account}" if self.cloud is AZURE else self.bucket
        return f"{self.cloud.schemes[0]}://{root}/{self.prefix}".rstrip("/")
