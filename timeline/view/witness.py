"""The timeline as the witness of files: which files its completed writes name, and the flaws of these files (pure).

If a file that a completed active write names is missing, or differs from its state at the end of the write, its file
slice has a flaw: every user of the slice stops with the error of the flaw. A file of such a write that the write does
not name is of another attempt, and no file of the table. Files of archived writes count by their names.

Every step reads all completed writes of the active timeline, so `named_files` costs a small part of
`commit_metadata.decode`: only needed fields are decoded, a writer's schema and a content once."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import fastavro
import msgspec

from ..codec.avro_container import MAGIC, parsed_schema
from ..errors import MalformedError, MissingFileError, PhantombaseError, reason_of
from ..format.commit_metadata import CommitMetadata, WriteStat
from ..format.compaction_plan import CompactionPlan
from ..format.file_name import BaseFileName, LogFileName, parse_data_file
from ..record_fields import gathered
from ..shown import Shown
from ..storage.folders import join

_HEADER = fastavro.parse_schema({"type": "map", "values": "bytes"})
_LONG = fastavro.parse_schema({"type": "long"})
_MARKER_BYTES = 16
_KEPT, _KEPT_EACH_BYTES = 1024, 32 << 10
"""The cache of decoded files: steps of one process read the same completed files repeatedly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFile:
    """One file of a write. `path`: relative to the table. `size`: of the complete file in bytes at the end of the
    write, 0 if not recorded. `offset`: the start of the write's blocks in a log file; they end at `size`. `rows`: the
    number of rows written, of a base file all rows; 0 if not recorded. `is_below`: the base file below a log file of
    the write, which another write may have made. `replaces`: of a base file, the instant of the one that it replaces in
    its file group; "" if there is none. `inserts`: the number of rows whose keys are new, as the write knows them."""

    path: str
    size: int
    offset: int = 0
    rows: int = 0
    inserts: int = 0
    is_below: bool = False
    replaces: str = ""


class NamedFiles(Mapping[str, tuple[NamedFile, ...]]):
    """The files that one write names, by partition; decoded partition by partition, on demand. `stats`: the write
    statistics of each partition, which `make` converts to files. `keeps`: for several steps."""

    __slots__ = ("_kept", "_make", "_stats")

    def __init__(
        self, stats: Mapping[str, Sequence[Any]], make: Callable[[Any], Iterable[NamedFile]], *, keeps: bool = False
    ) -> None:
        self._stats = {partition: of for partition, of in stats.items() if of}
        self._make = make
        self._kept: dict[str, tuple[NamedFile, ...]] | None = {} if keeps else None

    def __getitem__(self, partition: str) -> tuple[NamedFile, ...]:
        if self._kept is not None and (kept := self._kept.get(partition)) is not None:
            return kept
        files = tuple([file for stat in self._stats[partition] for file in self._make(stat)])
        if self._kept is not None:
            self._kept[partition] = files
        return files

    def of_group(self, partition: str, file_id: str) -> Sequence[NamedFile]:
        """The files of a partition with this text in their path; none without the partition."""
        return [file for file in self.get(partition, ()) if file_id in file.path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stats)

    def __len__(self) -> int:
        return len(self._stats)


def named_files(data: bytes, where: str) -> NamedFiles:
    """The files in the write statistics of a commit, delta commit or replace commit file of any version.
    MalformedError: empty, truncated or broken bytes."""
    try:
        return _kept(data) if len(data) <= _KEPT_EACH_BYTES else _decoded(data)
    except PhantombaseError as error:
        raise MalformedError(error.what, path=where, found=error.found) from error
    except Exception as error:  # a decoder may raise anything when it reads arbitrary bytes
        raise MalformedError(
            "unreadable commit metadata", path=where, found=f"{len(data)} bytes, {reason_of(error)}"
        ) from error


class JsonStat(msgspec.Struct, gc=False, rename="camel"):
    """The needed fields of a write statistic in JSON; the decoder skips all others."""

    path: str | None = None
    file_size_in_bytes: int | None = None
    log_offset: int | None = None
    num_writes: int | None = None
    num_inserts: int | None = None
    base_file: str | None = None
    prev_commit: str | None = None


class _Commit(msgspec.Struct, rename="camel"):
    partition_to_write_stats: dict[str, list[JsonStat]] | None


_JSON = msgspec.json.Decoder(_Commit)


