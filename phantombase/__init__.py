"""Compaction for Apache Hudi MERGE_ON_READ tables: the names that users import.

    from phantombase import Table, compact, read, schedule, writer

Each name is loaded when it is first used, so `import phantombase` costs nothing. The work is done by the packages
`phantombase.timeline`, `phantombase.compactor_daemon` and `phantombase.writer_hooks`; in a checkout they lie beside
this folder. They do not conflict with a user's own module `timeline`, because they are below `phantombase`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.platform == "linux":
    # Before Arrow is loaded, here and in Spark's workers: merging file slices takes less CPU time and less peak memory
    # with jemalloc than with mimalloc, Arrow's default. See `keep_freed`.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")

if TYPE_CHECKING:
    from .api import read as read
    from .api import read_table as read_table
    from .api import spark_read as spark_read
    from .compactor_daemon.archiving.archive import Archived as Archived
    from .compactor_daemon.archiving.archive import ArchiveResult as ArchiveResult
    from .compactor_daemon.archiving.archive import RetainedInstant as RetainedInstant
    from .compactor_daemon.archiving.choice import ArchiveOptions as ArchiveOptions
    from .compactor_daemon.attempt.compact_or_resume import Compacted as Compacted
    from .compactor_daemon.attempt.failures import RetryOptions as RetryOptions
    from .compactor_daemon.attempt.outcome import CancelledWork as CancelledWork
    from .compactor_daemon.attempt.validity import Validity as Validity
    from .compactor_daemon.catalogs.options import Names as Names
    from .compactor_daemon.catalogs.options import SyncedTable as SyncedTable
    from .compactor_daemon.catalogs.options import SyncOptions as SyncOptions
    from .compactor_daemon.catalogs.options import SyncResult as SyncResult
    from .compactor_daemon.cleaning.choice import CleanOptions as CleanOptions
    from .compactor_daemon.cleaning.choice import Gone as Gone
    from .compactor_daemon.cleaning.choice import Policy as Policy
    from .compactor_daemon.cleaning.orphan_choice import KeptItem as KeptItem
    from .compactor_daemon.cleaning.orphan_choice import OrphanOptions as OrphanOptions
    from .compactor_daemon.cleaning.orphans import Orphan as Orphan
    from .compactor_daemon.cleaning.orphans import OrphanResult as OrphanResult
    from .compactor_daemon.cleaning.plan import CleanResult as CleanResult
    from .compactor_daemon.cleaning.plan import Finished as Finished
    from .compactor_daemon.clustering.choice import FilesFor as FilesFor
    from .compactor_daemon.clustering.options import ClusterOptions as ClusterOptions
    from .compactor_daemon.clustering.options import Copy as Copy
    from .compactor_daemon.clustering.options import Grouping as Grouping
    from .compactor_daemon.clustering.options import PartitionSelection as PartitionSelection
    from .compactor_daemon.clustering.options import Rewrite as Rewrite
    from .compactor_daemon.clustering.options import SortOrder as SortOrder
    from .compactor_daemon.clustering.result import Clustered as Clustered
    from .compactor_daemon.clustering.result import ClusterResult as ClusterResult
    from .compactor_daemon.daemon.past_writes import Rates as Rates
    from .compactor_daemon.daemon.past_writes import Replay as Replay
    from .compactor_daemon.daemon.past_writes import ReplayCost as ReplayCost
    from .compactor_daemon.daemon.past_writes import Replayed as Replayed
    from .compactor_daemon.daemon.past_writes import ReplayOptions as ReplayOptions
    from .compactor_daemon.execution.run_compactions import AsyncCompaction as AsyncCompaction
    from .compactor_daemon.execution.run_compactions import Compactions as Compactions
    from .compactor_daemon.execution.runners import ExecutorChoice as ExecutorChoice
    from .compactor_daemon.execution.runners import LocalRunner as LocalRunner
    from .compactor_daemon.execution.runners import SparkRunner as SparkRunner
    from .compactor_daemon.execution.spark_session import RunningSpark as RunningSpark
    from .compactor_daemon.execution.split import CompactionTask as CompactionTask
    from .compactor_daemon.execution.split import PlannedCompaction as PlannedCompaction
    from .compactor_daemon.execution.split import SliceResult as SliceResult
    from .compactor_daemon.execution.split import plan_compaction as plan_compaction
    from .compactor_daemon.fleet.zookeeper_session import ZooKeeperOptions as ZooKeeperOptions
    from .compactor_daemon.metadata_services.build import MetadataBuilt as MetadataBuilt
    from .compactor_daemon.metadata_services.chosen import BuildOptions as BuildOptions
    from .compactor_daemon.metadata_services.due import MetadataOptions as MetadataOptions
    from .compactor_daemon.metadata_services.retention import MetadataArchived as MetadataArchived
    from .compactor_daemon.metadata_services.serve import MetadataClean as MetadataClean
    from .compactor_daemon.metadata_services.serve import MetadataCompaction as MetadataCompaction
    from .compactor_daemon.metadata_services.serve import MetadataServed as MetadataServed
    from .compactor_daemon.options import AttemptOptions as AttemptOptions
    from .compactor_daemon.options import ExecuteOptions as ExecuteOptions
    from .compactor_daemon.options import Executor as Executor
    from .compactor_daemon.options import PartitionTtl as PartitionTtl
    from .compactor_daemon.options import PartitionTtlOptions as PartitionTtlOptions
    from .compactor_daemon.services.maintain import MaintainStep as MaintainStep
    from .compactor_daemon.services.options import Service as Service
    from .compactor_daemon.status.check import TableCheck as TableCheck
    from .compactor_daemon.status.pending import FailedTries as FailedTries
    from .compactor_daemon.status.pending import ForeignWork as ForeignWork
    from .compactor_daemon.status.pending import PendingCompaction as PendingCompaction
    from .compactor_daemon.status.pending import StatusOptions as StatusOptions
    from .compactor_daemon.status.pending import Work as Work
    from .compactor_daemon.status.snapshot import ServiceRun as ServiceRun
    from .compactor_daemon.status.status import Cleanable as Cleanable
    from .compactor_daemon.status.status import InProgress as InProgress
    from .compactor_daemon.status.status import LastSuccess as LastSuccess
    from .compactor_daemon.status.status import Outlook as Outlook
    from .compactor_daemon.status.status import PendingWrite as PendingWrite
    from .compactor_daemon.status.status import RecentCompaction as RecentCompaction
    from .compactor_daemon.status.status import TableStatus as TableStatus
    from .compactor_daemon.undo.replan import Replanned as Replanned
    from .compactor_daemon.undo.restore import Restored as Restored
    from .compactor_daemon.undo.rollback import RolledBack as RolledBack
    from .compactor_daemon.undo.savepoint import KeptSavepoint as KeptSavepoint
    from .compactor_daemon.undo.unschedule import Unscheduled as Unscheduled
    from .compactor_daemon.unit_of_work import Limit as Limit
    from .reports import audit as audit
    from .reports import check as check
    from .reports import history as history
    from .reports import replay as replay
    from .reports import savepoints as savepoints
    from .reports import status as status
    from .reports import validate as validate
    from .services import archive as archive
    from .services import build_metadata as build_metadata
    from .services import cancel as cancel
    from .services import clean as clean
    from .services import cluster as cluster
    from .services import compact as compact
    from .services import delete_savepoint as delete_savepoint
    from .services import maintain as maintain
    from .services import metadata as metadata
    from .services import orphans as orphans
    from .services import pause as pause
    from .services import replan as replan
    from .services import restore as restore
    from .services import resume as resume
    from .services import rollback as rollback
    from .services import savepoint as savepoint
    from .services import schedule as schedule
    from .services import sync as sync
    from .services import unschedule as unschedule
    from .timeline.audit.audit import GroupAudit as GroupAudit
    from .timeline.audit.audit import InstantAudit as InstantAudit
    from .timeline.audit.audit import Verdict as Verdict
    from .timeline.audit.validate import Mistimed as Mistimed
    from .timeline.audit.validate import Validated as Validated
    from .timeline.codec.output_options import Bloom as Bloom
    from .timeline.codec.output_options import Codec as Codec
    from .timeline.codec.output_options import OutputOptions as OutputOptions
    from .timeline.dashboard.compactions import Backlog as Backlog
    from .timeline.dashboard.overview import NextPlan as NextPlan
    from .timeline.dashboard.overview import TriggerProgress as TriggerProgress
    from .timeline.dashboard.verdict import CheckOptions as CheckOptions
    from .timeline.dashboard.verdict import Finding as Finding
    from .timeline.dashboard.verdict import Freshness as Freshness
    from .timeline.dashboard.verdict import Health as Health
    from .timeline.dashboard.verdict import Severity as Severity
    from .timeline.dashboard.verdict import TablePause as TablePause
    from .timeline.dashboard.verdict import TableVerdict as TableVerdict
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
    from .timeline.errors import NoAnswerError as NoAnswerError
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
    from .timeline.format.clean import Savepoint as Savepoint
    from .timeline.format.compaction_plan import CompactionOperation as CompactionOperation
    from .timeline.format.compaction_plan import CompactionPlan as CompactionPlan
    from .timeline.format.compaction_plan import CompactionStrategy as CompactionStrategy
    from .timeline.format.log_encode import LogFormat as LogFormat
    from .timeline.format.merge_settings import MergeMode as MergeMode
    from .timeline.instants.clock_check import ClockOptions as ClockOptions
    from .timeline.instants.triggers import TriggerOptions as TriggerOptions
    from .timeline.instants.triggers import TriggerStrategy as TriggerStrategy
    from .timeline.instants.triggers import Urgency as Urgency
    from .timeline.instants.triggers import UrgencyOptions as UrgencyOptions
    from .timeline.locks.pause import Pause as Pause
    from .timeline.locks.zookeeper_connection import ZooKeeperAccess as ZooKeeperAccess
    from .timeline.metadata_table.validate import Difference as Difference
    from .timeline.metadata_table.validate import Validation as Validation
    from .timeline.planning.limits import MissingSize as MissingSize
    from .timeline.planning.limits import Picking as Picking
    from .timeline.planning.options import ScheduleOptions as ScheduleOptions
    from .timeline.planning.partition_walk import LeftOut as LeftOut
    from .timeline.planning.partition_walk import PlanNotes as PlanNotes
    from .timeline.planning.partition_walk import Rule as Rule
    from .timeline.planning.schedule import Requested as Requested
    from .timeline.planning.schedule import Scheduled as Scheduled
    from .timeline.planning.strategies import Strategy as Strategy
    from .timeline.read.export import Rows as Rows
    from .timeline.read.pins import PinOptions as PinOptions
    from .timeline.read.table_read import Fallback as Fallback
    from .timeline.read.table_read import Query as Query
    from .timeline.read.table_read import ReadOptions as ReadOptions
    from .timeline.table.history import PriceOptions as PriceOptions
    from .timeline.table.table import Table as Table
    from .timeline.view.witness import Flaw as Flaw
    from .writer_hooks.commit.compaction import AfterCommit as AfterCommit
    from .writer_hooks.erase.erase import Erased as Erased
    from .writer_hooks.erase.erase import EraseOptions as EraseOptions
    from .writer_hooks.erase.erase import erase as erase
    from .writer_hooks.erase.key_list import Left as Left
    from .writer_hooks.erase.partition_ttl import ExpiredPartitions as ExpiredPartitions
    from .writer_hooks.erase.partition_ttl import KeptPartition as KeptPartition
    from .writer_hooks.erase.partition_ttl import partition_ttl as partition_ttl
    from .writer_hooks.options import BackPressure as BackPressure
    from .writer_hooks.options import CompactionOptions as CompactionOptions
    from .writer_hooks.options import FullAction as FullAction
    from .writer_hooks.options import Mode as Mode
    from .writer_hooks.options import MovedKeys as MovedKeys
    from .writer_hooks.options import Operation as Operation
    from .writer_hooks.options import WriteOptions as WriteOptions
    from .writer_hooks.write.write import Written as Written
    from .writer_hooks.write.writer import Writer as Writer
    from .writer_hooks.write.writer import writer as writer

    __version__: str


_NAMES = {
    "api": "read read_table spark_read",
    "reports": "audit check history replay savepoints status validate",
    "services": "archive build_metadata cancel clean cluster compact delete_savepoint maintain metadata orphans pause "
    "replan restore resume rollback savepoint schedule sync unschedule",
    "compactor_daemon.archiving.archive": "ArchiveResult Archived RetainedInstant",
    "compactor_daemon.archiving.choice": "ArchiveOptions",
    "compactor_daemon.attempt.compact_or_resume": "Compacted",
    "compactor_daemon.attempt.failures": "RetryOptions",
    "compactor_daemon.attempt.outcome": "CancelledWork",
    "compactor_daemon.attempt.validity": "Validity",
    "compactor_daemon.catalogs.options": "Names SyncOptions SyncResult SyncedTable",
    "compactor_daemon.cleaning.choice": "CleanOptions Gone Policy",
    "compactor_daemon.cleaning.orphan_choice": "KeptItem OrphanOptions",
    "compactor_daemon.cleaning.orphans": "Orphan OrphanResult",
    "compactor_daemon.cleaning.plan": "CleanResult Finished",
    "compactor_daemon.clustering.choice": "FilesFor",
    "compactor_daemon.clustering.options": "ClusterOptions Copy Grouping PartitionSelection Rewrite SortOrder",
    "compactor_daemon.clustering.result": "ClusterResult Clustered",
    "compactor_daemon.daemon.past_writes": "Rates Replay ReplayCost ReplayOptions Replayed",
    "compactor_daemon.execution.run_compactions": "AsyncCompaction Compactions",
    "compactor_daemon.execution.runners": "ExecutorChoice LocalRunner SparkRunner",
    "compactor_daemon.execution.spark_session": "RunningSpark",
    "compactor_daemon.execution.split": "CompactionTask PlannedCompaction SliceResult plan_compaction",
    "compactor_daemon.fleet.zookeeper_session": "ZooKeeperOptions",
    "compactor_daemon.metadata_services.build": "MetadataBuilt",
    "compactor_daemon.metadata_services.chosen": "BuildOptions",
    "compactor_daemon.metadata_services.due": "MetadataOptions",
    "compactor_daemon.metadata_services.retention": "MetadataArchived",
    "compactor_daemon.metadata_services.serve": "MetadataClean MetadataCompaction MetadataServed",
    "compactor_daemon.options": "AttemptOptions ExecuteOptions Executor PartitionTtl PartitionTtlOptions",
    "compactor_daemon.services.maintain": "MaintainStep",
    "compactor_daemon.services.options": "Service",
    "compactor_daemon.status.check": "TableCheck",
    "compactor_daemon.status.pending": "FailedTries ForeignWork PendingCompaction StatusOptions Work",
    "compactor_daemon.status.snapshot": "ServiceRun",
    "compactor_daemon.status.status": "Cleanable InProgress LastSuccess Outlook PendingWrite RecentCompaction "
    "TableStatus",
    "compactor_daemon.undo.replan": "Replanned",
    "compactor_daemon.undo.restore": "Restored",
    "compactor_daemon.undo.rollback": "RolledBack",
    "compactor_daemon.undo.savepoint": "KeptSavepoint",
    "compactor_daemon.undo.unschedule": "Unscheduled",
    "compactor_daemon.unit_of_work": "Limit",
    "timeline.audit.audit": "GroupAudit InstantAudit Verdict",
    "timeline.audit.validate": "Mistimed Validated",
    "timeline.codec.output_options": "Bloom Codec OutputOptions",
    "timeline.dashboard.compactions": "Backlog",
    "timeline.dashboard.overview": "NextPlan TriggerProgress",
    "timeline.dashboard.verdict": "CheckOptions Finding Freshness Health Severity TablePause TableVerdict",
    "timeline.errors": "AttemptDeadError BarrierError ClaimedError ClockError ClusteringConflictError ConflictError "
    "LedgerError LockError LockLostPlanError MalformedError MissingFileError NoAnswerError NotATableError "
    "PausedError PhantombaseError PressureError SparkError StalePlanError StoppedError StorageError "
    "TableChangedError UnknownCommitError UnknownStateError UnsupportedError UsageError ZooKeeperError",
    "timeline.format.clean": "Savepoint",
    "timeline.format.compaction_plan": "CompactionOperation CompactionPlan CompactionStrategy",
    "timeline.format.log_encode": "LogFormat",
    "timeline.format.merge_settings": "MergeMode",
    "timeline.instants.clock_check": "ClockOptions",
    "timeline.instants.triggers": "TriggerOptions TriggerStrategy Urgency UrgencyOptions",
    "timeline.locks.pause": "Pause",
    "timeline.locks.zookeeper_connection": "ZooKeeperAccess",
    "timeline.metadata_table.validate": "Difference Validation",
    "timeline.planning.limits": "MissingSize Picking",
    "timeline.planning.options": "ScheduleOptions",
    "timeline.planning.partition_walk": "LeftOut PlanNotes Rule",
    "timeline.planning.schedule": "Requested Scheduled",
    "timeline.planning.strategies": "Strategy",
    "timeline.read.export": "Rows",
    "timeline.read.pins": "PinOptions",
    "timeline.read.table_read": "Fallback Query ReadOptions",
    "timeline.table.history": "PriceOptions",
    "timeline.table.table": "Table",
    "timeline.view.witness": "Flaw",
    "writer_hooks.commit.compaction": "AfterCommit",
    "writer_hooks.erase.erase": "EraseOptions Erased erase",
    "writer_hooks.erase.key_list": "Left",
    "writer_hooks.erase.partition_ttl": "ExpiredPartitions KeptPartition partition_ttl",
    "writer_hooks.options": "BackPressure CompactionOptions FullAction Mode MovedKeys Operation WriteOptions",
    "writer_hooks.write.write": "Written",
    "writer_hooks.write.writer": "Writer writer",
}
"""By module: its public names."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

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
