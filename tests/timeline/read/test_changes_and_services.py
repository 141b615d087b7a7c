"""Change feeds over windows with table services: these change no row, also where they have restamped rows."""

from __future__ import annotations

import random
import shutil
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import UsageError, read, read_table, schedule, writer
from phantombase.timeline.read.changes import plan
from phantombase.timeline.read.table_read import Query, ReadOptions
from phantombase.timeline.read.windows import cleans, earliest_state, retained_since
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import from_one_snapshot
from tests.support.archived_tables import change_clean, cluster, forget_heartbeats, one_row, small_files, upsert
from tests.support.change_feeds import check_window, feed, moments_of, request, restamped_by_clustering, state
from tests.support.compaction_steps import open_table, run_all
from tests.support.failing_storage import Call, HookedStorage, ProcessDied, die_at_nth
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.interleaving import serial_pools
from tests.support.places import SEED
from tests.support.selection import ALL, deep

COMPACTED = ["v9_log_compacted", deep("v8_log_compacted"), deep("v6_log_compacted"), deep("v9_event_time")]


@pytest.mark.parametrize("name", COMPACTED)
def test_a_compaction_of_a_log_compaction_is_no_change(name: str, tmp_path: Path) -> None:
    """Hudi's log compaction put its own time into rows, and the compaction has merged them into the base file."""
    table = open_table(unzip_golden(name, tmp_path))
    schedule(table, sole_writer=True)
    run_all(table)
    moments = moments_of(table)
    states = {m: state(table, m) for m in moments}
    for begin in moments:
        check_window(table, begin, moments[-1], states)


def test_a_clustering_that_restamps_is_no_change(tmp_path: Path) -> None:
    table = restamped_by_clustering(tmp_path)
    moments = moments_of(table)
    states = {m: state(table, m) for m in moments}
    last = moments[-1]
    for begin in moments[::2]:
        check_window(table, begin, last, states)
    assert feed(table, moments[0], last, net=True)


@pytest.mark.parametrize("number", [0, *(deep(n) for n in range(1, 12))])
def test_random_histories(number: int, tmp_path: Path) -> None:
    """Upserts with late and equal rows, deletes, compactions and log compactions, all windows."""
    chance = random.Random(SEED + number)
    path, version = tmp_path / "rides", chance.choice([6, 8, 9])
    equal = 0
    for ts in range(1, 11 if number else 7):
        write = chance.choice(["upsert", "upsert", "upsert", "late", "delete"] if ts > 1 else ["upsert"])
        keys = chance.sample("abcdefgh", chance.randint(1, 5))
        order = chance.randint(1, ts) if write == "late" else ts
        values = [chance.randint(0, 2) for _ in keys]
        rows = pa.table({"id": keys, "p": [key < "d" for key in keys], "ts": [order] * len(keys), "v": values})
        rows = rows.set_column(1, "p", rows["p"].cast(pa.string()))
        described = writer(rows).table("rides", version=version).key("id").partition("p").ordering("ts").buckets(1)
        equal += len(keys)  # a late row of the same time may be equal
        if write == "delete":
            described.delete(str(path))
        else:
            described.upsert(str(path))
        service = chance.choice(["", "compact", "log"])
        if service == "compact":
            schedule(path, sole_writer=True)
        elif service == "log":
            request(open_table(path))
        run_all(open_table(path))
    table = open_table(path)
    moments = moments_of(table)
    states = {m: state(table, m) for m in moments}
    for begin, end in [*pairwise(moments), *(sorted(chance.sample(moments, 2)) for _ in range(5))]:
        check_window(table, begin, end, states, same=equal)


# Windows beside a clustering that completes at a time that a dead process decided: it lies in the window, while it is
# read. All rows are there, and none is a change.


READS = {"incremental": (Query.INCREMENTAL, False), "changes": (Query.CHANGES, False), "net": (Query.CHANGES, True)}
USUAL = {(9, "incremental"), (9, "changes")}


def _decided(path: Path, version: int) -> None:
    """A clustering whose process died right before it completed it, and a write behind the time that it decided."""
    small_files(path, version)
    with pytest.raises(ProcessDied):
        cluster(path, HookedStorage(LocalStorage(str(path)), die_at_nth(1, "put_if_absent", ".replacecommit")))
    upsert(path, one_row("later", 50))
    forget_heartbeats(path)


