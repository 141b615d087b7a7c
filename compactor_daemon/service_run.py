"""What every table service is given, and what it answers; the services themselves are in `services.options`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.locks.table_lock import TableLock
from phantombase.timeline.table.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMeans:
    """How files are written. `runner`: where, see `attempt.slice_task.Runner`; None: one at a time, in this process.
    `resumes`: pending clusterings are executed too, see `cluster_table`. `dry_run`: nothing is changed, and the answer
    is what a run would do."""

    output: OutputOptions = field(default_factory=OutputOptions)
    runner: Callable[..., Any] | None = None
    resumes: bool = True
    dry_run: bool = False

    def did(self, what: str) -> str:
        """The participle in an answer: "removed", of a dry run "would be removed"."""
        return f"would be {what}" if self.dry_run else what


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAnswer:
    """`what`: in one line, also why there was nothing to do. `instants`: the clean, clusterings, archived instants, or
    those that served the metadata table. `files`, `bytes`: files of the table, or of its metadata table, that were
    removed; bytes of those."""

    what: str
    instants: int = 0
    files: int = 0
    bytes: int = 0


class RunService(Protocol):
    """Does what is due on a table, and finishes what a dead process left; `options`: of the service."""

    def __call__(self, table: Table, options: Any, lock: TableLock, means: ServiceMeans) -> ServiceAnswer:
        """Errors of the tree: another service may run all the same."""
