"""The health of a table in one word, and the reason (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..errors import PhantombaseError
from ..format.instant import MERGES
from ..terminal.text_table import Row, human_duration
from .overview import PendingReport
from .values import is_late


class Word(Enum):
    """The health of a table, worst first."""

    BROKEN = "broken"
    STUCK = "stuck"
    LATE = "late"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Health:
    """The worst known problem of a table."""

    health: Word
    reason: str


def health_of(
    pending: Sequence[PendingReport],
    slo_s: float | None,
    worked_on: Sequence[Row] = (),
    refused: PhantombaseError | None = None,
) -> Health:
    """The health of a readable table. `worked_on`: what daemons know of the pending compactions, as in the JSON of
    `compactor-daemon status`. `refused`: the error of a lost or damaged file.

    Broken: a file is lost or damaged. Stuck: a write's heartbeat has stopped, a plan cannot be read, or a compaction is
    parked. Late: a compaction is pending for longer than `slo_s`; None: never."""
    if refused is not None:
        return Health(Word.BROKEN, str(refused))
    for one in pending:
        if one.problem is not None:
            return Health(Word.STUCK, f"{_named(one)}: {one.problem}")
    for one in pending:
        if one.heartbeat == "stale":
            silent = f"its writer has been silent for {human_duration(one.heartbeat_age_s or 0.0)}"
            return Health(Word.STUCK, f"{_named(one)} is {one.state}, and {silent}")
    for row in worked_on:
        if row["state"] == "parked":
            return Health(Word.STUCK, f"compaction {row['instant']} is parked: {row['why']}")
    ages = [(one.age_s, one) for one in pending if one.action in MERGES and one.age_s is not None]
    if not ages:
        return Health(Word.OK, "no compaction is pending")
    age_s, oldest = max(ages, key=lambda pair: pair[0])
    text = f"{_named(oldest)} has been pending for {human_duration(age_s)}"
    if is_late(age_s, slo_s):
        return Health(Word.LATE, f"{text}; the goal is {human_duration(slo_s or 0.0)}")
    return Health(Word.OK, text)


def _named(one: PendingReport) -> str:
    return f"{one.action} {one.instant}"