def _rows(path: Path, options: ReadOptions, storage: Storage | None = None) -> list[str]:
    """The keys, of changes with what became of them."""
    rows = from_one_snapshot(lambda: plan(open_table(path, storage), options).to_table()).to_pylist()
    return sorted(r["id"] if "id" in r else f"{r['op']} {(r['after'] or r['before'])['id']}" for r in rows)


@pytest.mark.parametrize(
    ("version", "read"), [one if one in USUAL else deep(*one) for one in ((v, r) for v in (9, 8, 6) for r in READS)]
)
def test_all_rows(version: int, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process completes it at each listing of a read. On version 6 the window may reach farther behind it."""
    serial_pools(monkeypatch)
    made, path = tmp_path / "made/trips", tmp_path / "read/trips"
    made.parent.mkdir()
    _decided(made, version)
    timeline = open_table(made).load_timeline()
    moments = sorted(timeline.moment_of(w) for w in timeline.completed)
    query, net = READS[read]
    options = ReadOptions(query=query, begin=moments[0], end=moments[-1], net=net)
    before = _rows(made, options)

    def hook(call: Call, at: int, listed: list[str]) -> Any:
        if call.name == "list":
            listed.append(call.path)
            if len(listed) == at:
                cluster(path)
        return call.do()

    for at in count(1, 1 if ALL else 2):
        shutil.rmtree(path.parent, ignore_errors=True)
        shutil.copytree(made, path)
        listed = list[str]()
        found = _rows(path, options, HookedStorage(LocalStorage(str(path)), partial(hook, at=at, listed=listed)))
        assert found in (before, _rows(path, options)), f"completed at listing {at} of the read"
        if len(listed) < at:
            assert at > 3
            break


# A window is refused as soon as a clean may have removed its files, and never shrinks without a word.


CLEANED = ["v6_compacted_cleaned", "v6_archived", "v9_compacted_cleaned", "v9_archived"]


def window(path: Path, end: str) -> int:
    found: int = read_table(path, ReadOptions(query=Query.INCREMENTAL, begin="earliest", end=end)).num_rows
    return found


@pytest.mark.parametrize("name", CLEANED)
def test_a_clean_that_was_killed_counts_as_one_that_ended(name: str, tmp_path: Path) -> None:
    """It removes files from its beginning on."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    retained = retained_since(table.snapshot())
    before = [t for t in sorted(table.load_timeline().completed_writes) if t < retained][:-1]
    for clean in [*(path / ".hoodie").glob("*.clean"), *(path / ".hoodie/timeline").glob("*.clean")]:
        clean.unlink()
    assert retained_since(table.snapshot()) == retained
    for end in before:
        with pytest.raises(UsageError, match="have been cleaned"):
            window(path, end)


@one_of("name", "v9_archived", "v6_archived")
def test_what_an_earlier_clean_removed_stays_gone(name: str, tmp_path: Path) -> None:
    """The last one retained more commits again."""
    path = unzip_golden(name, tmp_path)
    table = open_table(path)
    timeline = table.load_timeline()
    assert len(cleans(timeline)) > 1
    before = max(c.requested_time for c in cleans(timeline)[:-1])
    change_clean(path, earliestCommitToRetain="20000101000000000")
    assert "20000101000000000" < retained_since(table.with_timeline(open_table(path).load_timeline())) < before


def test_on_version_6_nothing_is_known_of_writes_before_the_timeline(tmp_path: Path) -> None:
    path = unzip_golden("v6_archived", tmp_path)
    table = open_table(path)
    timeline = table.load_timeline()
    assert earliest_state(timeline, min(timeline.completed_writes)) == min(timeline.completed_writes)


@pytest.mark.parametrize("query", ["incremental", "changes"])
def test_rows_of_a_window_are_refused_while_a_write_is_pending_below_its_end(query: str, tmp_path: Path) -> None:
    """A writer with a slow clock: its rows belong to the window, and may still come."""
    path = unzip_golden("v6_plain", tmp_path)
    writes = sorted(open_table(path).load_timeline().completed_writes)
    rows = read(path, query=query, begin=writes[0])
    assert rows.to_arrow().num_rows
    for name in ("requested", "inflight"):
        (path / f".hoodie/{int(writes[0]) + 1}.deltacommit.{name}").write_bytes(b"")
    with pytest.raises(UsageError, match="does not reach to its end any more"):
        rows.to_arrow()
