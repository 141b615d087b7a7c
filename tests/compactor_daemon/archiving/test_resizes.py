"""Consistent-hashing buckets: what archiving leaves on the timeline."""

from __future__ import annotations

from pathlib import Path

from phantombase.compactor_daemon.archiving.archive import resize_borders
from phantombase.timeline.view.bucket_resize import HASHING_METADATA
from tests.support.archived_tables import long_table, one_row, overwrite, upsert
from tests.support.compaction_steps import open_table
from tests.support.tables import one_of


def hashed(path: Path, version: int) -> str:
    """A table whose hashing metadata was changed by its only replace commit: the time of that one."""
    long_table(path, version)
    overwrite(path, one_row("k0", 9))
    upsert(path, one_row("k1", 10))
    (replaced,) = (i.requested_time for i in open_table(path).load_timeline().completed if i.family == "replacecommit")
    folder = path / HASHING_METADATA / "a"
    folder.mkdir(parents=True)
    (folder / "00000000000000.hashing_meta").write_bytes(b"{}")
    (folder / f"{replaced}.hashing_meta").write_bytes(b"{}")
    return replaced


def borders(path: Path) -> list[tuple[str, str]]:
    table = open_table(path)
    return [(border.time, border.why) for border in resize_borders(table, table.load_timeline())]


@one_of("version", 9, 6)
def test_a_resize_stays_until_hudi_has_noted_that_it_is_done(version: int, tmp_path: Path) -> None:
    path = tmp_path / "trips"
    replaced = hashed(path, version)
    assert borders(path) == [(replaced, f"Hudi's next write has to note that resize {replaced} of buckets is done")]
    (path / HASHING_METADATA / "a" / f"{replaced}.commit").write_bytes(b"")
    assert borders(path) == []


@one_of("version", 6, 9)
def test_files_of_an_instant_that_is_gone(version: int, tmp_path: Path) -> None:
    """The timeline must not begin behind them: they would count as archived."""
    path = tmp_path / "trips"
    replaced = hashed(path, version)
    (path / HASHING_METADATA / "a" / f"{replaced}.commit").write_bytes(b"")
    before = open_table(path).load_timeline().latest_completed
    gone = str(int(before) + 1)
    (path / "a" / f".x-0_{gone}.log.1_0-0-0").write_bytes(b"")
    upsert_behind(path)
    [(time, why)] = borders(path)
    assert (time, f"instant {gone} is gone" in why) == (before, True)


def upsert_behind(path: Path) -> None:
    """A later write, for which the table is none with such buckets."""
    folder, aside = path / HASHING_METADATA, path.with_name("aside")
    folder.rename(aside)
    upsert(path, one_row("k1", 11))
    aside.rename(folder)
