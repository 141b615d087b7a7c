"""A stock Hudi 1.2.0 writer upgrades a version 6 table under a compaction of ours: nothing of ours gets in its way."""

from __future__ import annotations

import os
from datetime import UTC
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase.compactor_daemon.attempt.compact_instant import decide_commit, pending_instants
from phantombase.compactor_daemon.attempt.publish import publish
from phantombase.timeline.errors import TableChangedError
from phantombase.timeline.format.instant import parse_time
from phantombase.timeline.locks.table_lock import ProcessLock
from tests.hudi.cases.rows import same
from tests.hudi.cases.shared_table import SharedTable
from tests.hudi.judge.client import Judge
from tests.support.compaction_steps import (
    base_files,
    check_no_strays,
    decided,
    open_table,
    run_all,
    staged,
    visible_files,
)
from tests.support.golden_tables import unzip_golden

pytestmark = [pytest.mark.interop, pytest.mark.parametrize("version", [9], indirect=True, ids="v{}".format)]

UPGRADE = {"hoodie.write.auto.upgrade": "true", "hoodie.write.table.version": 9}


@pytest.fixture
def table(judge: Judge, tmp_path: Path) -> SharedTable:
    """A version 6 table with a plan that pends. An upgrade takes completion times from the files' own times."""
    path = unzip_golden("v6_pending", tmp_path)
    for file in (path / ".hoodie").glob("*.*commit*"):
        moment = parse_time(file.name.split(".")[0]).replace(tzinfo=UTC).timestamp() + 0.2
        os.utime(file, (moment, moment))
    return SharedTable(judge=judge, path=path, version=6)


def upgrade(table: SharedTable) -> pa.Table:
    """One upsert of a stock writer, of rows that are there already; the rows, which must be those of the end.

    While the plan pends, Hudi 1.2.0 reads less from an upgraded table: a version 6 log that lies on the plan's
    instant is named after it, and in version 9 that is a write which has not completed. So do we.
    """
    rows = own_columns(table.we_read())
    table.upsert(rows.slice(0, 5), UPGRADE)
    assert open_table(table.path).config.version == 9
    return rows


def own_columns(rows: pa.Table) -> pa.Table:
    """The rows without Hudi's columns."""
    return rows.select([name for name in rows.schema.names if not name.startswith("_hoodie")])


def test_before_the_decision(table: SharedTable) -> None:
    """The attempt decides nothing and leaves nothing; the next run compacts the table as it is now."""
    ours = open_table(table.path)
    (instant,) = pending_instants(ours)
    attempt, done, schema = staged(ours, instant)
    rows, after = upgrade(table), visible_files(table.path)
    with pytest.raises(TableChangedError, match="version 9"):
        decide_commit(ours, attempt, done, schema, ProcessLock("paused"))
    assert visible_files(table.path) == after
    assert table.we_compact() == [instant]
    same(own_columns(table.agree()), rows)
    check_no_strays(table.path)


def test_between_decision_and_publication(table: SharedTable) -> None:
    """It has no final name afterwards, not even a file placed before; Hudi executes the plan, then our rest goes."""
    ours = open_table(table.path)
    (instant,) = pending_instants(ours)
    decision = decided(ours, instant)
    ours.storage.place(decision.placements[0].staged, decision.placements[0].final)
    rows = upgrade(table)
    table.agree()
    for _ in range(2):  # the paused owner, and a later run
        with pytest.raises(TableChangedError, match="let Hudi execute the compaction"):
            publish(ours, decision, ProcessLock("paused"))
        assert base_files(table.path, instant) == []
    with pytest.raises(TableChangedError, match="let Hudi execute the compaction"):
        run_all(open_table(table.path))
    table.hudi_compacts(instant)
    assert table.we_compact() == []
    same(own_columns(table.agree()), rows)
    check_no_strays(table.path)


def test_between_publication_and_clean_up(table: SharedTable) -> None:
    """The upgrade renamed and rewrote our completed commit: it is still ours, and its files stay."""
    ours = open_table(table.path)
    (instant,) = pending_instants(ours)
    decision = decided(ours, instant)
    publish(ours, decision, ProcessLock("a"))
    rows = upgrade(table)
    table.agree()
    publish(ours, decision, ProcessLock("paused"))
    assert table.we_compact() == []
    assert {str(p.relative_to(table.path)) for p in base_files(table.path, instant)} == {
        p.final for p in decision.placements
    }
    same(own_columns(table.agree()), rows)
    check_no_strays(table.path)
