"""Compaction for Apache Hudi MERGE_ON_READ tables: the names that users import.

    from phantombase import Table, compact, read, schedule, writer

Each name is loaded when it is first used, so `import phantombase` costs nothing. The work is done by the packages
`phantombase.timeline`, `phantombase.compactor_daemon` and `phantombase.writer_hooks`; in a checkout they lie beside
this folder. They do not conflict with a user's own module `timeline`, because they are below `phantombase`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import compact as compact
    from .api import maintain as maintain
    from .api import read as read
    from .api import read_table as read_table
    from .api import schedule as schedule
    from .api import spark_read as spark_read
    from .compactor_daemon.execution.run_compactions import AsyncCompaction as AsyncCompaction
    from .compactor_daemon.execution.runners import SparkRunner as SparkRunner
    from .compactor_daemon.execution.spark_session import RunningSpark as RunningSpark
    from .compactor_daemon.execution.split import CompactionTask as CompactionTask
    from .compactor_daemon.execution.split import PlannedCompaction as PlannedCompaction
    from .compactor_daemon.execution.split import SliceResult as SliceResult
    from .compactor_daemon.execution.split import plan_compaction as plan_compaction
    from .compactor_daemon.options import AttemptOptions as AttemptOptions
    from .compactor_daemon.options import ExecuteOptions as ExecuteOptions
    from .compactor_daemon.options import Executor as Executor
    from .timeline.codec.output_options import OutputOptions as OutputOptions
    from .timeline.errors import AttemptDeadError as AttemptDeadError
    from .timeline.errors import BarrierError as BarrierError
    from .timeline.errors import ClaimedError as ClaimedError
    from .timeline.errors import ClockError as ClockError
    from .timeline.errors import ClusteringConflictError as ClusteringConflictError
    from .timeline.errors import ConflictError as ConflictError
    from .timeline.errors import LedgerError as LedgerError
    from .timeline.errors import LockError as LockError
    from .timeline.errors import LockLostPlanError as LockLostPlanError
    from .timeline.errors import MalformedError as MalformedError
    from .timeline.errors import MissingFileError as MissingFileError
    from .timeline.errors import NotATableError as NotATableError
    from .timeline.errors import PausedError as PausedError
    from .timeline.errors import PhantombaseError as PhantombaseError
    from .timeline.errors import PressureError as PressureError
    from .timeline.errors import SparkError as SparkError
    from .timeline.errors import StalePlanError as StalePlanError
    from .timeline.errors import StoppedError as StoppedError
    from .timeline.errors import StorageError as StorageError
    from .timeline.errors import TableChangedError as TableChangedError
    from .timeline.errors import UnknownCommitError as UnknownCommitError
    from .timeline.errors import UnknownStateError as UnknownStateError
    from .timeline.errors import UnsupportedError as UnsupportedError
    from .timeline.errors import UsageError as UsageError
    from .timeline.errors import ZooKeeperError as ZooKeeperError
    from .timeline.planning.options import ScheduleOptions as ScheduleOptions
    from .timeline.read.export import Rows as Rows
    from .timeline.read.table_read import Fallback as Fallback
    from .timeline.read.table_read import Query as Query
    from .timeline.read.table_read import ReadOptions as ReadOptions
    from .timeline.table.table import Table as Table
    from .writer_hooks.erase.api import erase as erase
    from .writer_hooks.erase.erase import Erased as Erased
    from .writer_hooks.erase.erase import EraseOptions as EraseOptions
    from .writer_hooks.write.write import Written as Written
    from .writer_hooks.write.writer import Writer as Writer
    from .writer_hooks.write.writer import writer as writer

    __version__: str

_ERRORS = (
    "AttemptDeadError", "BarrierError", "ClaimedError", "ClockError", "ClusteringConflictError", "ConflictError",
    "LedgerError", "LockError", "LockLostPlanError", "MalformedError", "MissingFileError", "NotATableError",
    "PausedError", "PhantombaseError",
    "PressureError", "SparkError", "StalePlanError", "StoppedError", "StorageError", "TableChangedError",
    "UnknownCommitError", "UnknownStateError", "UnsupportedError", "UsageError", "ZooKeeperError",
)  # fmt: skip

_HOMES = {
    "compact": "api",
    "maintain": "api",
    "read": "api",
    "read_table": "api",
    "schedule": "api",
    "spark_read": "api",
    "AsyncCompaction": "compactor_daemon.execution.run_compactions",
    "RunningSpark": "compactor_daemon.execution.spark_session",
    "SparkRunner": "compactor_daemon.execution.runners",
    "AttemptOptions": "compactor_daemon.options",
    "ExecuteOptions": "compactor_daemon.options",
    "Executor": "compactor_daemon.options",
    "CompactionTask": "compactor_daemon.execution.split",
    "PlannedCompaction": "compactor_daemon.execution.split",
    "SliceResult": "compactor_daemon.execution.split",
    "plan_compaction": "compactor_daemon.execution.split",
    "OutputOptions": "timeline.codec.output_options",
    "ScheduleOptions": "timeline.planning.options",
    "Fallback": "timeline.read.table_read",
    "Query": "timeline.read.table_read",
    "Rows": "timeline.read.export",
    "ReadOptions": "timeline.read.table_read",
    "Table": "timeline.table.table",
    "Erased": "writer_hooks.erase.erase",
    "EraseOptions": "writer_hooks.erase.erase",
    "erase": "writer_hooks.erase.api",
    "Written": "writer_hooks.write.write",
    "Writer": "writer_hooks.write.writer",
    "writer": "writer_hooks.write.writer",
    **dict.fromkeys(_ERRORS, "timeline.errors"),
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # it takes a tenth of the start of a command

        return version("phantombase")
    if name not in _HOMES:
        raise AttributeError(f"module 'phantombase' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return list(__all__)
