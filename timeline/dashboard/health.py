"""One word for a table, and why (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..errors import PhantombaseError
from ..terminal.text_table import Row, human_duration


class Word(Enum):
    """How a table is, worst first."""

    BROKEN = "broken"
    STUCK = "stuck"
    LATE = "late"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Health:
    """The worst that is known of a table."""

    word: Word
    reason: str


def health_of(
    pending: Sequence[Row],
    slo_s: float | None,
    worked_on: Sequence[Row] = (),
    refused: PhantombaseError | None = None,
) -> Health:
    """The health of a table that can be read. `pending`: as in the JSON of `timeline show`. `worked_on`: what daemons
    know of them, as in that of `compactor-daemon status`. `refused`: of a file that is lost or damaged.

    Broken: a file is lost or damaged. Stuck: a write's heartbeat has stopped, a plan cannot be read, or a compaction is
    parked. Late: a compaction is pending for longer than `slo_s`; None: never.
    """
    if refused is not None:
        return Health(Word.BROKEN, str(refused))
    for row in pending:
        if row["problem"] is not None:
            return Health(Word.STUCK, f"{_named(row)}: {row['problem']}")
    for row in pending:
        if row["heartbeat"] == "stale":
            silent = f"its writer has been silent for {human_duration(row['heartbeat_age_s'])}"
            return Health(Word.STUCK, f"{_named(row)} is {row['state']}, and {silent}")
    for row in worked_on:
        if row["state"] == "parked":
            return Health(Word.STUCK, f"compaction {row['instant']} is parked: {row['why']}")
    ages = [(row["age_s"], row) for row in pending if row["action"] == "compaction" and row["age_s"] is not None]
    if ages:
        age, oldest = max(ages, key=lambda pair: pair[0])
        text = f"{_named(oldest)} has been pending for {human_duration(age)}"
        if slo_s is not None and age > slo_s:
            return Health(Word.LATE, f"{text}; the goal is {human_duration(slo_s)}")
        return Health(Word.OK, text)
    return Health(Word.OK, "no compaction is pending")


def _named(row: Row) -> str:
    return f"{row['action']} {row['instant']}"
