"""Cleans the metadata table (the caller holds the data table's lock).

    plan (requested) | inflight | the files go | the completed clean

Each file group keeps its newest two slices: the newest, and the one before it, which a reader may have begun with. A
clean waits until three instants have completed after a compaction, as Hudi's: meanwhile readers open what they have
listed. So a slice goes once two compactions and three more instants came after it.

Every step may be repeated: a file that is gone counts as removed. File groups that a replace commit names are left
alone, since Hudi gives the same names to an index that it builds anew.

Source: HoodieBackedTableMetadataWriter of 0.15.0 and 1.2.0. 0.15 retains commits where 1.2 retains two file versions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from phantombase.timeline.errors import ConflictError
from phantombase.timeline.format.clean import CleanPlan, decode_clean_plan, encode_clean_metadata, encode_clean_plan
from phantombase.timeline.format.instant import Instant, State
from phantombase.timeline.instants.timeline import UNKNOWN_COMPLETION, Timeline
from phantombase.timeline.locks.section import Section
from phantombase.timeline.metadata_table.location import BUILD_AGAIN, advising_rebuild, open_metadata_table
from phantombase.timeline.metadata_table.read import load_metadata_view
from phantombase.timeline.metadata_table.valid_instants import blocked_by
from phantombase.timeline.read.pins import held_files
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import TableView

from ..cleaning.choice import CleanFacts, choose
from ..cleaning.options import CleanOptions, Policy

CLEAN_SUFFIX = "002"
"""Ends the instant of a clean of the metadata table on version 6."""

_ACTION = "clean"
_OPTIONS = CleanOptions(policy=Policy.VERSIONS, retain=2, floor_s=0)
_INSTANTS_AFTER_COMPACTION = 3
_DIGITS = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanDue:
    """A clean that removes something. `bytes`: of its files."""

    plan: CleanPlan
    bytes: int


def clean_waits(metadata: Timeline) -> str | None:
    """Why no clean is looked for now; None: one may be due (pure). A pending clean does not wait."""
    if metadata.pending_compactions:
        return f"compaction {metadata.pending_compactions[0].requested_time} of the metadata table is pending"
    if metadata.pending("logcompaction"):
        return blocked_by(metadata)
    compactions = [i.requested_time for i in metadata.completed if i.action == "commit"]
    if not compactions:
        return "the metadata table was never compacted"
    # On version 6 a clean and the compaction behind it have the delta commit's time and a suffix, 002 and 001.
    last = compactions[-1][:_DIGITS]
    after = [i for i in metadata.instants if i.completed and i.requested_time[:_DIGITS] > last]
    if any(i.action == _ACTION for i in after):
        return "nothing was compacted since the last clean"
    if len(after) < _INSTANTS_AFTER_COMPACTION:
        return f"{len(after)} of {_INSTANTS_AFTER_COMPACTION} instants since the last compaction"
    return None


def clean_instant(metadata: Timeline, new_time: Callable[[], str]) -> str | None:
    """The instant of a clean: a new one; on version 6 `<last delta commit>002`, None if that is not the newest."""
    if metadata.layout.has_completion_times:
        return new_time()
    last = max(i.requested_time for i in metadata.instants if i.action == "deltacommit" and i.completed)
    instant = last + CLEAN_SUFFIX
    usable = len(last) == _DIGITS and all(i.requested_time < instant for i in metadata.instants)
    return instant if usable else None


def clean_due(table: Table) -> CleanDue | None:
    """What a clean of the metadata table of `table` removes; None: nothing."""
    metadata = open_metadata_table(table)
    view = load_metadata_view(metadata, table.config.built_metadata_partitions)
    kept = replace(view, groups=tuple(g for g in view.groups if g.key not in view.facts.replaced))
    choice = choose(kept, CleanFacts(hours_ago="", floor=UNKNOWN_COMPLETION), _OPTIONS)
    if not choice.gone:
        return None
    files: dict[str, tuple[str, ...]] = {}
    for one in choice.gone:
        files[one.partition] = (*files.get(one.partition, ()), *one.files)
    plan = CleanPlan(
        policy=_OPTIONS.policy.hudi_name, files=files, last_completed=max(view.timeline.completed_writes, default="")
    )
    return CleanDue(plan=plan, bytes=sum(one.bytes for one in choice.gone))


def pending_clean(metadata: Table, clean: Instant) -> CleanPlan:
    """The plan of a pending clean, of phantombase or Hudi. MalformedError: it cannot be read."""
    path = metadata.instant_path(clean.at(State.REQUESTED))
    with advising_rebuild(metadata):
        return decode_clean_plan(metadata.storage.read(path), path)


def request_clean(metadata: Table, instant: str, plan: CleanPlan, section: Section) -> Instant:
    """Makes a plan visible. ConflictError: another process made one at this instant, without the lock."""
    clean = Instant(requested_time=instant, action=_ACTION, state=State.REQUESTED)
    path = metadata.instant_path(clean)
    section.check()
    if not metadata.storage.put_if_absent(path, encode_clean_plan(plan, metadata.storage.base_path)):
        raise ConflictError(
            "another process cleans the metadata table",
            path=f"{metadata.storage.base_path}/{path}",
            instant=instant,
            todo="All writers of a table must share one lock. Run again.",
        )
    return clean


def execute_clean(table: Table, clean: Instant, plan: CleanPlan, section: Section) -> None:
    """Executes a pending clean, of phantombase or Hudi; every step may have been done before.

    ConflictError: its plan names files that readers need.
    """
    metadata, instant = open_metadata_table(table), clean.requested_time
    _refuse_needed(metadata, load_metadata_view(metadata, table.config.built_metadata_partitions), instant, plan)
    storage = metadata.storage
    content = b"" if metadata.layout.has_completion_times else encode_clean_plan(plan, storage.base_path)
    section.check()
    storage.put_if_absent(metadata.instant_path(clean.at(State.INFLIGHT)), content)
    for partition, names in plan.files.items():
        section.check()
        storage.delete_all([join(partition, name) for name in names])
    data = table.load_timeline()
    used = metadata.load_timeline().used_times(table.times.going(data))
    completion = table.completion_time(data, also_above=used)
    done = replace(clean.at(State.COMPLETED), completion_time=completion)
    section.check()
    storage.put_if_absent(metadata.instant_path(done), encode_clean_metadata(plan, instant, 0, frozenset()))


def _refuse_needed(metadata: Table, view: TableView, instant: str, plan: CleanPlan) -> None:
    needed = held_files(view, None)
    planned = (join(partition, name) for partition, names in plan.files.items() for name in names)
    if wrong := [path for path in planned if path in needed]:
        raise ConflictError(
            "a pending clean of the metadata table names files that readers need",
            path=f"{metadata.storage.base_path}/{wrong[0]}",
            instant=instant,
            found=f"{len(wrong)} of {plan.count} files",
            todo=f"Nothing was removed. {BUILD_AGAIN}",
        )