def _decoded(data: bytes, *, keeps: bool = False) -> NamedFiles:
    if data.startswith(MAGIC):
        return NamedFiles(_avro_record(data)["partitionToWriteStats"] or {}, _of_record, keeps=keeps)
    return NamedFiles(_JSON.decode(data).partition_to_write_stats or {}, files_of_json, keeps=keeps)


def _of_record(stat: Mapping[str, Any]) -> Iterator[NamedFile]:
    numbers = (int(stat.get(name) or 0) for name in ("fileSizeInBytes", "logOffset", "numWrites", "numInserts"))
    return _files(stat.get("path"), *numbers, base=stat.get("baseFile"), before=stat.get("prevCommit"))


def files_of_json(stat: JsonStat) -> Iterator[NamedFile]:
    numbers = (stat.file_size_in_bytes or 0, stat.log_offset or 0, stat.num_writes or 0, stat.num_inserts or 0)
    return _files(stat.path, *numbers, base=stat.base_file, before=stat.prev_commit)


def _files(
    path: str | None, size: int, offset: int, rows: int, inserts: int, *, base: str | None, before: str | None
) -> Iterator[NamedFile]:
    if path:
        replaces = before if before and before != "null" and ".log." not in path else ""
        yield NamedFile(path=path, size=size, offset=offset, rows=rows, inserts=inserts, replaces=replaces)
        if base:
            yield NamedFile(path=join(path.rpartition("/")[0], base), size=0, is_below=True)


_kept = lru_cache(maxsize=_KEPT)(partial(_decoded, keeps=True))


def files_of(metadata: CommitMetadata) -> NamedFiles:
    return NamedFiles(metadata.partition_to_write_stats, _of_metadata)


def _of_metadata(stat: WriteStat) -> Iterator[NamedFile]:
    numbers = (stat.file_size_in_bytes, stat.log_offset or 0, stat.num_writes, stat.num_inserts)
    return _files(stat.path, *numbers, base=stat.base_file, before=stat.prev_commit)


def merged_by(plan: CompactionPlan) -> Named:
    return gathered(
        (o.partition_path, NamedFile(path=join(o.partition_path, o.data_file_path), size=0, is_below=True))
        for o in plan.operations
        if o.data_file_path
    )


def _avro_record(data: bytes) -> dict[str, Any]:
    """The record of a container file of one record, see `codec.avro_container`."""
    file = io.BytesIO(data)
    file.seek(len(MAGIC))
    header: Any = fastavro.schemaless_reader(file, _HEADER, None)
    if header.get("avro.codec", b"null") != b"null":
        raise MalformedError("compressed Avro container files are not supported", found=str(header["avro.codec"]))
    schema = parsed_schema(header["avro.schema"].decode())
    file.seek(_MARKER_BYTES, io.SEEK_CUR)
    count: Any = fastavro.schemaless_reader(file, _LONG, None)
    size: Any = fastavro.schemaless_reader(file, _LONG, None)
    if count != 1 or file.tell() + size + _MARKER_BYTES > len(data):
        raise MalformedError("not one complete Avro record", found=f"{count} records of {size} bytes")
    record: Any = fastavro.schemaless_reader(file, schema, None)
    return dict(record)


GroupKey: TypeAlias = tuple[str, str]
"""(partition path, file id)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """The record of a file in one completed write, see `NamedFile`."""

    instant: str
    size: int
    offset: int = 0
    rows: int = 0
    inserts: int = 0


class Later(NamedTuple):
    """An instant that shows that a write had completed before it, and the path of the instant's file."""

    instant: str
    path: str


Names: TypeAlias = Mapping[str, tuple[FileRecord, ...]]
"""The files of a file group that completed writes name, by name."""
_NO_NAMES: Names = {}
Named: TypeAlias = Mapping[str, Sequence[NamedFile]]
"""The files that one write or plan names, by partition."""


