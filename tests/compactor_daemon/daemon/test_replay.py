"""`replay`: a table's own history of commits under other settings, by the code that daemons run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import phantombase
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.daemon.past_writes import Rates, ReplayCost, ReplayOptions
from phantombase.compactor_daemon.daemon.replay import replay_table
from phantombase.timeline.errors import UsageError
from phantombase.timeline.instants.triggers import TriggerStrategy
from phantombase.timeline.planning.limits import Picking
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.planning.strategies import Strategy
from phantombase.timeline.table.table import Table
from tests.support.golden_tables import unzip_golden
from tests.support.histories import MB, Made, instant_of, made_table
from tests.support.places import traces

GROUPS = ("a/f0", "a/f1", "b/f2", "b/f3")
TEN = ReplayOptions(cores=1, core_s_per_gb=10.0)
ELAPSED = TriggerStrategy.TIME_ELAPSED
HOUR = ScheduleOptions(freshness_s=3600)


def half_a_day() -> list[Made]:
    """Base files of 100 MB; each quarter of an hour 5 MB of logs in the first file group, and 10 MB in one of the
    others by turns; each four hours the table's own compaction, whose tasks take 40 s."""
    made = [Made(at_s=0, bases=dict.fromkeys(GROUPS, 100 * MB))]
    for number in range(1, 49):
        made.append(Made(at_s=900 * number, logs={GROUPS[0]: 5 * MB, GROUPS[number % 3 + 1]: 10 * MB}))
        if number % 16 == 0:
            bases = dict.fromkeys(GROUPS, 100 * MB)
            made.append(Made(at_s=900 * number + 60, took_s=60, compaction=True, work_s=40, bases=bases))
    return made


def seen(one: ReplayCost) -> tuple[int, int, int, float, float, float, float]:
    """Compactions, MB moved, log depth, lag, core-seconds."""
    moved = (one.bytes_read + one.bytes_written) // MB
    depth, lag = (one.log_depth_max, one.log_depth_mean), (round(one.lag_max_s), round(one.lag_p95_s, -1))
    return one.compactions + one.log_compactions, moved, *depth, *lag, round(one.core_hours * 3600)


def tried(table: Table, options: ScheduleOptions, how: ReplayOptions = TEN) -> ReplayCost:
    (one,) = replay_table(table, options, how).tried
    return one.outcome


@pytest.mark.parametrize(("version", "took_s"), [(9, 60), (6, 0)])
def test_the_same_commits_under_other_settings(version: int, took_s: int, tmp_path: Path) -> None:
    """Each fifth of 49 delta commits, the first has base files only, is nine compactions, of 4 and 8 times 5 logs. An
    hour's freshness is one for each four writes. Version 6 has no completion times."""
    table = made_table(tmp_path, half_a_day(), version)
    found = replay_table(table, ScheduleOptions(), TEN)
    assert (found.delta_commits, found.file_groups, found.unknown_writes) == (49, 4, 0)
    assert (found.since, found.until) == (instant_of(0), instant_of(48 * 900 + 60))
    assert seen(found.recorded)[:3] == (3, 3 * (400 + 16 * 15) + 3 * 400, 16)
    assert found.recorded.lag_max_s == 15 * 900 + 60 + took_s
    assert seen(found.tried[0].outcome) == pytest.approx((9, 9 * 800 + 44 * 15, 5, 0.96, 3605, 3330, 45), abs=0.02)
    for options, expected in (
        (HOUR, (12, 10305, 4, 1.2, 3595, 3400, 58)),
        (ScheduleOptions(strategies=(Strategy.LOG_FILE_NUM,), log_num_threshold=3), (9, 4810, 5, 1.56, 8106, 7380, 28)),
        (ScheduleOptions(strategy=ELAPSED, max_delta_seconds=7200), (6, 5520, 8, 1.75, 6305, 5940, 33)),
    ):
        assert seen(tried(table, options)) == pytest.approx(expected, abs=0.02), options
    # Log compactions alone: no row ever reaches a base file. Of version 6 none is made without `readers_1x_only`.
    by_rules = replay_table(table, ScheduleOptions(picking=Picking.UNIVERSAL), TEN).tried[0].outcome
    assert (by_rules.compactions, by_rules.log_compactions) == ((2, 21) if version == 9 else (9, 0))


