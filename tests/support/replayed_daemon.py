"""Replays the record of a daemon: `python -m tests.support.replayed_daemon FILE` prints what each of its runs decided.

A record is what `compactor-daemon run --events FILE` writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import time
from functools import cache
from pathlib import Path
from typing import Any

from phantombase.compactor_daemon.daemon.control import Control, Moment
from phantombase.compactor_daemon.daemon.record import as_record
from phantombase.compactor_daemon.daemon.table_state import TableState
from phantombase.compactor_daemon.fleet.pools import QuotaUsage


@cache
def _kind(name: str) -> Any:
    """The class of this name: the product has no name of a class twice."""
    modules = [module for path, module in sys.modules.items() if path.startswith("phantombase.")]
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def value_of(record: Any) -> Any:
    """Inverse of `as_record`; what was no value is None."""
    if isinstance(record, list):
        return tuple(value_of(one) for one in record)
    if not isinstance(record, dict):
        return record
    match record:
        case {"is": "Mapping", "of": pairs}:
            return {key: value_of(one) for key, one in pairs}
        case {"is": "frozenset", "of": members}:
            return frozenset(members)
        case {"is": "time", "of": text}:
            return time.fromisoformat(text)
        case {"is": name, "value": value, **rest} if not rest:
            return _kind(name)(value)
    return _kind(record["is"])(**{name: value_of(one) for name, one in record.items() if name != "is"})


@dataclass(slots=True)
class Replayed:
    """A run of a daemon. `actions`: all that it did, as recorded, with the time; `differs`: the first line, counted
    from 1, at which the decision is another one now, with the recorded and the new actions."""

    control: Control
    actions: list[tuple[int, Any]] = field(default_factory=list)
    differs: tuple[int, Any, Any] | None = None


def replay(lines: Iterable[str]) -> Iterator[Replayed]:
    """Each run of a record, to its end or to the first decision that is another one now."""
    run: Replayed | None = None
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue  # the process was killed while it wrote
        if (begin := record.get("begin")) is not None:
            if run is not None:
                yield run
            run = Replayed(_control(begin))
        elif run is not None and run.differs is None:
            _step(run, record, number)
    if run is not None:
        yield run


def _control(begin: Mapping[str, Any]) -> Control:
    return Control(
        rules=value_of(begin["rules"]),
        retry=value_of(begin["retry"]),
        use=QuotaUsage(pools=value_of(begin["pools"]), slots=begin["slots"], began=begin["began"]),
        tables={name: TableState(pool=value_of(pool)) for name, pool in begin["tables"].items()},
    )


def _step(run: Replayed, record: Mapping[str, Any], number: int) -> None:
    at = Moment(now_ms=record["at"][0], epoch_ms=record["at"][1])
    if "event" in record:
        run.control.apply(value_of(record["event"]), at)
        return
    picks = iter(record["picks"])
    steps = run.control.decide(at, lambda below: min(next(picks, 0), below - 1), record["upkeeps"])
    now = [as_record(steps.actions), steps.ended]
    if now != (before := [record["actions"], record["ended"]]):
        run.differs = (number, before, now)
    run.actions += [(at.epoch_ms, action) for action in record["actions"]]


if __name__ == "__main__":
    for one in replay(Path(sys.argv[1]).read_text().splitlines()):
        for epoch_ms, action in one.actions:
            print(epoch_ms, *action.values())
        if one.differs is not None:
            sys.exit(
                f"line {one.differs[0]} decides otherwise now\nrecorded {one.differs[1]}\nnow      {one.differs[2]}"
            )
