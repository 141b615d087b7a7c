"""The error of a value names the option as it was typed."""

from __future__ import annotations

import pytest

from phantombase.compactor_daemon.cli.option_flags import offers
from phantombase.timeline.errors import UsageError
from phantombase.timeline.planning.options import ScheduleOptions

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
    with pytest.raises(UsageError, match=r"found --trigger: num-commits and time-elapsed"):
        schedule(**{name: given.get(name) for name in names})
