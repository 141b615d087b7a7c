"""The differences between table versions, in one object chosen once: `Layout.of(version)` (pure).

    version  timeline folder    completed file name               commit metadata   log name carries
    6        .hoodie            <t>.<action>                      JSON              base instant of its slice
    8, 9     .hoodie/timeline   <t>_<completion>.<action>         Avro container    delta commit's own instant

Requested and inflight files have the same names in both layouts: `<t>.<action>.requested`, `<t>.<action>.inflight`, and
`<t>.inflight` for a `commit` (copy-on-write style) action. Tables upgraded from 6 may hold completed files without a
completion time; then the file's modification time is used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from ..errors import UnsupportedError
from .instant import ACTIONS, Instant, State

_NAME = re.compile(r"(?P<time>\d+)(?:_(?P<completion>\d+))?\.(?P<first>\w+)(?:\.(?P<second>\D+))?")


class Slicing(Enum):
    """How a log file is assigned to a file slice."""

    BY_BASE_INSTANT = "the instant in its name is the base instant"
    BY_COMPLETION_TIME = "the newest base requested before its delta commit completed"


class MetadataEncoding(Enum):
    """How commit metadata is encoded."""

    JSON = "json"
    AVRO = "avro"


_TOO_OLD = "Upgrade the table with Hudi (0.14+ for version 6, 1.x for 8 and 9)."
_TOO_NEW = (
    "Keep tables on version 9: hoodie.write.table.version=9 and hoodie.write.auto.upgrade=false in every Hudi writer. "
    "This one needs Hudi, or a newer phantombase."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Names, folders, encodings and the slicing rule of one family of table versions. How their rows are merged:
    `merge_settings`, `TableConfig.merges_as_1x`. `judge`: the Hudi release that defines the correct answers for these
    versions."""

    versions: frozenset[int]
    default_timeline_folder: str
    default_history_folder: str
    has_completion_times: bool
    encoding: MetadataEncoding
    slicing: Slicing
    judge: str

    @property
    def pending_clustering(self) -> str:
        """The action of a clustering until it is completed."""
        return "clustering" if self.has_completion_times else "replacecommit"

    @staticmethod
    def of(version: int) -> Layout:
        """The layout of a table version; UnsupportedError for unknown versions."""
        for layout in (LAYOUT_1, LAYOUT_2):
            if version in layout.versions:
                return layout
        todo = _TOO_NEW if version > max(LAYOUT_2.versions) else _TOO_OLD
        raise UnsupportedError("unsupported table version", expected="6, 8 or 9", found=str(version), todo=todo)

    def parse(self, name: str) -> Instant | None:
        """The instant of a timeline file; None for files that are not instants (Hudi skips them too)."""
        return _parsed(name, self.has_completion_times)

    def file_name(self, instant: Instant) -> str:
        """The timeline file name of an instant; inverse of `parse`."""
        time = instant.requested_time
        if not instant.completed:
            state = instant.state.name.lower()
            if instant.action == "commit" and instant.state is State.INFLIGHT:
                return f"{time}.inflight"
            return f"{time}.{instant.action}.{state}"
        if self.has_completion_times and instant.completion_time is not None:
            return f"{time}_{instant.completion_time}.{instant.family}"
        return f"{time}.{instant.family}"


@lru_cache(maxsize=1 << 16)
def _parsed(name: str, has_completion_times: bool) -> Instant | None:
    """See `Layout.parse`; each load of a timeline parses all names: kept are those of 20,000 instants, of which a
    smaller cache would keep none. A name never changes its meaning."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    time, completion, first, second = match.group("time", "completion", "first", "second")
    if completion is not None and (second is not None or not has_completion_times):
        return None
    if second is None and first == "inflight":
        action, state = "commit", State.INFLIGHT
    elif second is None:
        action, state = first, State.COMPLETED
    elif second in ("requested", "inflight"):
        action, state = first, State[second.upper()]
    else:
        return None
    if action not in ACTIONS:
        return None
    return Instant(requested_time=time, action=action, state=state, completion_time=completion, file_name=name)


LAYOUT_1 = Layout(
    versions=frozenset({6}),
    default_timeline_folder="",
    default_history_folder="archived",
    has_completion_times=False,
    encoding=MetadataEncoding.JSON,
    slicing=Slicing.BY_BASE_INSTANT,
    judge="0.15.0",
)

LAYOUT_2 = Layout(
    versions=frozenset({8, 9}),
    default_timeline_folder="timeline",
    default_history_folder="history",
    has_completion_times=True,
    encoding=MetadataEncoding.AVRO,
    slicing=Slicing.BY_COMPLETION_TIME,
    judge="1.2.0",
)