@dataclass(frozen=True, kw_only=True)
class Witness:
    """`known`: the completed writes of the active timeline whose files are known, by requested time. `writes`: the
    files that each of these names. `unread`: completed writes whose files are unknown: their files count by their
    names. `plans`: the base files that pending compactions merge. `listed`: bytes, by partition and name, of the files
    that the metadata table names and that are missing or have another size. Lost files of archived writes are found
    only by these, and by the base files below log files of completed writes. `uncompleted`: pending writes that had
    completed, since later instants name their files: their completed files are lost. The value is the earliest instant
    that names one. The files of a partition are processed on demand."""

    known: frozenset[str] = frozenset()
    writes: tuple[tuple[str, Named], ...] = ()
    unread: frozenset[str] = frozenset()
    plans: tuple[tuple[str, Named], ...] = ()
    listed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    uncompleted: Mapping[str, Later] = field(default_factory=dict)
    _partitions: dict[str, _Partition] = field(default_factory=dict, init=False, repr=False, compare=False)

    @staticmethod
    def of(
        writes: Iterable[tuple[str, Named | None]],
        plans: Iterable[tuple[str, Named]] = (),
        uncompleted: Mapping[str, Later] | None = None,
    ) -> Witness:
        """From writes and the files that each names (None: unknown), and `plans`, pending, by requested times."""
        every = tuple(writes)
        known = tuple((instant, named) for instant, named in every if named is not None)
        unread = frozenset(instant for instant, named in every if named is None)
        times, later = frozenset(instant for instant, _ in known) - unread, uncompleted or {}
        return Witness(known=times, writes=known, unread=unread, plans=tuple(plans), uncompleted=later)

    def with_writes(self, writes: Iterable[tuple[str, Named | None]]) -> Witness:
        """The witness with additional (archived) writes, see `of`."""
        unread = ((time, None) for time in self.unread)
        every = Witness.of((*self.writes, *unread, *writes), self.plans, self.uncompleted)
        return replace(every, listed=self.listed)

    @cached_property
    def partitions(self) -> Set[str]:
        """The partitions of all files of writes, and of the metadata table."""
        listed = frozenset(partition for partition, files in self.listed.items() if files)
        return listed.union(partition for _, named in self.writes for partition in named)

    @cached_property
    def unnamed(self) -> Marks:
        """Of a log file that no known write names."""
        return Marks(known=self.known, writes=(), is_stray=False, uncompleted=self.uncompleted)

    def names(self, key: GroupKey) -> Names:
        return self._of(key[0]).files.get(key[1], _NO_NAMES)

    def below_of(self, key: GroupKey) -> Names:
        """The files of one file group that must exist although no known write names them."""
        found = self._of(key[0]).below.get(key[1])
        if not found:
            return _NO_NAMES
        return {text: of for text, of in found.items() if named_instant(text) not in self.known}

    def ids_in(self, partition: str) -> Set[str]:
        of = self._of(partition)
        return of.files.keys() | of.below.keys()

    def of_one_group(self, partition: str) -> Witness:
        """The witness with the files of writes of only one file group of a partition, the first that is named."""
        file_id, kept = "", list[tuple[str, Named]]()
        for instant, named in self.writes:
            if file_id:
                mine = _of_group(named, partition, file_id)
            else:
                files = named.get(partition, ())
                names = (parse_data_file(file.path.rpartition("/")[2]) for file in files)
                file_id = next((name.file_id for name in names if name is not None), "")
                mine = [file for file in files if file_id and file_id in file.path]
            if mine:
                kept.append((instant, {partition: mine}))
        return replace(self, writes=tuple(kept))

    def _of(self, partition: str) -> _Partition:
        found = self._partitions.get(partition)
        if found is None:
            found = self._partitions[partition] = _Partition()
            for instant, named in (*self.plans, *self.writes):
                for one in named.get(partition, ()):
                    found.add(instant, one)
            for text, size in self.listed.get(partition, {}).items():
                found.add_listed(text, size)
        return found


def _of_group(named: Named, partition: str, file_id: str) -> Sequence[NamedFile]:
    if isinstance(named, NamedFiles):
        return named.of_group(partition, file_id)
    return [file for file in named.get(partition, ()) if file_id in file.path]


@dataclass(frozen=True, slots=True)
class _Partition:
    """The files of one partition; `below`: base files below log files, and listed files; both by file id."""

    files: dict[str, dict[str, tuple[FileRecord, ...]]] = field(default_factory=dict)
    below: dict[str, dict[str, tuple[FileRecord, ...]]] = field(default_factory=dict)

    def add(self, instant: str, one: NamedFile) -> None:
        text = one.path.rpartition("/")[2]
        name = parse_data_file(text)
        if isinstance(name, BaseFileName) and one.is_below:
            self.below.setdefault(name.file_id, {})[text] = (FileRecord(instant=instant, size=0),)
        elif name is not None and not one.is_below:
            of = self.files.setdefault(name.file_id, {})
            record = FileRecord(instant=instant, size=one.size, offset=one.offset, rows=one.rows, inserts=one.inserts)
            of[text] = (*of.get(text, ()), record)

    def add_listed(self, text: str, size: int) -> None:
        name = parse_data_file(text)
        if name is not None and not (isinstance(name, LogFileName) and name.is_cdc):
            self.below.setdefault(name.file_id, {})[text] = (FileRecord(instant=name.instant, size=size),)


