"""What of a table's state tells its verdict: flaws, logs no compaction can read, backlog, small files; its activity.

The headers of logs are read a few file groups at a time, and again only where logs were added: `Checked` keeps the
answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias

from ..errors import MalformedError, MissingFileError, PhantombaseError, TableChangedError, UnsupportedError
from ..format.instant import MERGES, SERVICES, Instant
from ..instants.timeline import Timeline, since_completed, since_request
from ..instants.triggers import TriggerOptions
from ..metadata_table.records.keys import COLUMN_STATS, FILES, PARTITION_STATS
from ..prefetch import prefetched, prefetched_when_slow
from ..service.table_state import PartitionFiles, ServedState
from ..storage.folders import join
from ..table.table import BUILD_AGAIN, Snapshot, Table, advising_rebuild, from_one_snapshot, open_metadata_table
from ..terminal.text_table import plural
from ..view.view import FileGroup, GroupKey, Lag, latest_slice, table_lag
from .compactions import table_debt
from .overview import Clock, Kinds
from .verdict import DuePlan, Finding, Severity, TableFacts, of_error

Why: TypeAlias = MalformedError | UnsupportedError | None
Checked: TypeAlias = Mapping[GroupKey, tuple[str, Why]]
"""File groups whose logs were looked into: which logs these were, and why no compaction can read them, or None."""
_SMALL_BYTES = 8 << 20
_FOOTERS_MAX = 10_000


def look(
    table: Table, state: ServedState, trigger: TriggerOptions, checked: Checked, most: int | None
) -> tuple[TableFacts, Checked]:
    """The facts of a state. `most`: how many file groups are looked into that `checked` does not know; None: all.
    StorageError: a file cannot be read now."""
    seen = table.with_timeline(state.timeline)
    now, flaws = dict[GroupKey, tuple[str, Why]](), {}
    left, unchecked = dict[GroupKey, tuple[FileGroup, str]](), 0
    for files in state.partitions.values() if state.config.has_logs else ():
        for group in files.live:
            logs = _logs(group, files)
            if group.flaws or not logs:
                continue
            if (known := checked.get(group.key)) is not None and known[0] == logs:
                now[group.key] = known
            elif most is None or len(left) < most:
                left[group.key] = group, logs
            else:
                unchecked += 1
    for group in (g for files in state.partitions.values() for g in files.live if g.flaws):
        flaws[group.key] = group.flaws[0].error(table.storage.base_path)
    now |= _looked_into(seen, left)
    debts = [debt for files in state.partitions.values() for debt in files.debts]
    deepest = max(debts, key=lambda debt: debt.log_files, default=None)
    facts = TableFacts(
        kind=state.config.properties.get("hoodie.table.type", "COPY_ON_WRITE"),
        has_logs=state.config.has_logs,
        completed=len(state.timeline.completed),
        flaws=flaws,
        unmergeable={key: why for key, (_, why) in now.items() if why is not None},
        unchecked=unchecked,
        debt=table_debt(len(state.partitions), debts),
        lag=_lag(state) if state.config.has_logs else None,
        deepest=("", "") if deepest is None else (deepest.partition, deepest.file_id),
        small=_small(state),
        future=seen.times.future(state.timeline),
        torn=_torn(seen, state),
        slices=max((len(group.slices) for files in state.partitions.values() for group in files.live), default=0),
    )
    return at_present(facts, state.timeline, table.now(), trigger), now


def _torn(table: Snapshot, state: ServedState) -> PhantombaseError | None:
    """The error of the first completed write whose file cannot be read; None: all can be."""
    for instant in (one for one, recorded in state.records.records if recorded.named is None):
        try:
            table.commit_metadata(instant)
        except MalformedError as error:
            return error
        except MissingFileError:  # archived meanwhile
            continue
    return None


def _lag(state: ServedState) -> Lag:
    held = dict.fromkeys(state.clusterings, "in a pending clustering")
    held |= {key: f"in the pending log compaction {i}" for i, plan in state.log_plans.items() for key in plan.groups}
    return table_lag((group for files in state.partitions.values() for group in files.live), state.timeline, held)


def lag_s(facts: TableFacts, clock: Clock) -> float | None:
    """How old the oldest row in no base file is, 0 without one; None: unknown, or the table is never compacted."""
    if facts.lag is None or facts.lag.oldest is None:
        return None if facts.lag is None else 0.0
    return max(0.0, clock.age(facts.lag.oldest.time) or 0.0)


def at_present(facts: TableFacts, timeline: Timeline, now: datetime, trigger: TriggerOptions) -> TableFacts:
    """The facts as they are now, if the table has not changed. `now`: in its zone."""
    return replace(facts, due=DuePlan.of(timeline, now, trigger) if facts.has_logs else None)


def _logs(group: FileGroup, files: PartitionFiles) -> str:
    """Which logs a file group has; "" without any."""
    logs = [log for one in group.slices[-2:] for log in one.logs]
    if not logs:
        return ""
    newest = max(files.modified.get(str(log.name), 0) for log in logs)
    return f"{len(logs)} {sum(log.size for log in logs)} {newest} {logs[-1].name}"


def _looked_into(
    table: Snapshot, left: Mapping[GroupKey, tuple[FileGroup, str]]
) -> Iterator[tuple[GroupKey, tuple[str, Why]]]:
    """A file group that a writer moves meanwhile is left to the next look."""
    if not left:
        return
    from ..merge.slice_stream import check_inputs
    from ..merge.table_rules import slice_rules  # late: they take pyarrow

    try:
        rules = slice_rules(table, table.newest_schema())
    except (MissingFileError, TableChangedError):
        return
    except (MalformedError, UnsupportedError) as error:
        yield from ((key, (logs, error)) for key, (_, logs) in left.items())  # one way out for all of them
        return
    footers = frozenset(list(left)[:_FOOTERS_MAX])

    def refusal(group: FileGroup) -> Why | MissingFileError | TableChangedError:
        merged = latest_slice(group)
        assert merged is not None
        try:
            check_inputs(table.storage, merged, rules, footer=group.key in footers)
        except (MissingFileError, TableChangedError) as moved:
            return moved
        except (MalformedError, UnsupportedError) as error:
            return error
        return None

    groups = [group for group, _ in left.values()]
    ahead = prefetched_when_slow if table.storage.is_file_system else prefetched
    for group, why in zip(groups, ahead(groups, refusal), strict=True):
        if not isinstance(why, MissingFileError | TableChangedError):
            yield group.key, (left[group.key][1], why)


def _small(state: ServedState) -> Mapping[str, int]:
    """By partition: small base files that a clustering could join."""
    found = [
        (partition, group.file_id)
        for partition, files in state.partitions.items()
        for group in files.live
        if group.slices and 0 < group.slices[-1].base_bytes < _SMALL_BYTES
    ]
    if not found:
        return {}
    from ..format.record_key import looks_like_bucket  # late: it takes pyarrow

    return Counter(partition for partition, file_id in found if not looks_like_bucket(file_id))


def of_metadata(table: Table, seen: Snapshot, facts: TableFacts) -> Iterator[Finding]:
    """Whether the metadata table names the files of the table: Hudi reads those that it names, and no others. `seen`: a
    snapshot of the table. TableChangedError: it changed meanwhile."""
    if facts.flaws or FILES not in seen.config.built_metadata_partitions:
        return
    # late: it takes pyarrow
    from ..metadata_table.validate import damaged_partitions, narrow_floats, validate

    name = "metadata-files"
    try:
        metadata = open_metadata_table(seen)
        with advising_rebuild(metadata):
            for write in metadata.load_timeline().completed:
                if write.is_write:
                    metadata.commit_metadata(write)
        different = validate(table, seen).differences
    except TableChangedError:
        raise
    except PhantombaseError as error:
        yield of_error(name, "the metadata table cannot be read: reads by Hudi fail", error)
        return
    for index, why in damaged_partitions(table, contents=False).items():
        yield Finding(
            name="metadata-index",
            severity=Severity.DANGER,
            what="an index of the metadata table is damaged: what Hudi reads or writes by it fails or is wrong",
            found=f"{index}: {why}",
            todo=f"`compactor-daemon metadata TABLE --rebuild --indexes {index}` builds it again. If it cannot: DROP "
            "INDEX of Hudi, or take it out of .hoodie/.index_defs/index.json.",
        )
    with suppress(UnsupportedError, MalformedError):  # a finding of its own, above or of the schema
        if narrow := narrow_floats(seen):
            stats = [one for one in seen.config.built_metadata_partitions if one in (COLUMN_STATS, PARTITION_STATS)]
            yield Finding(
                name="float-bounds",
                what="column statistics leave out NaN: queries of Hudi skip files that have the rows",
                found=f"{plural(len(narrow), 'file')}, such as {narrow[0]}",
                todo=f"`compactor-daemon metadata TABLE --rebuild --indexes {','.join(stats)} --lock LOCK` writes them "
                "again; until then give queries hoodie.enable.data.skipping=false.",
            )
    if not different:
        return
    timeline = table.load_timeline()
    if not any(timeline.pending(action) for action in ("clean", "rollback", "restore")):
        first = join(different[0].partition, different[0].name or "")
        yield Finding(
            name=name,
            severity=Severity.DANGER,
            what="the metadata table names other files than the table has: Hudi leaves out rows, or fails",
            found=f"{plural(len(different), 'difference')}, such as {first}: {different[0].what}",
            todo=f"`timeline validate TABLE` has each. {BUILD_AGAIN}",
        )


_AGAIN_S = 60.0
_Compared: TypeAlias = tuple[tuple[Instant, ...], float, tuple[Finding, ...]]


class MetadataLooks:
    """The findings of metadata tables, for pages: compared again after a change of the table, or a while."""

    def __init__(self) -> None:
        self._known: dict[str, _Compared] = {}

    def of(self, table: Table, state: ServedState, facts: TableFacts, *, asks: bool) -> tuple[Finding, ...]:
        """Those of a table; none if it is not as when it was compared last, and none `asks` for it."""
        path, now = table.storage.base_path, state.timeline.instants
        known = self._known.get(path)
        if asks and (known is None or known[0] != now or time.monotonic() - known[1] >= _AGAIN_S):
            try:
                found = from_one_snapshot(lambda: tuple(of_metadata(table, table.snapshot(), facts)))
            except (MissingFileError, TableChangedError):  # much is written to it
                return ()
            known = self._known[path] = now, time.monotonic(), found
        return () if known is None or known[0] != now else known[2]


_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What happened on a table. Writes are those of writers, not of table services. `last_...`: requested times.
    `oldest_pending_s`: of the pending compactions, see `Clock.oldest`. `utc_offset_s`: of the zone of its instants."""

    last_write: str | None
    seconds_since_write: float | None
    writes_last_hour: int
    compactions_last_hour: int
    last_compaction: str | None
    delta_commits_since_compaction: int
    delta_commits_since_request: int
    seconds_since_compaction: float | None
    pending_compactions: int
    oldest_pending_s: float | None
    utc_offset_s: int
    active_instants: int
    timeline_start: str | None
    pending_instants: int


