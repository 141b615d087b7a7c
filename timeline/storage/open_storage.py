"""The only place that opens a storage by its URL."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from ..errors import UnsupportedError, UsageError
from .contract import ForwardingStorage, Storage
from .local import LocalStorage
from .object_url import CLOUDS, ObjectUrl, cloud_of
from .storage_options import Given, StorageOptions

_FILE, _HDFS = "file", "hdfs"
_NAME_NODE = "HOST:PORT"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def full_path(url: str) -> str:
    """The base path as reports show it: a local path as an absolute one, another URL unchanged (pure but for the
    working directory). Local paths are plain ones, and as Hadoop and Spark print them: `file:/PATH`.
    UsageError: no path and no URL, as `s3:/BUCKET/PATH`, or a local URL with a host."""
    if (scheme := _SCHEME.match(url)) is None:
        return os.path.abspath(url)
    name, rest = scheme[0][:-1], url[scheme.end() :]
    if name.lower() != _FILE:
        if rest.startswith("//"):
            return url
        host = f"{_NAME_NODE}/" if name.lower() == _HDFS else ""  # Hadoop takes the one of fs.defaultFS
        todo = f"Write {name}://{host}{rest.lstrip('/')}, or ./{url} if it is the name of a folder."
        raise UsageError("neither a path nor a URL", path=url, expected=f"{name}://...", found=scheme[0], todo=todo)
    host, path = rest[2:].split("/", 1) if rest.startswith("//") and "/" in rest[2:] else ("", rest)
    if host or not rest.startswith("/") or not path.strip("/"):
        raise UsageError(
            "not a local path", path=url, expected=f"{_FILE}:///PATH, {_FILE}:/PATH, or a plain path", found=url
        )
    return os.path.normpath("/" + path.lstrip("/"))


def open_storage(url: str, options: Given = None) -> Storage:
    """The storage with its base at a URL or a plain path, which need not exist. UnsupportedError: another scheme.
    UsageError: see `full_path`; an unknown option, or any for HDFS. A local disk ignores them."""
    given = StorageOptions.of(options)
    path = full_path(url)
    scheme, separator, _ = path.partition("://")
    if not separator:
        return LocalStorage(path)
    if cloud_of(path) is not None:
        from .object_store import ObjectStorage  # late: few processes need it

        return ObjectStorage(path, given)
    if scheme == _HDFS:
        _check_no_options(path, given)
        from .hdfs_store import HdfsStorage  # late: few processes need it

        return HdfsStorage(path)
    places = "; ".join(f"{cloud.expected}: {cloud.name}" for cloud in CLOUDS)
    expected = f"{_FILE}:///PATH or a plain path: a POSIX file system; hdfs://HOST:PORT/PATH: HDFS; {places}"
    found = f"{scheme}://"
    todo = "Mount the table's file system."
    raise UnsupportedError("no storage for URLs of this scheme", path=url, expected=expected, found=found, todo=todo)


def storage_beside(storage: Storage, url: str) -> Storage | None:
    """The storage at a URL in the bucket of an object storage, with its options: who enters one enters the other. None:
    the URL is elsewhere, or the storage is none of an object store."""
    while isinstance(storage, ForwardingStorage):
        storage = storage.storage
    if cloud_of(url) is None or cloud_of(storage.base_path) is None:
        return None
    from .object_store import ObjectStorage  # late: few processes need it

    there, here = (replace(ObjectUrl.parse(each), prefix="") for each in (url, storage.base_path))
    if there != here or not isinstance(storage, ObjectStorage):
        return None
    settings = storage.clients.settings
    return ObjectStorage(url, StorageOptions(given=settings.values, withheld=settings.withheld))


def _check_no_options(url: str, options: StorageOptions) -> None:
    """UsageError: options were given. Those of a Spark session's Hadoop configuration are for other places."""
    if options.given:
        what = "options of object stores have no effect on HDFS"
        expected = "Hadoop's settings, in core-site.xml and hdfs-site.xml of HADOOP_CONF_DIR"
        found = ", ".join(name for name, _ in options.given)
        todo = "Leave them out; if they are for other tables of the same command, give them in the environment."
        raise UsageError(what, path=url, expected=expected, found=found, todo=todo)
