"""Change feeds over windows with table services: these change no row, also where they have restamped rows."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from phantombase import schedule, writer
from tests.support.change_feeds import check_window, feed, moments_of, restamped_by_clustering, state
from tests.support.compaction_steps import open_table, run_all
from tests.support.golden_tables import unzip_golden
from tests.support.log_compactions import request
from tests.support.seed import SEED
from tests.support.selection import deep

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
