"""Who works on a simulated table beside writers and compactors: Hudi's services, and a person with Hudi's commands."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.compactor_daemon.archiving.choice import ArchiveOptions
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.choice import Policy as Own
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.cleaning.orphan_choice import OrphanOptions
from phantombase.compactor_daemon.cleaning.orphans import remove_orphans
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import PhantombaseError
from tests.world.simulation.operator import Operator
from tests.world.simulation.replacing import cluster, overwrite
from tests.world.simulation.rows import PARTITIONS
from tests.world.simulation.services import Policy, Services

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.world.simulation.cast import Cast

CLUSTER = "we cluster"
ORPHANS = "we remove orphans"
MORTAL = frozenset({CLUSTER, ORPHANS, "we clean", "we archive"})
"""The services that others may work beside, and that may die: what they leave shows what they did."""
SERVICES = MORTAL | {"clean", "versions", "archive", "restore", "replace"}
"""What a plot may have of these. `versions`: a cleaner that keeps the newest slices only. `we`: phantombase's own."""

_CLUSTER = ClusterOptions(target_size=10_000, min_files=2, wait_s=1.0)
_OWN_ARCHIVE = ArchiveOptions(min_instants=2, max_instants=3, commits_retained=1, compaction_commits=1)


class _OfAnyAge(OrphanOptions):
    """Only the rules that need no time keep a file."""

    def __post_init__(self) -> None:
        """Any age is right."""

    @property
    def older_than_s(self) -> int:
        """None."""
        return -1


class Staff:
    """Beside a cast, on its table. `partitions`: how many the table has."""

    def __init__(self, cast: Cast, chance: random.Random, partitions: int) -> None:
        self._cast, self._chance, self._partitions = cast, chance, partitions
        self._busy = False
        self._services = Services(cast.lock)
        self._operator = Operator(cast.lock, self._services)

    def work(self, service: str, rounds: int) -> None:
        """One of `SERVICES`, some times."""
        once: dict[str, Callable[[], object]] = {
            "clean": self._clean,
            "versions": lambda: self.clean(Policy.VERSIONS, 1),
            "archive": lambda: self.archive(self._chance.choice((2, 3))),
            "restore": self._operate,
            "we clean": self._we_clean,
            "we archive": lambda: len(archive_table(self._cast.table(), _OWN_ARCHIVE, self._cast.lock).archived),
            "replace": self._replace,
            CLUSTER: self._we_cluster,
            ORPHANS: self._we_remove_orphans,
        }
        for _ in range(rounds):
            self._cast.rest()
            if service in MORTAL:
                self._count(service, once[service])
                continue
            if self._busy:  # nobody restores a table that is being cleaned
                self._cast.world.wait(lambda: not self._busy, None)
            self._busy = True
            try:
                self._count(service, once[service])
            finally:
                self._busy = False

    def _count(self, service: str, once: Callable[[], object]) -> None:
        try:
            if once():
                self._cast.outcomes[f"{service} done"] += 1
        except PhantombaseError as error:
            self._cast.outcomes[f"{service}: {error.what}"] += 1

    def clean(self, policy: Policy, retained: int) -> int:
        """By one of Hudi's policies."""
        return self._services.clean(self._cast.table(), policy, retained)

    def _clean(self) -> int:
        return self.clean(
            *self._chance.choice(
                [
                    (Policy.COMMITS, 1),
                    (Policy.COMMITS, 2),
                    (Policy.HOURS, 50),
                    (Policy.HOURS, 500),
                    (Policy.VERSIONS, 1),
                ]
            )
        )

    def archive(self, keep: int) -> int:
        """All but the last writes."""
        return self._services.archive(self._cast.table(), keep)

    def _we_clean(self) -> int:
        policy, retain = self._chance.choice([(Own.COMMITS, 1), (Own.COMMITS, 2), (Own.VERSIONS, 1)])
        options = CleanOptions(policy=policy, retain=retain, floor_s=0)
        return clean_table(self._cast.table(), options, self._cast.lock).files

    def _we_cluster(self) -> bool:
        done = cluster_table(self._cast.table(), _CLUSTER, self._cast.lock, output=OutputOptions())
        self._cast.outcomes["clusterings finished"] += len(done.finished)
        self._cast.outcomes["clusterings: groups written to meanwhile"] += done.left_out
        return done.done is not None

    def _we_remove_orphans(self) -> int:
        done = remove_orphans(self._cast.table(), _OfAnyAge(), self._cast.lock)
        for one in done.orphans:
            self._cast.outcomes[f"orphans: {one.kind}"] += one.files
        return done.files

    def forget(self) -> None:
        """Deletes the savepoint, if there is one."""
        self._operator.forget(self._cast.table())

    def _operate(self) -> bool:
        table = self._cast.table()
        if self._chance.random() < 0.3:
            with self._without_writers():
                return self._operator.roll_back_newest(table) is not None
        if self._operator.saved is None:
            self._operator.savepoint(table)
            return False
        with self._without_writers():
            return self._operator.restore(table) > 0

    @contextmanager
    def _without_writers(self) -> Iterator[None]:
        """The writers are stopped: those at work end first, unless they are dead or asleep."""
        cast = self._cast
        cast.closed = True
        try:
            cast.world.wait(lambda: all(h.dead or h.frozen for h in cast.writing), None)
            yield
        finally:
            cast.closed = False

    def _replace(self) -> bool:
        cast, pick = self._cast, self._chance
        cast.written += 1
        row = f"row-{cast.written}"
        if pick.random() < 0.4:
            return cluster(cast.table(), cast.lock, pick.choice) is not None
        number = pick.randrange(self._partitions)
        rows = [row] if number == 0 or pick.random() < 0.7 else []
        return overwrite(cast.table(), cast.lock, PARTITIONS[number], rows) is not None
