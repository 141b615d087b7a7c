"""How every simulated run ends: a healthy rest of the world, then whoever slept, and then all must be whole."""

from __future__ import annotations

from contextlib import suppress

from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.instants.instant_files import Torn
from phantombase.timeline.storage.contract import files_below
from phantombase.timeline.storage.folders import HOODIE, RECORDS
from phantombase.timeline.table.in_progress import pending_rollbacks
from phantombase.timeline.table.table import Table
from tests.world.simulation import rows
from tests.world.simulation.cast import Cast
from tests.world.simulation.rules import OUR_TOKEN, Rules
from tests.world.simulation.services import Policy
from tests.world.simulation.staff import CLUSTER, Staff

_STAY = ("open", "outcome", "revoked")
"""Records that stay until their instant is archived."""
_LONG_MS = 4 * 3_600_000


class Ending:
    """The end of a run. `hudi`: a Hudi compactor worked on the table. `stale`: somebody planned without a lock, or lost
    it meanwhile, or what was planned may have been rolled back. `staff`: who cleans and archives at last; None:
    nobody."""

    def __init__(self, cast: Cast, rules: Rules, *, hudi: bool, stale: bool, staff: Staff | None = None) -> None:
        self._staff = staff
        self.cast, self.world, self.rules = cast, cast.world, rules
        self._hudi, self._stale = hudi, stale

    def play(self) -> None:
        """Everybody who is awake is done by now. AssertionError: something is lost, doubled, pending or lies around."""
        for host in self.world.hosts:
            host.wrong_ms = 0
        self._finish()
        frozen = [h for h in self.world.hosts if h.frozen]
        for host in frozen:
            self.world.wake(host)
        if frozen:
            self.world.run()
            self._finish()
        self._check_clean()
        if self._staff is not None:
            self._age(self._staff)
            self._check_clean()

    def _finish(self) -> None:
        """Much later: dead writers are rolled back, Hudi ends what it began, and what pends is compacted."""
        world, cast = self.world, self.cast
        world.now_ms += _LONG_MS
        self.rules.note("much later")
        if self._hudi:
            world.start("last hudi", lambda: cast.hudi(2))
            world.run()
            world.now_ms += _LONG_MS
        world.start("undoer", self._take_back)
        world.run()
        world.start("last", self._last)
        world.run()
        self.rules.check_rows(world)

    def _take_back(self) -> None:
        """As a person does whom the error tells so: a writer completed its write while others rolled it back."""
        table = self.cast.table()
        for one in pending_rollbacks(table):
            if not isinstance(one, Torn) and one.target in table.load_timeline().completed_writes:
                roll_back_newest(table.snapshot(cached=False), self.cast.lock, one.target)
                self.cast.outcomes["writes completed in a rollback"] += 1

    def _last(self) -> None:
        cast = self.cast
        cast.roll_back(cast.table())
        if cast.clusters and self._staff is not None:
            self._staff.work(CLUSTER, 1)  # what a clustering left that was killed behind its commit
        cast.compactor(2)
        cast.scheduler(1)
        cast.compactor(1)
        for instant, why in sorted(cast.parked.items()):
            if why in self._legitimate():
                with suppress(PhantombaseError):
                    cast.unschedule(instant)
        if cast.parked:
            cast.compactor(1)  # file groups that are kept in a plan
        pending = Table.on(self.world.disk).load_timeline().pending_merges
        parked = {i.requested_time: cast.parked.get(i.requested_time) for i in pending}
        assert set(parked.values()) <= self._legitimate(), f"still pending: {parked}"

    def _legitimate(self) -> set[str | None]:
        """What may keep an instant pending for ever. A scheduler whose lock was lost inside its section may make a plan
        of slices that are no more."""
        why: set[str | None] = {"files cannot be placed in this partition"} if self.world.disk.elsewhere else set()
        if self._stale:
            why |= {
                "the compaction plan names a file that is not there",
                "the planned log files cannot be merged with each other",
            }
        return why | ({"two completed commits of one compaction"} if self.rules.doubled else set())

    def _age(self, staff: Staff) -> None:
        """More is written, old files are cleaned, old instants archived: what lies around would count now."""
        world, cast, rules = self.world, self.cast, self.rules

        def pass_by() -> None:
            groups = sorted(set(rules.rows.values()))
            staff.forget()
            cast.writer(4, lambda: groups[0])
            cast.service()
            staff.clean(Policy.COMMITS, 1)
            staff.archive(2)
            cast.compactor(1)

        rules.note("time passes")
        world.start("age", pass_by)
        world.run()
        rules.check_rows(world)

    def _check_clean(self) -> None:
        """Only records that are to stay are left of us, and one base file a (file group, instant)."""
        disk = self.world.disk
        table = Table.on(disk)
        stray = [
            i
            for i in table.load_timeline().instants
            if not i.completed and i.requested_time not in self.cast.parked and i.action != "clean"
        ]
        assert not stray, f"left pending: {stray}"
        if self.rules.doubled:
            return
        records = ((p, p.rpartition("/")[2]) for p, _ in files_below(disk, RECORDS))
        ours = [p for p, name in records if name not in _STAY and not name.startswith("reserved-")]
        assert all(p.startswith(("audit/", "history/")) or "/failures/" in p for p in ours), (
            f"left in our folder: {ours}"
        )
        beats = [p for p, _ in files_below(disk, f"{HOODIE}/.heartbeat")]
        assert not beats, f"heartbeats are left: {beats}"
        for partition in rows.PARTITIONS:
            entries = disk.list(partition) if disk.find(partition) is not None else []
            logs = [e.name for e in entries if ".log." in e.name and OUR_TOKEN in e.name]
            names = [e.name for e in entries if e.name.endswith(".parquet") and not e.name.endswith(rows.FIRST_FILE)]
            names += logs
            strays = [n for n in names if f"{partition}/{n}" not in self.rules.named and self._counts(n)]
            assert not strays, f"files nobody names: {strays}"

    def _counts(self, name: str) -> bool:
        """Those that Hudi's compactor leaves behind are not our business."""
        return OUR_TOKEN in name or not self._hudi