def named_instant(text: str) -> str:
    """The instant in the name of a file; "" if it has none."""
    name = parse_data_file(text)
    return "" if name is None else name.instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What is known about the blocks of one log file. `writes`: the completed writes that name it. `known`,
    `uncompleted`: of all writes, see `Witness`. `is_stray`: all writes that could have written it are known; none names
    it."""

    known: frozenset[str]
    writes: tuple[FileRecord, ...]
    is_stray: bool
    uncompleted: Mapping[str, Later] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw(Shown):
    """A file of a slice that is not as a completed write names it. `expected`: its recorded bytes, 0 if not recorded.
    `found`: its bytes, None if it is missing. `rows`: the recorded rows of a base file, 0 if not recorded. `whole`:
    names of files of other attempts with the expected size. `is_alone`: its partition has no files. `opener`: of a log
    file in no slice, the missing instant. `named_by`: the file which shows that a write with a missing completed file
    had completed."""

    path: str
    instant: str
    expected: int
    found: int | None
    is_base: bool
    rows: int = 0
    whole: tuple[str, ...] = ()
    is_alone: bool = False
    second: str | None = None
    opener: str | None = None
    named_by: str | None = None

    def error(self, base_path: str = "") -> PhantombaseError:
        """MissingFileError: the file is missing. MalformedError: it has another size, or there are two of it."""
        path = f"{base_path}/{self.path}" if base_path else self.path
        kind = "base" if self.is_base else "log"
        missing = partial(MissingFileError, path=path, instant=self.instant)
        malformed = partial(MalformedError, path=path, instant=self.instant)
        if self.second is not None:
            return malformed(
                "two base files of one file group and instant",
                expected=self.second,
                found=self.path.rpartition("/")[2],
                todo="Find out which attempt wrote each; the commit metadata of the instant names the valid one.",
            )
        if self.named_by is not None:
            return missing(
                "the completed file of a write is lost",
                expected=f"a completed write: {self.named_by} names a file of it",
                found="a pending one on the timeline",
                todo="Restore the completed file of this instant from a copy, or restore the table to an instant "
                "before it: `compactor-daemon restore TABLE --to INSTANT`.",
            )
        if self.opener is not None:
            return missing(
                "a log file of a completed write is in no file slice",
                instant=self.opener,
                expected="a compaction of this instant",
                found="no such instant",
                todo="Restore the plan, the compaction.requested file of this instant, from a copy.",
            )
        expected = f"{self.expected} bytes" if self.expected or self.found is not None else None
        if self.found is None:
            what = f"a completed write names a {kind} file that does not exist"
            return missing(what, expected=expected, found="no such file", todo=self._todo)
        what = f"a {kind} file is not as the completed write that made it names it"
        return malformed(what, expected=expected, found=f"{self.found} bytes", todo=self._todo)

    @property
    def named_instant(self) -> str:
        """The instant in the name of the file; "" if the flaw is of an entire file group."""
        return named_instant(self.path.rpartition("/")[2])

    @property
    def _todo(self) -> str:
        partition, _, name = self.path.rpartition("/")
        restore = (
            "Restore the file from a copy, or restore the table to an instant before that one: `compactor-daemon "
            "restore TABLE --to INSTANT`. Other file groups are served, compacted and written as before."
        )
        if self.is_alone and partition:
            restore = (
                "Nothing of this partition is there: is its disk mounted? If it was removed on purpose, declare that: "
                f"`writer(rows).delete_partition(TABLE, [{partition!r}])`. {restore}"
            )
        elif partition:
            restore = f"{restore} If its partition may go, `delete_partition` or `insert_overwrite` of it ends this."
        if self.whole:
            restore = f"Another attempt left {self.whole[0]} with as many bytes: rename it to {name}. {restore}"
        return restore


def uncompleted(path: str, instant: str, found: int, witness: Mapping[str, Later], *, is_base: bool = False) -> Flaw:
    """The flaw of a file of a write whose completed file is lost, see `Witness.uncompleted`."""
    return Flaw(path=path, instant=instant, expected=0, found=found, is_base=is_base, named_by=witness[instant].path)


def lost_completion(instant: str, later: Later, base_path: str = "") -> PhantombaseError:
    """The error of a write whose completed file is lost, for whom not one of its files alone is the reason to stop."""
    flaw = Flaw(path=later.path, instant=instant, expected=0, found=None, is_base=False, named_by=later.path)
    return flaw.error(base_path)
