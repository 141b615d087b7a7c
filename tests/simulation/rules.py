"""What must hold in a simulated world, looked at right after each storage call that could break it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from compactor_daemon.records import GO, find_go
from tests.simulation.rows import PARTITION, snapshot
from tests.simulation.world import Actor, Call, World
from timeline.file_name import BaseFileName
from timeline.instant import State
from timeline.layout import RECORDS
from timeline.table import Table

OUR_TOKEN = "990000000"
_CHANGES = frozenset({"put_if_absent", "place", "delete", "delete_folder", "overwrite"})


class Rules:
    """Watches every call. `rows`: what a reader must see, each row once; `doubled`: instants completed twice."""

    def __init__(self, rows: Iterable[str], *, foreign: bool) -> None:
        self.rows = Counter(rows)
        self.doubled: set[str] = set()
        self.trace: list[str] | None = None
        self._foreign = foreign
        self._going: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        self._used: set[str] = set()

    def watch(self, world: World, actor: Actor, call: Call) -> None:
        """AssertionError: the call that was just made broke a rule."""
        if self.trace is not None:
            self.trace.append(f"{world.now_ms % 10**7:>8} {actor.name:<24} {call.name} {call.path} -> {_short(call)}")
        if call.name not in _CHANGES or isinstance(call.result, Exception) or call.result is False:
            return
        path = call.path if call.name != "place" else str(call.args[1])
        if path.startswith(f"{RECORDS}/"):
            self._record(world, actor, call, path)
        elif path.startswith(f"{PARTITION}/"):
            self._data_file(world, call, path)
        elif path.startswith(".hoodie/") and not path.startswith((".hoodie/.temp", ".hoodie/.heartbeat")):
            self._timeline_file(world, actor, call, path)

    def note(self, text: str) -> None:
        """Something that happened beside the calls, for the trace."""
        if self.trace is not None:
            self.trace.append(f"-------- {text}")

    def check_rows(self, world: World) -> None:
        """A reader sees each row of each completed write, once."""
        found = snapshot(world.disk)
        assert found == self.rows, f"lost {self.rows - found}, doubled or not acknowledged {found - self.rows}"

    # --- our records -------------------------------------------------------------------------------------------------

    def _record(self, world: World, actor: Actor, call: Call, path: str) -> None:
        parts = path.removeprefix(f"{RECORDS}/").split("/")
        if len(parts) != 3 or not parts[0].isdigit():
            return
        instant, number, name = parts
        if name == "open" and call.name == "put_if_absent":
            self._owners[f"{instant}/{number}"] = actor.host.name
        if name == "fate":
            assert call.name == "put_if_absent", "a fate was taken back"
            if json.loads(call.args[1])["fate"] == GO:
                earlier = self._going.setdefault(instant, number)
                assert earlier == number, f"attempts {earlier} and {number} of {instant} are both decided go"
        if call.name == "delete" and name.endswith((".parquet", ".ok")):
            done = Table.on(world.disk).completed_commits(instant)
            mine = self._owners.get(f"{instant}/{number}") == actor.host.name
            assert done or mine or not self._is_pending(world, instant), f"{path} was deleted before {instant} is done"

    def _is_pending(self, world: World, instant: str) -> bool:
        return any(i.requested_time == instant for i in Table.on(world.disk).load_timeline().pending_compactions)

    # --- data files --------------------------------------------------------------------------------------------------

    def _data_file(self, world: World, call: Call, path: str) -> None:
        if path.endswith(".parquet") and call.name in ("place", "put_if_absent"):
            name = BaseFileName.parse(path.rpartition("/")[2])
            if name.token.endswith(OUR_TOKEN):
                go = find_go(world.disk, name.instant)
                decided = {p.final for p in go.placements} if go is not None else set()
                assert path in decided, f"{path} has its final name before go"
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
            if instant.state is State.REQUESTED:
                # Whoever unschedules puts the plan back where it was decided meanwhile.
                again = actor.host.name == "unscheduler" and instant.action == "compaction"
                assert again or time not in self._used, f"the time of {path} was used before"
            if instant.state is State.COMPLETED and instant.action == "deltacommit":
                self.rows.update(written_rows(table, time))
            if instant.state is State.COMPLETED and instant.action == "commit":
                count = len(table.completed_commits(time))
                if count > 1:
                    assert self._foreign, f"{time} was completed twice"
                    self.doubled.add(time)
            self._used |= {time, instant.completion_time or time}
            if instant.state is State.INFLIGHT:
                return
        self.check_rows(world)


def written_rows(table: Table, instant: str) -> list[str]:
    """The rows of a completed delta commit."""
    done = table.load_timeline().completed_writes[instant]
    return [table.commit_metadata(done).extra_metadata["row"]]


def _short(call: Call) -> str:
    text = repr(call.result) if not isinstance(call.result, list) else f"{len(call.result)} entries"
    return text if len(text) < 100 else f"{text[:100]}..."