def activity_of(timeline: Timeline, kinds: Kinds, pending: Sequence[tuple[str, str]], clock: Clock) -> Activity:
    """`pending`: action and requested time of the pending instants."""
    compactions = [i for i in timeline.completed if timeline.is_compaction(i)]
    done_s = [clock.age(timeline.completed_at(i)) for i in compactions]
    writes = [i.requested_time for i in timeline.completed if kinds.get(i.identity, i.action) not in SERVICES]
    written_s = [clock.age(time) for time in writes]
    merges = [time for action, time in pending if action in MERGES]
    asked, done = since_request(timeline), since_completed(timeline)
    return Activity(
        last_write=writes[-1] if writes else None,
        seconds_since_write=written_s[-1] if writes else None,
        writes_last_hour=_within_hour(written_s),
        compactions_last_hour=_within_hour(done_s),
        last_compaction=compactions[-1].requested_time if compactions else None,
        delta_commits_since_compaction=0 if done is None else done.commits,
        delta_commits_since_request=0 if asked is None else asked.commits,
        seconds_since_compaction=done_s[-1] if done_s else None,
        pending_compactions=len(merges),
        oldest_pending_s=clock.oldest(merges),
        utc_offset_s=round(
            (clock.now - datetime.fromtimestamp(clock.now_ms / 1000, UTC).replace(tzinfo=None)).total_seconds()
        ),
        active_instants=len(timeline.instants),
        timeline_start=timeline.start or None,
        pending_instants=len(pending),
    )


def _within_hour(ages_s: Sequence[float | None]) -> int:
    return sum(age is not None and age < _HOUR_S for age in ages_s)
