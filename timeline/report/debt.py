"""The work for future compactions: the log files that readers merge, and those that no plan holds yet (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from ..view.view import GroupDebt, TableView, debt_of, is_replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Log files that no pending plan holds: each read merges them until they are compacted."""

    file_groups: int
    log_files: int
    log_bytes: int


def backlog(debts: Iterable[GroupDebt]) -> Backlog:
    """The backlog among the debts of file groups."""
    waiting = [d for d in debts if d.log_files and d.pending_compaction is None]
    return Backlog(
        file_groups=len(waiting),
        log_files=sum(d.log_files for d in waiting),
        log_bytes=sum(d.log_bytes for d in waiting),
    )


def view_backlog(view: TableView) -> Backlog:
    """The backlog of a view. MissingFileError, MalformedError: a file is lost or damaged."""
    groups = [g for g in view.groups if not is_replaced(g, view.facts)]
    for flaw in (f for g in groups for f in g.flaws):
        raise flaw.error()
    return backlog(debt_of(g) for g in groups if g.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Debt:
    """The log files of a table. `..._waiting`: its backlog. `log_files_max`, `_median`: of file groups with logs.

    `read_amplification`: bytes that a snapshot reads over those of the base files; None without base files.
    """

    partitions: int
    file_groups: int
    file_groups_with_logs: int
    file_groups_waiting: int
    log_files: int
    log_files_max: int
    log_files_median: float
    log_bytes: int
    log_files_waiting: int
    log_bytes_waiting: int
    base_bytes: int
    read_amplification: float | None


def table_debt(partitions: int, debts: Iterable[GroupDebt]) -> Debt:
    """The debt of a table. `partitions`: their number. `debts`: of all its file groups."""
    debts = list(debts)
    counts = [d.log_files for d in debts if d.log_files]
    waiting, log_bytes, base_bytes = backlog(debts), sum(d.log_bytes for d in debts), sum(d.base_bytes for d in debts)
    return Debt(
        partitions=partitions,
        file_groups=len(debts),
        file_groups_with_logs=len(counts),
        file_groups_waiting=waiting.file_groups,
        log_files=sum(counts),
        log_files_max=max(counts, default=0),
        log_files_median=median(counts) if counts else 0,
        log_bytes=log_bytes,
        log_files_waiting=waiting.log_files,
        log_bytes_waiting=waiting.log_bytes,
        base_bytes=base_bytes,
        read_amplification=amplification(base_bytes, log_bytes),
    )


def amplification(base_bytes: int, log_bytes: int) -> float | None:
    """Bytes read over bytes of base files; None without base files."""
    return round((base_bytes + log_bytes) / base_bytes, 3) if base_bytes else None
