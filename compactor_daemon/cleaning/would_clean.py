"""What a clean would do. Nothing is changed, and what executes cleans is not imported: `status` shows this."""

from __future__ import annotations

from dataclasses import dataclass, field

from phantombase.timeline.instants.instant_files import retained_by
from phantombase.timeline.read.windows import cleans
from phantombase.timeline.storage.folders import join
from phantombase.timeline.table.pending import refuse_half_rolled_back, refuse_half_upgraded, refuse_pending_restore
from phantombase.timeline.table.table import Table
from phantombase.timeline.view.view import TableView

from .choice import CleanChoice, Gone, choose
from .facts import gather_facts, without
from .options import CleanOptions
from .pending import Finished, to_finish


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanResult:
    """`instant`: of the clean; None: nothing was to be removed, or a dry run. `files`, `bytes`: removed, or would be.

    `finished`: pending cleans that were finished, or would be. `left`: files that the bounds left to the next clean.
    `retained`, `why`, `kept`: see `Choice`.
    """

    instant: str | None
    gone: tuple[Gone, ...]
    files: int
    bytes: int
    left: int
    retained: str | None
    why: str
    kept: dict[str, int] = field(default_factory=dict)
    finished: tuple[Finished, ...] = ()


def would_clean(table: Table, view: TableView, options: CleanOptions) -> CleanResult:
    """What `clean_table` would do, or its error; nothing is changed. `view`: of `load_whole`."""
    from phantombase.timeline.metadata_table.update import check_keepable  # late: it takes pyarrow

    check_keepable(table, moves_rows=False)
    finishing = to_finish(table)
    gone = {join(part, name) for plan in finishing.values() for part, names in plan.files.items() for name in names}
    choice = choice_of(table, without(view, gone) if gone else view, options, dry_run=True)
    if choice.gone:
        table.times.check_zone(view.timeline)
        for clean in cleans(view.timeline):
            if clean.completed:
                retained_by(table.files, clean)  # a record that cannot be read ends a run, too
    finished = tuple(Finished(instant=instant, files=plan.count) for instant, plan in finishing.items())
    return result_of(None, choice, finished)


def choice_of(table: Table, view: TableView, options: CleanOptions, *, dry_run: bool) -> CleanChoice:
    refuse_half_upgraded(table)
    refuse_pending_restore(table, view.timeline)
    refuse_half_rolled_back(table, view.timeline)  # behind its write lies what will be the newest state
    if (newest := view.timeline.completed_writes.get(view.timeline.latest_completed)) is not None:
        table.commit_metadata(newest)  # likewise behind one that cannot be read: only its rollback ends that
    return choose(view, gather_facts(table, view, options, dry_run=dry_run), options)


def result_of(instant: str | None, choice: CleanChoice, finished: tuple[Finished, ...]) -> CleanResult:
    return CleanResult(
        instant=instant,
        gone=choice.gone,
        files=sum(len(one.files) for one in choice.gone),
        bytes=sum(one.bytes for one in choice.gone),
        left=sum(len(one.files) for one in choice.left),
        retained=choice.retained,
        why=choice.why,
        kept=dict(choice.kept),
        finished=finished,
    )
