"""The error of a value names the option as it was typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.compact_instant import pending_instants
from phantombase.compactor_daemon.cli.lake import LakeFlags
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.cli.option_flags import offers
from phantombase.timeline.errors import UsageError
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage.storage_options import StorageOptions
from tests.support.compaction_steps import open_table
from tests.support.golden_tables import unzip_golden

DEFAULT = ScheduleOptions()


@offers
def schedule(options: ScheduleOptions = DEFAULT) -> None:
    """A command with the options of a plan."""


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"target_io": "5x"}, "not a size for --target-io"),  # the text is no size
        ({"max_file_slices": 0}, "--max-file-slices must be at least 1"),  # the dataclass names its field
        ({"optimization_interval": 0.0}, "--optimization-interval must be at least 1"),  # with a unit behind it
        ({"off_peak_hours": "22"}, "--off-peak-hours: not a span of hours"),  # or names none
        ({"partition_urgency": ["day=1"], "max_plans": 3}, "--partition-urgency: not an urgency"),
        ({"conf": ["hoodie.compaction.target.io=5x"]}, "not a value of hoodie.compaction.target.io"),
        ({"conf": ["hoodie.compact.inline.max.delta.commits=0"]}, "max-delta-commits must"),  # not typed: without --
    ],
)
def test_the_option_is_named_as_it_was_typed(given: dict[str, object], what: str) -> None:
    names = schedule.__signature__.parameters  # type: ignore[attr-defined]
    with pytest.raises(UsageError) as refused:
        schedule(**{name: given.get(name) for name in names})
    assert refused.value.what.startswith(what), refused.value


def test_an_option_given_twice_shows_both_values() -> None:
    names = schedule.__signature__.parameters  # type: ignore[attr-defined]
    given = {"trigger": "num-commits", "conf": ["hoodie.compact.inline.trigger.strategy=TIME_ELAPSED"]}
    with pytest.raises(UsageError, match=r"expected --trigger=num-commits; found --trigger by --conf=time-elapsed"):
        schedule(**{name: given.get(name) for name in names})


@pytest.mark.parametrize(
    ("tables", "flags", "what"),
    [
        ([], LakeFlags(), "the tables are named, or found"),
        (["t"], LakeFlags(root="/r"), "the tables are named, or found"),
        ([], LakeFlags(root="/r", catalog="hive:h:1"), "the tables are named, or found"),
        (["t"], LakeFlags(include=("sales_*",)), "--include and --exclude are for tables that are found"),
        (["t"], LakeFlags(exclude=("sales_*",)), "--include and --exclude are for tables that are found"),
        ([], LakeFlags(catalog="glue:h:1"), "unknown kind of catalog"),
    ],
)
def test_tables_are_named_or_found(tables: list[str], flags: LakeFlags, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        flags.lake(tables, flags.lanes(None, DEFAULT), StorageOptions())


def test_only_an_unreadable_decision_needs_a_lock(tmp_path: Path) -> None:
    """Who gives one means to take a decision back."""
    path = unzip_golden("v9_pending", tmp_path)
    (instant,) = pending_instants(open_table(path))
    said = CliRunner().invoke(app, ["release", str(path), instant, "--sole-writer"])
    assert "only --unreadable needs a lock" in f"{said.output} {said.exception}"
