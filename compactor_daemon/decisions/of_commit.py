"""The decision behind a completed commit, rebuilt from the commit when its own record cannot be read."""

from __future__ import annotations

from phantombase.timeline.format.instant import Instant
from phantombase.timeline.instants.attempt_names import attempts, instant_folder
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.table.table import Table

from ..records.outcome import CommitDecision, Placement
from ..records.slice_done import SliceDone, done_slices


def go_of_commit(table: Table, done: Instant) -> CommitDecision:
    """The decision behind a completed commit of phantombase."""
    storage, instant = table.storage, done.requested_time
    metadata = table.commit_metadata(done)
    finished = {d.final: d for d in finished_slices(storage, instant) if d.final is not None}
    nowhere = f"{instant_folder(instant)}/lost"

    def placement(path: str, size: int) -> Placement:
        one = finished.get(path)
        if one is None or one.staged is None:
            return Placement(staged=nowhere, final=path, size=size)
        return Placement(staged=one.staged, final=path, size=size, output=one.output)

    return CommitDecision(
        instant=instant,
        attempt=max(attempts(storage, instant), default=1),
        nonce="",
        table_version=table.config.version,
        completion_time=done.completion_time,
        completed_path=table.instant_path(done),
        content=storage.read(table.instant_path(done)),
        placements=tuple(
            placement(stat.path, stat.file_size_in_bytes)
            for stats in metadata.partition_to_write_stats.values()
            for stat in stats
            if stat.path
        ),
    )


def finished_slices(storage: Storage, instant: str) -> list[SliceDone]:
    """Finished slices of all attempts; the slices that a decision names are among them."""
    return [d for number in attempts(storage, instant) for d in done_slices(storage, instant, number).values()]
