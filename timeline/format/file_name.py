"""Names of base files and log files, parsed and printed, and the file that marks a partition (pure).

    base file   <fileId>_<writeToken>_<instant>.parquet
    log file    .<fileId>_<instant>.log.<version>[_<writeToken>][.cdc]

A file id contains no `_`. In a log name the instant is the base instant of the slice (v6) or the delta commit's own
instant (v8+): the same grammar with different meaning, see `layout.Slicing`.

A write token is three numbers. In Hudi's files they are Spark's task, stage and attempt. In phantombase's files one of
them is a mark, far above all numbers of Spark's stages and attempts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from sys import intern

import javaproperties

from ..errors import MalformedError

PARTITION_METADATA = ".hoodie_partition_metadata"
"""A file of each partition; Hudi lists only folders that have it."""


def partition_metadata(instant: str, depth: int) -> bytes:
    """The content of a partition's `PARTITION_METADATA`.
    `instant`: the commit that makes the partition; `depth`: levels of its path, 0 for the table itself. The file is
    written once, before the first data file. It contains no time: equal arguments give equal bytes."""
    values = {"commitTime": instant, "partitionDepth": str(depth)}
    text: str = javaproperties.dumps(values, timestamp=False, sort_keys=True)
    return b"#partition metadata\n" + text.encode()


CHANGE_LOG = ".cdc"
"""The end of the name of a change-data file."""
COMPACTOR = 990_000_000
"""The last number of a compactor's token."""
WRITER = 980_000_000
"""The second number of a writer's token."""


def is_of_phantombase(token: str | None) -> bool:
    """Whether a file with this token was written by phantombase."""
    parts = (token or "").split("-")
    return len(parts) == 3 and (parts[2] == str(COMPACTOR) or parts[1] == str(WRITER))


# Names are interned: the files of a group share one file id, and the files of a commit share one instant. A table may
# have millions of files.
BASE_NAME = re.compile(r"(?P<file_id>[^_/.][^_/]*)_(?P<token>[^_/]*)_(?P<instant>\d+)(?P<extension>\.[A-Za-z0-9]+)")
LOG_NAME = re.compile(
    r"\.(?P<file_id>[^_/]+)_(?P<instant>\d+)\.log\.(?P<version>0|[1-9]\d*)(?:_(?P<token>\d+-\d+-\d+))?"
    r"(?P<suffix>\.cdc)?",
    re.ASCII,
)

_BASE_EXTENSIONS = (".parquet", ".hfile")
_KEPT_NAMES = 1 << 15
"""Steps of one process look at the same files repeatedly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFileName:
    """`<fileId>_<writeToken>_<instant>.parquet`; `instant` wrote the file."""

    file_id: str
    token: str
    instant: str
    extension: str = ".parquet"

    def __str__(self) -> str:
        return f"{self.file_id}_{self.token}_{self.instant}{self.extension}"

    @staticmethod
    def parse(name: str) -> BaseFileName:
        """Strict inverse of `str`; MalformedError names the text."""
        match = BASE_NAME.fullmatch(name)
        if match is None:
            raise MalformedError(
                "not a base file name", expected="<fileId>_<token>_<instant>.parquet", found=repr(name)
            )
        return _base_of(match)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFileName:
    """`.<fileId>_<instant>.log.<version>_<token>`; `sort_key` is Hudi's order inside a slice."""

    file_id: str
    instant: str
    version: int
    token: str | None = None
    suffix: str = ""

    def __str__(self) -> str:
        token = "" if self.token is None else f"_{self.token}"
        return f".{self.file_id}_{self.instant}.log.{self.version}{token}{self.suffix}"

    @property
    def is_cdc(self) -> bool:
        """Whether it is a change-data file: these are in the folder of log files and are never merged."""
        return self.suffix == CHANGE_LOG

    @property
    def sort_key(self) -> tuple[str, int, str, str]:
        """(instant, version, token, suffix): tokens are compared as text, as in Hudi."""
        return self.instant, self.version, self.token or "", self.suffix

    @staticmethod
    def parse(name: str) -> LogFileName:
        """Strict inverse of `str`; MalformedError names the text."""
        match = LOG_NAME.fullmatch(name)
        if match is None:
            raise MalformedError(
                "not a log file name", expected=".<fileId>_<instant>.log.<version>[_<token>]", found=repr(name)
            )
        return _log_of(match)


@lru_cache(_KEPT_NAMES)
def parse_data_file(name: str) -> BaseFileName | LogFileName | None:
    """The parsed name of a data file, or None for every other name, which callers ignore.
    Table folders contain many other files: `.crc` files of Hadoop's local file system, partition metadata, leftovers of
    NFS and tools (`.nfs.log.0001`), `_SUCCESS`, files of Spark (`part-00000-....parquet`)."""
    if name.startswith("."):
        log = LOG_NAME.fullmatch(name)
        return None if log is None else _log_of(log)
    base = BASE_NAME.fullmatch(name) if name.endswith(_BASE_EXTENSIONS) else None
    return None if base is None else _base_of(base)


def _base_of(match: re.Match[str]) -> BaseFileName:
    file_id, token, instant, extension = match.groups()
    return BaseFileName(file_id=intern(file_id), token=token, instant=intern(instant), extension=intern(extension))


def _log_of(match: re.Match[str]) -> LogFileName:
    file_id, instant, version, token, suffix = match.groups()
    return LogFileName(
        file_id=intern(file_id), instant=intern(instant), version=int(version), token=token, suffix=suffix or ""
    )
