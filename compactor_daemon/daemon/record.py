"""The record of a daemon: a JSON line for each event and each turn of its loop, so that decisions can be replayed.

    {"begin": CONTROL}                                   the state before the first event
    {"at": [NOW, EPOCH], "event": EVENT}                 an event was applied
    {"at": [NOW, EPOCH], "upkeeps": n, "picks": [...], "actions": [...], "ended": false}      a decision was made

A dataclass is an object with its class under `is`. Each daemon has a file of its own, and adds to what is there. A line
may be half of one where a process was killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import time
from enum import Enum
from pathlib import Path
from typing import Any

from phantombase.timeline.errors import UsageError
from phantombase.timeline.event_log import get_logger

from .control import Control, Event, Moment
from .dispatch import NextSteps

_log = get_logger()


def as_record(value: object) -> Any:
    """A value as JSON. A set has its members in order; what is no value, as a table on storage, is null."""
    if is_dataclass(value):
        inner = {one.name: as_record(getattr(value, one.name)) for one in fields(value) if one.init}
        return {"is": type(value).__name__, **inner}
    if isinstance(value, Enum):
        return {"is": type(value).__name__, "value": value.value}
    if isinstance(value, Mapping):
        return {"is": "Mapping", "of": [[key, as_record(one)] for key, one in value.items()]}
    if isinstance(value, frozenset):
        return {"is": "frozenset", "of": sorted(value)}
    if isinstance(value, time):
        return {"is": "time", "of": value.isoformat()}
    if isinstance(value, tuple | list):
        return [as_record(one) for one in value]
    return value if isinstance(value, str | int | float | bool) else None


class Recorder:
    """Writes the record of a daemon. A file that cannot be written later ends the record, not the daemon."""

    def __init__(self, path: Path, control: Control) -> None:
        """UsageError: the file cannot be written."""
        try:
            self._file = path.open("ab", buffering=0)
            if self._file.tell():
                self._file.write(b"\n")  # the last line may be half of one
        except OSError as error:
            raise UsageError(
                "the file for events cannot be written",
                path=str(path),
                found=str(error),
                todo="Name a file in a folder that this user may write.",
            ) from error
        self._control = control
        self._works = True
        use = control.use
        self._add(
            {
                "begin": {
                    "rules": as_record(control.rules),
                    "retry": as_record(control.retry),
                    "pools": as_record(use.pools),
                    "slots": use.slots,
                    "began": use.began,
                    "tables": {name: as_record(state.pool) for name, state in control.tables.items()},
                }
            }
        )

    def event(self, event: Event, at: Moment) -> None:
        self._add({"at": [at.now_ms, at.epoch_ms], "event": as_record(event)})

    def decide(self, at: Moment, pick: Callable[[int], int], upkeeps: int) -> NextSteps:
        """As `Control.decide`, and adds the decision."""
        picks = []

        def recorded(below: int) -> int:
            picks.append(pick(below))
            return picks[-1]

        steps = self._control.decide(at, recorded, upkeeps)
        turn = {"upkeeps": upkeeps, "picks": picks, "actions": as_record(steps.actions), "ended": steps.ended}
        self._add({"at": [at.now_ms, at.epoch_ms], **turn})
        return steps

    def _add(self, line: Mapping[str, Any]) -> None:
        if not self._works:
            return
        data = json.dumps(line).encode() + b"\n"  # ASCII: paths may have surrogates, which are no UTF-8
        try:
            if self._file.write(data) != len(data):
                raise OSError("only a part of a line could be written")
        except OSError as error:
            self._works = False
            _log.warning("events_not_recorded", path=self._file.name, error=str(error))
