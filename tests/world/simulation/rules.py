"""What must hold in a simulated world, looked at right after each storage call that could break it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from phantombase.compactor_daemon.attempt.outcome import decisions, is_revoked
from phantombase.timeline.format.file_name import LogFileName, parse_data_file
from phantombase.timeline.format.instant import MERGES, Instant, State
from phantombase.timeline.instants.reserved_times import COMMITTED, attempts, has_tombstone, recorded_instants
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.table.table import Table
from tests.world.simulation.rows import PARTITIONS, rows_in, rows_of_files, snapshot
from tests.world.simulation.world import Actor, Call, World

OUR_TOKEN = "990000000"
_CHANGES = frozenset({"put_if_absent", "place", "delete", "delete_folder", "overwrite"})


@dataclass(frozen=True, slots=True)
class Effect:
    """What a completed write did to the rows: row -> file group; of moved rows the one they were in."""

    added: dict[str, str] = field(default_factory=dict)
    removed: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)


class Rules:
    """Watches every call. `rows`: what a reader must see, once, with its file group. `named`: data files that completed
    commits name. `doubled`: instants completed twice. `late_commits`: how often there was a `late` one. `shared_times`:
    how many instants have the time of another one. `is_lost`: whether an actor is in a section whose lock it has
    lost."""

    def __init__(
        self,
        rows: Mapping[str, str],
        *,
        foreign: bool,
        locked: bool = True,
        is_lost: Callable[[Actor], bool] = lambda actor: False,
    ) -> None:
        self.rows = dict(rows)
        self.named: dict[str, str] = {}
        self._effects: dict[tuple[str, str], Effect] = {}
        self.doubled: set[str] = set()
        self.trace: list[str] | None = None
        self._foreign = foreign
        self._locked = locked
        self._is_lost = is_lost
        self._late: Actor | None = None
        self._again = False
        self.late_commits = 0
        self.shared_times = 0
        self._going: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        self._used: dict[str, str | None] = {}
        self._taken: set[str] = set()

    def watch(self, world: World, actor: Actor, call: Call) -> None:
        """AssertionError: the call that was just made broke a rule."""
        if self.trace is not None:
            self.trace.append(f"{world.now_ms % 10**7:>8} {actor.name:<24} {call.name} {call.path} -> {_short(call)}")
        if call.name not in _CHANGES or isinstance(call.result, Exception) or call.result is False:
            return
        path = call.path if call.name != "place" else str(call.args[1])
        if path.startswith(f"{RECORDS}/"):
            self._record(world, actor, call, path)
        elif path.startswith(tuple(f"{p}/" for p in PARTITIONS)):
            self._data_file(world, call, path)
        elif path.startswith(".hoodie/") and not path.startswith((".hoodie/.temp", ".hoodie/.heartbeat")):
            self._timeline_file(world, actor, call, path)

    def note(self, text: str) -> None:
        """Something that happened beside the calls, for the trace."""
        if self.trace is not None:
            self.trace.append(f"-------- {text}")

    @property
    def late(self) -> Actor | None:
        """Who has completed a compaction after it had lost its lock, and has not left that section yet. No storage can
        keep it from that, if it slept between its last snapshot and the put. It looks back at once, and takes its
        commit away where it should not be. Until then readers may see what is not, and a writer that saw it might write
        on it: nothing can be promised of that moment, so nobody else does anything in it."""
        if self._late is not None and not self._is_lost(self._late):
            self._late = None
        return self._late

    def check_rows(self, world: World) -> None:
        """A reader sees each row of each completed write, once."""
        if self.late is not None:
            return
        found = snapshot(world.disk)
        rows = Counter(list(self.rows))
        assert found == rows, f"lost {rows - found}, doubled or not acknowledged {found - rows}"

    # --- our records -------------------------------------------------------------------------------------------------

    def _record(self, world: World, actor: Actor, call: Call, path: str) -> None:
        parts = path.removeprefix(f"{RECORDS}/").split("/")
        if len(parts) != 3 or not parts[0].isdigit():
            return
        instant, number, name = parts
        if name == "open" and call.name == "put_if_absent":
            self._owners[f"{instant}/{number}"] = actor.host.name
        if name == "outcome":
            if call.name == "delete":  # an object store forgets a folder object by object
                assert instant < Table.on(world.disk).load_timeline().start, "an outcome was removed"
                return
            assert call.name == "put_if_absent", "an outcome was removed"
            if json.loads(call.args[1])["outcome"] == COMMITTED:
                earlier, self._going[instant] = self._going.get(instant, number), number
                both = earlier != number and not is_revoked(world.disk, instant, int(earlier))
                assert not both, f"attempts {earlier} and {number} of {instant} are both decided"
        if call.name == "delete" and name.endswith((".parquet", ".ok")):
            done = Table.on(world.disk).files.completed_commits(instant)
            mine = self._owners.get(f"{instant}/{number}") == actor.host.name
            mine |= any(is_revoked(world.disk, instant, n) for n in attempts(world.disk, instant))
            mine |= instant in self._taken  # it was done, and is being restored away
            mine |= has_tombstone(world.disk, instant)  # no attempt of it may decide any more
            assert done or mine or not self._is_pending(world, instant), f"{path} was deleted before {instant} is done"

    def _is_pending(self, world: World, instant: str) -> bool:
        timeline = Table.on(world.disk).load_timeline()
        clusterings = (i for i in timeline.instants if i.family == "replacecommit" and not i.completed)
        return any(i.requested_time == instant for i in (*timeline.pending_merges, *clusterings))

    # --- data files --------------------------------------------------------------------------------------------------

    def _data_file(self, world: World, call: Call, path: str) -> None:
        name = parse_data_file(path.rpartition("/")[2])
        if name is not None and call.name in ("place", "put_if_absent"):
            if str(name.token).endswith(OUR_TOKEN):
                time = _instant_of(world.disk, path)
                clustering = Table.on(world.disk).load_timeline().find(time, "replacecommit")
                if clustering is not None:
                    assert clustering.state is State.INFLIGHT, (
                        f"{path} has its name while its plan is {clustering.state}"
                    )
                made = decisions(world.disk, time)  # revoked ones too: who reverts them removes it
                assert path in {p.final for decision in made for p in decision.placements}, (
                    f"{path} has its final name before the decision"
                )
        elif call.name != "put_if_absent":
            self.check_rows(world)

    # --- the timeline ------------------------------------------------------------------------------------------------

    def _timeline_file(self, world: World, actor: Actor, call: Call, path: str) -> None:
        table = Table.on(world.disk)
        instant = table.layout.parse(path.rpartition("/")[2])
        if instant is None:
            return
        if call.name == "put_if_absent":
            time = instant.requested_time
            if instant.state is State.REQUESTED and not actor.host.hudi:
                # Whoever unschedules puts the plan back where it was decided meanwhile.
                again = actor.host.name == "unscheduler" and instant.action in MERGES
                assert again or self._is_free(instant, lost=self._is_lost(actor)), f"the time of {path} was used before"
                self.shared_times += not again and time in self._used
            if instant.state is State.COMPLETED and instant.is_write:
                if self._is_lost(actor):
                    self._late, self._again = actor, (time, instant.family) in self._effects
                    self.late_commits += 1
                if self.late is not actor or not self._again:
                    self._completed(table, instant)
            if instant.state is State.COMPLETED:
                count = sum(i.action == instant.action for i in table.files.completed_commits(time))
                if count > 1 and self.late is not actor:  # a late one goes again, or the end of the story finds it
                    assert self._foreign, f"{time} was completed twice"
                    self.doubled.add(time)
            self._used.setdefault(time, instant.action)
            if instant.completion_time is not None:
                self._used.setdefault(instant.completion_time, None)
            if instant.state is State.INFLIGHT:
                return
        elif instant.state is State.COMPLETED and instant.is_write and self._takes_back(actor):
            self._undone(instant)
        self.check_rows(world)

    def _is_free(self, instant: Instant, *, lost: bool) -> bool:
        """Whether a new instant may have its time. `lost`: who puts it has lost its lock while it slept.

        Without a lock a writer and a scheduler may choose one millisecond, or that in which a compaction completes:
        neither sees the other's choice before it is put. What they put is distinguished by action and file group. Where
        the clock stands, who slept may have chosen a time that another one has used since."""
        if instant.requested_time not in self._used:
            return True
        other = self._used[instant.requested_time]
        if lost:
            return other != instant.action
        return not self._locked and (other is None or {other, instant.action} == {"deltacommit", "compaction"})

    def _takes_back(self, actor: Actor) -> bool:
        """Whether a completed file that an actor deletes counts for nothing from then on; else it is archived."""
        return actor.host.name in ("operator", "restorer", "undoer") or (self.late is actor and not self._again)

    def _completed(self, table: Table, instant: Instant) -> None:
        commit = table.commit_metadata(instant)
        self.named |= {
            s.path: instant.requested_time for of in commit.partition_to_write_stats.values() for s in of if s.path
        }
        clustered = commit.operation_type == "CLUSTER"
        rows = rows_in(commit) or (rows_of_files(table.storage, commit) if clustered else {})
        gone = {i for ids in (commit.partition_to_replace_file_ids or {}).values() for i in ids}
        replaced = {r: g for r, g in self.rows.items() if g in gone}
        effect = Effect({}, {}, replaced) if clustered else Effect(rows, replaced, {})
        self._effects[instant.requested_time, instant.family] = effect
        for row in effect.removed:
            del self.rows[row]
        self.rows |= rows if not clustered else {r: g for r, g in rows.items() if r in replaced}

    def _undone(self, instant: Instant) -> None:
        self._taken.add(instant.requested_time)
        effect = self._effects.pop(instant.identity, Effect())
        for row in effect.added:
            del self.rows[row]
        self.rows |= effect.removed | effect.moved
        self.named = {path: time for path, time in self.named.items() if time != instant.requested_time}


def _instant_of(storage: Storage, path: str) -> str:
    """The instant of a placed file of ours. On version 6 the name of a log has that of its slice."""
    name = parse_data_file(path.rpartition("/")[2])
    assert name is not None
    if isinstance(name, LogFileName):
        for instant in recorded_instants(storage):
            if path in {p.final for decision in decisions(storage, instant) for p in decision.placements}:
                return instant
    return name.instant


def _short(call: Call) -> str:
    text = repr(call.result) if not isinstance(call.result, list) else f"{len(call.result)} entries"
    return text if len(text) < 100 else f"{text[:100]}..."


def decides(call: Call) -> bool:
    """Whether a call has just made a decision."""
    if call.name != "put_if_absent" or call.result is not True or not call.path.endswith("/outcome"):
        return False
    return bool(json.loads(call.args[1])["outcome"] == COMMITTED)