def test_the_cheapest_settings_that_keep_a_goal(tmp_path: Path) -> None:
    """One file group at a time moves less than all of them; fewer compactions miss the goal. What tasks took is known
    by the table's own compactions: 120 s for 3 times 640 MB."""
    table = made_table(tmp_path, half_a_day())
    found = replay_table(table, HOUR, TEN, best=True)
    measured = replay_table(table, HOUR)
    assert measured.rates == Rates(core_s_per_gb=120 / (3 * 640 * MB) * 1e9, measured=True)
    assert found.best == found.tried[0]
    assert found.best is not None
    assert (found.best.settings, found.best.outcome.compactions) == ("--max-file-slices 1 --freshness 3600", 35)
    kept = {one.settings: one.keeps for one in found.tried}
    assert (kept["--freshness 3600"], kept["--max-delta-commits 2"], kept["--max-delta-commits 10"]) == (
        True,
        True,
        False,
    )
    costs = [one.outcome.core_hours for one in found.tried if one.keeps]
    assert costs == sorted(costs)
    # A compaction of one file group takes longer than the goal.
    slow = replay_table(table, ScheduleOptions(freshness_s=60), ReplayOptions(core_s_per_gb=1e4), best=True)
    assert (slow.best, {one.keeps for one in slow.tried}) == (None, {False})
    with pytest.raises(UsageError, match="the best settings are those that keep a goal"):
        replay_table(table, ScheduleOptions(), best=True)
    (spaced,) = replay_table(table, ScheduleOptions(exclude=("a b",))).tried
    assert spaced.settings == "--exclude-partition 'a b'", "as a shell takes it"


def test_base_files_grow_as_they_did(tmp_path: Path) -> None:
    """By 30 of 60 MB of logs; a file group that begins with logs has a base file of all its bytes."""
    made = [Made(at_s=0, bases={"a/f": 100 * MB}), Made(at_s=1, logs={"a/f": 60 * MB, "a/g": 8 * MB})]
    made.append(Made(at_s=9, compaction=True, bases={"a/f": 130 * MB, "a/g": 8 * MB}))
    made.append(Made(at_s=600, logs={"a/f": 20 * MB}))
    table = made_table(tmp_path, [*made, Made(at_s=2000, logs={"a/f": 1})])
    found = replay_table(table, HOUR, TEN)
    assert found.rates == Rates(growth=0.5, fresh=1.0, core_s_per_gb=10.0)
    both = tried(table, ScheduleOptions(max_delta_commits=1))
    assert both.bytes_written == (130 + 8 + 140) * MB


@pytest.mark.parametrize("name", ["v6_archived", "v9_archived"])
def test_archived_commits_of_hudi_count(name: str, tmp_path: Path) -> None:
    table = Table.open(str(unzip_golden(name, tmp_path)), reading=True)
    found = replay_table(table, ScheduleOptions(max_delta_commits=2))
    assert (found.delta_commits, found.file_groups, found.unknown_writes, found.rates.measured) == (11, 4, 0, True)
    assert found.since < table.load_timeline().start
    assert found.recorded.compactions == (1 if name == "v6_archived" else 2)


def test_the_command_reads_the_timeline_only(tmp_path: Path) -> None:
    path = tmp_path / "trips"
    made_table(path, half_a_day())
    before = traces(path)

    def invoke(*words: str) -> Any:
        return CliRunner().invoke(app, ["replay", str(path), *words])

    done = invoke("--freshness", "1h", "--cores", "1", "--core-seconds-per-gb", "10", "--json")
    data = json.loads(done.stdout)
    (one,) = data["tried"]
    assert (data["goal_s"], data["best"], data["rates"]["measured"]) == (3600, None, False)
    assert (one["settings"], one["keeps"], one["outcome"]["compactions"]) == ("--freshness 3600", True, 12)
    shown = invoke("--freshness", "1h").stdout
    assert "49 delta commits in 4 file groups, 2026-01-01 00:00:00 to 2026-01-01 12:01:00" in shown
    assert "as its own compactions took" in shown
    missed = invoke("--freshness", "1m", "--best", "--core-seconds-per-gb", "10000")
    assert (missed.exit_code, "missed" in missed.stdout) == (1, True)
    assert "no settings keep the lag below 1 min" in missed.stderr
    assert replay_table(Table.open(str(path)), HOUR) == phantombase.replay(path, HOUR)
    assert traces(path) == before
    made_table(tmp_path / "new", ())
    with pytest.raises(UsageError, match="the table has no history to replay"):
        phantombase.replay(tmp_path / "new")
    with pytest.raises(UsageError, match="cores must be at least 1"):
        ReplayOptions(cores=0)
