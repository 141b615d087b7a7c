"""A write with the key index, as seen by the driver: its steps, and the files that take its rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from phantombase.timeline.errors import UnsupportedError, UsageError
from phantombase.timeline.format.record_key import looks_like_bucket
from phantombase.timeline.view.view import FileGroup, latest_base

from ..engine.engine import Pieces, RowCounts
from ..files.task_context import WriteWork
from ..options import WriteOptions
from .assign_step import NEW, ROW_BYTES, AssignStep, JoinStep, KeyStep, plan_inserts
from .bucket_step import living_elsewhere, recent_commits, refuse_two_of_one_bucket
from .lookup_step import KeysToBins, LookupStep, bins_of, looked_into
from .prepare_step import ToSlot

_LISTING_THREADS = 8
_TELLING_BYTES = 4 << 20


@dataclass(frozen=True)
class KeyIndex:
    """Updates and deletes go to the file that holds their key, inserts to small or new base files."""

    work: WriteWork
    options: WriteOptions
    slots: int

    def upsert(self, rows: Pieces, counts: RowCounts) -> list[bytes]:
        """Stages an upsert or a delete. `rows`: grouped by slots of `ToSlot(slots)`; `counts`: their summary."""
        groups = self._groups(counts)
        hits = self._lookup(rows, groups)
        with (rows.union(hits) if hits is not None else rows).regroup(JoinStep(self.work)).kept() as found:
            return self._write(found, groups, found.row_counts())

    def insert(self, rows: Pieces, counts: RowCounts) -> list[bytes]:
        """Stages rows without looking up their keys. `rows`: as for `upsert`, if the write combines."""
        if not self.work.combine:
            return self._append(rows, counts)
        with rows.regroup(JoinStep(self.work)).kept() as combined:
            return self._append(combined, combined.row_counts())

    def _append(self, rows: Pieces, counts: RowCounts) -> list[bytes]:
        new: defaultdict[tuple[str, str], int] = defaultdict(int)
        for (partition, _), count in counts.items():
            new[partition, NEW] += count
        return self._write(rows, self._groups(new), new, appends=True)

    def _groups(self, rows: Iterable[tuple[str, str]]) -> dict[str, list[FileGroup]]:
        """File groups of the partitions that have rows, without replaced ones; only those partitions are listed."""
        partitions = sorted({partition for partition, _ in rows})
        with ThreadPoolExecutor(_LISTING_THREADS) as pool:
            found = dict(zip(partitions, pool.map(self.work.groups, partitions), strict=True))
        for partition, groups in found.items():
            _refuse_buckets(partition, groups)
        if found and not any(found.values()):
            elsewhere = living_elsewhere(self.work, partitions[0])
            _refuse_buckets(elsewhere[0].partition if elsewhere else "", elsewhere)
        return {p: [g for g in groups if g.key not in self.work.replaced] for p, groups in found.items()}

    def _lookup(self, rows: Pieces, groups: Mapping[str, list[FileGroup]]) -> Pieces | None:
        """The hits: which file holds which key. None if there is no file to read."""
        for partition, of in groups.items():
            _refuse_logs_only(partition, of)
        found = {p: [slices for g in of if (slices := looked_into(g))] for p, of in groups.items()}
        bins = {p: bins_of(of, self.slots) for p, of in found.items() if of}
        if not bins:
            return None
        step = LookupStep(self.work.table.storage, bins, ToSlot(self.slots), self.work.rules)
        return rows.map(KeysToBins({p: len(of) for p, of in bins.items()})).regroup(step)

    def _write(
        self, rows: Pieces, groups: Mapping[str, list[FileGroup]], counts: RowCounts, *, appends: bool = False
    ) -> list[bytes]:
        """Writes rows to their files. `appends`: the plan places all rows, and they change no existing row."""
        plan = plan_inserts(
            {partition: count for (partition, target), count in counts.items() if target == NEW and count},
            groups,
            self.work.clustering,
            small_file_bytes=0 if self.work.table.config.captures_changes else self.options.small_file_bytes,
            file_bytes=self.options.file_bytes,
            row_bytes=row_bytes(self.work),
        )
        assigned = rows.map(AssignStep(plan.spreads, appends))
        return assigned.regroup(KeyStep(self.work, plan.rewritten, appends)).collect()


def row_bytes(work: WriteWork) -> float:
    """The size of a row in a base file, from the newest commits that wrote base files, as Hudi estimates it. Small
    files are left out: most of a file of few rows is its key filter, of 430 kB. So is a commit that a killed Hudi left
    incomplete, or that was archived since then: no write may fail because of an estimate."""
    for _, metadata in recent_commits(work.table, work.timeline):
        stats = [s for of in metadata.partition_to_write_stats.values() for s in of]
        full = (s for s in stats if s.num_writes > 0 and s.file_size_in_bytes >= _TELLING_BYTES)
        bases = [s for s in full if (s.path or "").endswith(".parquet")]
        if bases:
            return max(1.0, sum(s.file_size_in_bytes for s in bases) / sum(s.num_writes for s in bases))
    return ROW_BYTES


def _refuse_logs_only(partition: str, groups: list[FileGroup]) -> None:
    """UnsupportedError: another index has put new keys into logs. The look-up reads no logs: rows would be doubled.
    MissingFileError, MalformedError: a base file is lost or damaged, so the index is unknown."""
    for group in groups:
        for flaw in group.flaws:
            if flaw.is_base:
                raise flaw.error()
        if latest_base(group) is None and any(s.logs for s in group.slices):
            raise UnsupportedError(
                "this table is written with an index that puts new keys into log files",
                path=f"{partition}/{group.file_id}",
                expected="a base file in every file group, as with Hudi's SIMPLE and BLOOM index",
                found="log files only",
                todo="Write it only with its own writers (for example Flink with a state index), or write to a copy.",
            )


def _refuse_buckets(partition: str, groups: list[FileGroup]) -> None:
    """UsageError: the file ids are those of a bucket index, which other files would break."""
    if groups and all(looks_like_bucket(g.file_id) for g in groups):
        refuse_two_of_one_bucket(groups)
        raise UsageError(
            "this table has a bucket index",
            path=f"{partition}/{groups[0].file_id}",
            todo="Give the number of buckets with which it was written.",
        )
