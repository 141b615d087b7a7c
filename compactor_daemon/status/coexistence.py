"""Signs of Hudi's writers and compactors on a table, and what must be set in them.

A Hudi 1.x writer knows all options below; 0.15 knows those of version 6 (`hoodie.cleaner.policy.failed.writes` is its
name for `hoodie.clean.failed.writes.policy`).

    sign                                             what it shows (from Hudi's sources, and observed)
    a pending delta commit without a heartbeat       a writer without LAZY, which takes no lock: only LAZY has one
    a completed compaction without a ledger          a Hudi compactor: phantombase's have a ledger
    an inflight compaction                           a Hudi compactor: phantombase makes no inflight file
    instants hours apart from their files' times     another time zone, see `instants.clock_check`"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from phantombase.timeline.dashboard.verdict import Finding, Severity
from phantombase.timeline.errors import PhantombaseError, UnsupportedError
from phantombase.timeline.format.commit_metadata import LEDGER, CommitMetadata
from phantombase.timeline.instants.clock_check import Zone, ZoneVerdict, described, zone_todo
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.locks.heartbeat import read_heartbeat
from phantombase.timeline.metadata_table.record_index import followed_indexes, is_global, missing_entries
from phantombase.timeline.metadata_table.records.keys import EXPRESSION_INDEX, RowsChange, upkeep
from phantombase.timeline.table.table import BUILD_AGAIN, Snapshot, Table
from phantombase.timeline.terminal.text_table import human_duration

from ..attempt.hudi_executors import ForeignTrace, foreign_trace
from ..metadata_services.chosen import taken_out
from ..options import AttemptOptions

INLINE = "hoodie.compact.inline=false, hoodie.datasource.compaction.async.enable=false"
"""For a writer that executes no compactions; `hoodie.compact.schedule.inline=true` lets it request them."""
MULTI_WRITER = (
    "hoodie.write.concurrency.mode=optimistic_concurrency_control, hoodie.clean.failed.writes.policy=LAZY, "
    "hoodie.write.lock.provider=org.apache.hudi.client.transaction.lock.ZookeeperBasedLockProvider "
    "(the same lock as phantombase's --lock)"
)
NO_UPGRADE = "hoodie.write.auto.upgrade=false"


@dataclass(frozen=True, slots=True, kw_only=True)
class HudiSigns:
    """What a table shows about other programs. `compactions`: the completed compactions of the active timeline, by the
    names of their commits, earliest first: True for phantombase's, None if the commit cannot be read. `silent`: pending
    delta commits without any heartbeat. `traces`: of Hudi executors at pending compactions. `zone`: the time zone of
    the writers compared with that of this process; `zone_shown`: the evidence. `in_utc`: the table's own setting.
    `one_record_index`: as `has_one_record_index`; `missing_entries`: see there. `taken_out`: indexes that
    phantombase has taken out, see there; `followed`: those that its writes keep true."""

    version: int
    metadata_partitions: tuple[str, ...]
    metadata_building: tuple[str, ...]
    timeline: Timeline
    compactions: Mapping[str, bool | None] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    traces: Mapping[str, ForeignTrace] = field(default_factory=dict)
    zone: ZoneVerdict = ZoneVerdict(zone=Zone.UNKNOWN)
    zone_shown: str = ""
    in_utc: bool = False
    one_record_index: bool = False
    missing_entries: str = ""
    taken_out: Mapping[str, str] = field(default_factory=dict)
    followed: tuple[str, ...] = ()


def find_hudi_signs(table: Snapshot, later: Timeline | None = None) -> HudiSigns:
    """The signs on a table whose timeline was just loaded. `later`: loaded after the heartbeats of its pending writes
    were read. Errors of the tree: something cannot be read."""
    storage, config = table.storage, table.config
    pending = [i.requested_time for i in table.timeline.pending_delta_commits]
    silent = [i for i in pending if read_heartbeat(storage, i) is None]
    traces = {i.requested_time: _trace(table, i.requested_time) for i in table.timeline.pending_merges}
    compactions: dict[str, bool | None] = {}
    for instant in sorted(table.files.completed_commits()):
        try:
            metadata: CommitMetadata | None = table.commit_metadata(instant)
        except PhantombaseError:
            metadata = None
        if metadata is None or metadata.compacted:
            compactions[instant.file_name] = None if metadata is None else LEDGER in metadata.extra_metadata
    zone, missing = table.times.writers_zone(table.timeline), missing_entries(table)
    later = later or table.snapshot(cached=False).timeline
    still = {i.requested_time for i in later.pending_delta_commits}
    return HudiSigns(
        version=config.version,
        metadata_partitions=config.metadata_partitions,
        metadata_building=config.building_metadata_partitions,
        timeline=table.timeline,
        compactions=compactions,
        silent=tuple(i for i in silent if i in still),  # a write that completes removes its heartbeat
        traces=traces,
        zone=zone,
        zone_shown=described(zone, table.times.local) if zone.offset else "",
        in_utc=config.utc_timezone,
        one_record_index=not missing and is_global(table),
        missing_entries=missing,
        taken_out=taken_out(table),
        followed=(*followed_indexes(table), *_followed_expressions(table)),
    )


def _followed_expressions(table: Snapshot) -> tuple[str, ...]:
    if not any(name.startswith(EXPRESSION_INDEX) for name in table.config.metadata_partitions):
        return ()
    from phantombase.timeline.metadata_table.expression_index import followed_expressions  # late: it takes pyarrow

    return followed_expressions(table)


def _trace(table: Table, instant: str) -> ForeignTrace:
    """With the files that the plan writes, as in `InstantSnapshot`; without them if it cannot be read."""
    try:
        partitions = {o.partition_path for o in table.compaction_plan(instant).operations}
    except PhantombaseError:
        partitions = set()
    return foreign_trace(table, instant, partitions)


def coexistence(seen: HudiSigns, now_ms: int, options: AttemptOptions | None = None) -> tuple[Finding, ...]:
    """The findings of a snapshot, the most severe first (pure). `now_ms` since the epoch."""
    found = [
        *_other_zone(seen),
        *_metadata_table(seen),
        *_single_writers(seen),
        *_other_compactor(seen),
        *_executors(seen, now_ms, options or AttemptOptions()),
        *_upgrade(seen),
    ]
    return tuple(sorted(found, key=lambda f: list(Severity).index(f.severity)))


def _other_zone(seen: HudiSigns) -> Iterator[Finding]:
    """Whether this process has another time zone than the writers. If its clock is behind theirs, it must not choose
    instants. If it is ahead, they hide rows only for Hudi 1.x on version 6; ages and time triggers are wrong."""
    if seen.zone.zone is Zone.BEHIND or seen.zone.zone is Zone.AHEAD:
        refused = seen.zone.zone is Zone.BEHIND or seen.version == 6
        yield Finding(
            name="time-zone",
            severity=Severity.DANGER if refused else Severity.WARNING,
            what="this process is in another time zone than the table's writers: "
            + ("it must not choose instants" if refused else "ages, and triggers that count time, are wrong"),
            found=seen.zone_shown,
            todo=zone_todo(in_utc=seen.in_utc),
        )


def _metadata_table(seen: HudiSigns) -> Iterator[Finding]:
    if seen.missing_entries:
        yield Finding(
            name="record-index",
            severity=Severity.DANGER,
            what="the record index lacks entries of rows: a Hudi writer that finds rows by it doubles them",
            found=seen.missing_entries,
            todo=BUILD_AGAIN,
        )
    if said := [name for name in seen.metadata_partitions if name.startswith(EXPRESSION_INDEX)]:
        yield Finding(
            name="expression-index",
            what="Hudi 1.2.0 takes an expression index for each function of its column, and for the column itself: "
            "its queries by those miss rows",
            found=", ".join(said),
            todo="Ask only for the function of the index, set hoodie.enable.data.skipping=false, or drop the index "
            "with Hudi (DROP INDEX).",
        )
    if seen.taken_out:
        yield Finding(
            name="secondary-index",
            severity=Severity.INFO,
            what="indexes were taken out, since a write could not keep them true: queries read all files",
            found=", ".join(f"{name} ({why})" if why else name for name, why in seen.taken_out.items()),
            todo="The metadata service (`compactor-daemon maintain TABLE`) builds them again where no reason is said; "
            "`compactor-daemon metadata TABLE --create --indexes NAME` tries each.",
        )
    try:
        change = RowsChange(knows_keys=seen.one_record_index, followed=seen.followed)
        dropped = upkeep(seen.metadata_partitions, seen.metadata_building, change, "").dropped
    except UnsupportedError as error:
        yield Finding(
            name="metadata-table",
            severity=Severity.DANGER,
            what=f"{error.what}: phantombase refuses to write",
            found=error.found or "",
            todo=error.todo or "",
        )
    else:
        if dropped:
            yield Finding(
                name="metadata-table",
                what="indexes that phantombase's writes cannot keep up to date: the first write removes them",
                found=", ".join(dropped),
                todo="Write with Hudi, or turn them off in every Hudi writer, which would build them again each time.",
            )


def _single_writers(seen: HudiSigns) -> Iterator[Finding]:
    """Writes without a heartbeat: one alone is allowed, as long as no other process writes or compacts concurrently."""
    if not seen.silent:
        return
    pending = [i.requested_time for i in seen.timeline.pending_delta_commits]
    first = seen.silent[0]
    others = [p for p in pending if p != first]
    others += [i.requested_time for i in seen.timeline.completed if (i.completion_time or "") > first]
    yield Finding(
        name="writers-without-lock" if others else "write-without-heartbeat",
        severity=Severity.DANGER if others else Severity.WARNING,
        what="several writers at once, one of them in a single-writer mode: it takes no lock"
        if others
        else "a pending write without heartbeat: a single-writer mode, which takes no lock, or a dead writer",
        found=", ".join(seen.silent) + (f" concurrently with {', '.join(sorted(set(others)))}" if others else ""),
        todo=f"In every Hudi writer: {MULTI_WRITER}. A dead one is rolled back by the next writer.",
    )


def _other_compactor(seen: HudiSigns) -> Iterator[Finding]:
    """Hudi's compactions after phantombase's last one. Earlier ones do not count: then only Hudi compacted."""
    whose = list(seen.compactions.items())
    ours = [at for at, (_, is_ours) in enumerate(whose) if is_ours]
    after = [name for name, is_ours in whose[ours[-1] + 1 :] if is_ours is False] if ours else []
    if after:
        yield Finding(
            name="other-compactor",
            what="Hudi completed compactions after phantombase's last one: a Hudi writer compacts inline or async",
            found=", ".join(after),
            todo=f"In every Hudi writer: {INLINE}.",
        )


def _is_seen(trace: ForeignTrace) -> bool:
    return trace.inflight_ms is not None or trace.heartbeat_ms is not None


def _executors(seen: HudiSigns, now_ms: int, options: AttemptOptions) -> Iterator[Finding]:
    for instant, trace in seen.traces.items():
        if not _is_seen(trace):
            continue
        sign = max(t for t in (trace.inflight_ms, trace.heartbeat_ms, trace.youngest_ms) if t is not None)
        silent_s = max(0.0, (now_ms - sign) / 1000)
        live = trace.is_live(now_ms, options)
        grace_s = options.heartbeat_expiry_s if trace.heartbeat_ms is not None else options.foreign_grace_s
        yield Finding(
            name="hudi-at-work" if live else "hudi-left-off",
            severity=Severity.WARNING if live else Severity.INFO,
            what="a Hudi executor works on a pending compaction, or died less than a grace time ago"
            if live
            else "a Hudi executor died at a pending compaction; phantombase's next run takes it over",
            found=f"{instant}, last sign {human_duration(silent_s)} ago",
            todo=f"Wait; after {human_duration(max(0.0, grace_s - silent_s))} of silence it is taken over "
            f"(--foreign-grace). In every Hudi writer: {INLINE}."
            if live
            else f"In every Hudi writer: {INLINE}.",
        )


def _upgrade(seen: HudiSigns) -> Iterator[Finding]:
    """Writers of a later release upgrade the table: they rewrite the entire timeline, even while others use it."""
    if seen.version == 9:
        if False in seen.compactions.values() or any(map(_is_seen, seen.traces.values())):
            yield Finding(
                name="auto-upgrade",
                severity=Severity.INFO,
                what="a Hudi writer later than 1.2 upgrades this table to version 10, which phantombase refuses",
                found="Hudi compacts this table; its version does not show",
                todo=f"In every Hudi writer: hoodie.write.table.version=9, {NO_UPGRADE}.",
            )
        return
    yield Finding(
        name="auto-upgrade",
        severity=Severity.INFO,
        what=f"a Hudi writer of a later release upgrades this table of version {seen.version} with its next write",
        found="only Hudi 1.x writes this version" if seen.version == 8 else "Hudi 0.x writes this version",
        todo=f"In every Hudi 1.x writer: {NO_UPGRADE}; upgrade while nothing is pending.",
    )
