"""The same dictionary, the same batches: phantombase writes the rows that real Hudi wrote, and refuses what it refused.

`recorded.json`: what Hudi 1.2.0 (version 9) and 0.15.0 (version 6) made of `cases.py`; see `record.py`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from phantombase.compactor_daemon.hudi_names import NameKind, hudi_names
from tests.hudi.effects.case import HUDI, Answer, Case, plain, recorded
from tests.hudi.effects.cases import OTHERWISE, REFUSED, SEEDS, TAKEN, WIDE_SEEDS, all_cases, drawn
from tests.hudi.judge.fixtures import Judges
from tests.support.selection import ALL, deep

CASES = all_cases()
MORE = [drawn(seed) for seed in range(len(SEEDS), 4 * len(SEEDS))]
"""More by chance, of which no answer is recorded."""
_SHARES = 6
"""So many tests ask all of them of a version."""
GROUPS = sorted({case.name.partition("-")[0] for case in CASES})


def loose(case: Case, rows: list[str]) -> Counter[str]:
    """Rows with numbers as texts, and where keys stay without what says another folder: Hudi reads values from the
    names of folders."""
    stays = any(name.endswith(".update.partition.path") and not _FLAGS[str(v).lower()] for name, v in case.conf.items())
    left_out = {"p", "q"} if stays else set()
    found = ({n: v if v is None else str(v) for n, v in json.loads(row).items() if n not in left_out} for row in rows)
    return Counter(json.dumps(row, sort_keys=True) for row in found)


_FLAGS = {"true": True, "false": False}


def difference(case: Case, hudis: Answer, ours: Answer) -> str:
    """What is not as it should be; "" if nothing."""
    more, fewer = ours["refused"].keys() - hudis["refused"].keys(), hudis["refused"].keys() - ours["refused"].keys()
    if _of(case, REFUSED):
        return "" if more else "it is refused no more"
    if _of(case, TAKEN):
        return "" if fewer else "it is refused now, too"
    if more or fewer:
        return f"refused by Hudi: {hudis['refused']}; by us: {ours['refused']}"
    theirs, mine = loose(case, hudis.get("rows", [])), loose(case, ours["rows"])
    if _of(case, OTHERWISE):
        return "" if theirs != mine else "the rows are the same now"
    if "unreadable" in hudis and not hudis["refused"]:
        return f"Hudi cannot read it: {hudis['unreadable']}"
    return "" if theirs == mine else f"only Hudi's: {[*(theirs - mine)]}; only ours: {[*(mine - theirs)]}"


def _of(case: Case, known: Mapping[str, str]) -> bool:
    return case.name in known or case.id in known


NO_EFFECT = (
    "avro-logs cleaned-versions codec files-of-one-byte inline inline-days no-services parallelism scheduled simple"
)
"""Indexes' cases of names that change no row: tests of services and files have them, and those of their values."""


def _is_asked(case: Case, known: Mapping[str, Answer]) -> bool:
    """A usual run leaves out names without effect, on version 6 what Hudi answers as on version 9 but for
    merges, whose rules are others there, and most draws."""
    kind, _, name = case.name.partition("-")
    if ALL:
        return True
    if kind == "drawn":
        return int(name) % 3 == 0
    if kind == "index" and name in NO_EFFECT.split():
        return False
    twin, own = known.get(f"v9-{case.name}", {}), known[case.id]
    same = twin.get("rows") == own.get("rows") and twin.get("refused", {}).keys() == own["refused"].keys()
    return case.version == 9 or kind in ("merge", "delete", "deleted") or not same


@pytest.mark.parametrize("group", [deep(group) if group == "wide" else group for group in GROUPS])
def test_our_rows_are_those_that_hudi_wrote(group: str, tmp_path: Path) -> None:
    known, wrong = recorded(), {}
    for case in (one for one in CASES if one.name.partition("-")[0] == group):
        if known.get(case.id, {}).get("digest") != case.digest:
            wrong[case.id] = "is not recorded as it is now: python -m tests.hudi.effects.record"
        elif _is_asked(case, known) and (found := difference(case, known[case.id], case.by_us(tmp_path / case.id))):
            wrong[case.id] = found
    assert wrong == {}


def test_what_differs_is_a_case() -> None:
    assert {*REFUSED, *TAKEN, *OTHERWISE} <= {name for case in [*CASES, *MORE] for name in (case.name, case.id)}
    assert recorded().keys() == {case.id for case in CASES}


_SYNC = ("hoodie.datasource.hive_sync.", "hoodie.datasource.meta.sync.", "hoodie.meta.sync.", "hoodie.aws.glue.")
"""They change no row: tests/hudi/sync."""
_LOCK, _OLD = "hoodie.write.lock.", "hoodie.deltastreamer.keygen.timebased."
_CLUSTERS = ("hoodie.clustering.", "hoodie.datasource.clustering.", "hoodie.layout.optimize.")
"""They change no row: tests/writer_hooks/test_hudi_values.py, compactor_daemon/services/test_services.py."""
ASKED_ELSEWHERE = {
    "hoodie.base.path",
    "hoodie.compaction.daybased.target.partitions",
    "hoodie.datasource.write.record.merger.strategy",
    "hoodie.datasource.write.streaming.checkpoint.identifier",
    "hoodie.datasource.write.table.name",
    "hoodie.record.index.update.partition.path",
    "hoodie.record.merge.mode",
    "hoodie.table.keygenerator.type",
    "hoodie.table.version",
    "hoodie.write.table.version",
    "path",
}
"""Followed names that no case has: tests/writer_hooks/test_hudi_values.py has them. Locks: cases/test_locks.py."""


def test_every_followed_name_is_in_a_case_or_drawn() -> None:
    """A name that is followed from now on gets a place in `SERVICES`, or a case of its own."""
    more = [drawn(seed, wide=True) for seed in range(len(WIDE_SEEDS), 3 * len(WIDE_SEEDS))]
    named = {name for case in [*CASES, *more] for batch in case.batches for name in case.options(batch)}
    followed = {name for name, one in hudi_names().items() if one.kind is NameKind.SET}
    left = {name for name in followed - named if not name.startswith((_LOCK, _OLD, *_CLUSTERS, *_SYNC))}
    assert left == ASKED_ELSEWHERE


@pytest.mark.interop
@pytest.mark.deep
@pytest.mark.parametrize(("version", "share"), [(v, share) for v in HUDI for share in range(_SHARES)])
def test_hudi_writes_them_still_and_reads_ours(version: int, share: int, judges: Judges, tmp_path: Path) -> None:
    """What is recorded is what Hudi does; and it reads the same rows from the table that phantombase wrote."""
    judge, known, wrong = judges(HUDI[version]), recorded(), {}
    for case in [one for one in [*CASES, *MORE] if one.version == version][share::_SHARES]:
        hudis, path = case.by_hudi(judge, tmp_path / case.id), tmp_path / f"{case.id}-ours"
        if case.id in known and hudis.get("rows") != known[case.id].get("rows"):
            wrong[case.id] = f"Hudi's rows are others: {hudis}"
        if found := difference(case, hudis, case.by_us(path)):
            wrong[case.id] = found
        if hudis.get("rows") and not any(_of(case, one) for one in (REFUSED, TAKEN, OTHERWISE)):
            read = loose(case, plain(judge.read(path)))
            if read != loose(case, hudis["rows"]):
                wrong[f"{case.id}, by Hudi"] = str(read)
    assert wrong == {}
