"""What must hold of a table once everything has come to rest."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

from phantombase.compactor_daemon.attempt.outcome import read_outcome
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.audit.clusterings import audit_clustering, clustered_instants
from phantombase.timeline.instants.reserved_times import COMMITTED, DEAD, attempts, recorded_instants
from phantombase.timeline.metadata_table.validate import validate
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.folders import RECORDS, TEMPORARY
from phantombase.timeline.table.table import Table
from tests.support.written_tables import as_rows, check_nothing_left
from tests.world.chaos.fleet_child import Subject, look_at_decisions
from tests.world.chaos.journal import Model

_STAY = ("open", "outcome", "claim.lock", "table.lock", "table-id", "services")


def check_rows(subject: Subject, model: Model) -> None:
    """The snapshot is the model."""
    found = as_rows(read_table(Table.open(str(subject.path))))
    expected = model.rows(subject.name)
    wrong = {k: (found.get(k), expected.get(k)) for k in {*found, *expected} if found.get(k) != expected.get(k)}
    assert not wrong, f"{subject.name}, {len(wrong)} keys, found and expected: {dict(sorted(wrong.items())[:5])}"


def check_whole(subject: Subject) -> Counter[str]:
    """Nothing pends or is left over, one file a (file group, instant), every ledger holds; what was done."""
    table = Table.open(str(subject.path))
    look_at_decisions(subject.path)
    if table.config.metadata_partitions:
        differences = validate(table).differences
        assert not differences, f"{subject.name}: {differences}"
    check_nothing_left(subject.path, served=True)
    _check_records(subject.path)
    archived = table.with_archive(table.load_timeline()).archived
    instants = (*archived, *table.load_timeline().instants)
    actions = Counter(i.action for i in instants)
    counts = Counter(archived=len(archived), cleans=actions["clean"], clustered=actions["replacecommit"])
    for instant in audited_instants(table):
        found = audit(table, instant)
        assert found.good, f"{subject.name}: {found}"
        assert not found.leftovers, f"{subject.name}: {found.leftovers}"
        counts["compactions"] += 1
    for instant in clustered_instants(table):
        found = audit_clustering(table, instant)
        assert found.good, f"{subject.name}: {found}"
    for instant in recorded_instants(table.storage):
        outcomes = [read_outcome(table.storage, instant, number) for number in attempts(table.storage, instant)]
        kinds = [outcome.kind if outcome is not None else "open" for outcome in outcomes]
        assert kinds == [DEAD] * (len(kinds) - 1) + [COMMITTED], f"{subject.name} {instant}: {kinds}"
        counts["attempts declared dead"] += len(kinds) - 1
    return counts


def _check_records(path: Path) -> None:
    """Of ours only what stays: records, failures, the audit log, and files being written when somebody was killed."""
    names = [p.name.split("_") for p in path.glob("*/*.parquet")]
    twice = [pair for pair, count in Counter((n[0], n[2]) for n in names).items() if count > 1]
    assert not twice, f"{path.name}: two base files of {twice}"
    left = [p for p in (path / RECORDS).rglob("*") if p.is_file() and p.parent != path / TEMPORARY]
    kept = [p for p in left if p.name in _STAY or p.name.startswith("reserved-") or p.suffix == ".json"]
    odd = [p for p in left if p not in kept and p.parent.name != "failures"]
    assert not odd, f"left over: {odd}"


# Whether the tables of a long round stay small: their files and instants are counted all the time.


_ENOUGH = 40
"""Samples of a table from which on a trend can be seen."""
_GROWTH = 1.5


class Growth:
    """Samples of tables."""

    def __init__(self, subjects: list[Subject]) -> None:
        self._subjects = subjects
        self._samples: defaultdict[str, list[int]] = defaultdict(list)

    def sample(self) -> None:
        """Counts all files of each table, and the instants on its timeline."""
        for subject in self._subjects:
            hoodie = subject.path / ".hoodie"
            self._samples[f"{subject.name} files"].append(_files_below(subject.path))
            self._samples[f"{subject.name} timeline"].append(
                len(list(hoodie.glob("*commit*"))) + len(list((hoodie / "timeline").glob("*commit*")))
            )

    def check(self) -> dict[str, int]:
        """AssertionError: there is more of something in the last third than in the middle one. The last medians."""
        found = {}
        for what, counts in self._samples.items():
            third = len(counts) // 3
            middle, last = median(counts[third : 2 * third]), median(counts[2 * third :])
            assert len(counts) < _ENOUGH or last <= _GROWTH * middle, f"{what}: {middle}, then {last}: it grows"
            found[what] = round(last)
        return found


def _files_below(path: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(path))
