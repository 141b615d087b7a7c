"""`compactor-daemon` whose Spark tasks wait at a gate, so that a test finds its file slices where it wants them.

    GATE=FOLDER python -m tests.support.gated_compactor run TABLE --master MASTER

A task leaves `<instant>.<attempt>.<position>.<pid>` in the folder and waits until there is `open` or `open-<position>`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantombase.compactor_daemon.attempt.slice_task import SliceTask
from phantombase.compactor_daemon.cli import main as cli
from phantombase.compactor_daemon.execution import runners as execute
from phantombase.compactor_daemon.execution.runners import _run_part
from phantombase.timeline.storage.contract import Storage

_WAIT_MAX_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A task that came to the gate, in the Python worker `pid`."""

    instant: str
    attempt: int
    position: int
    pid: int


@dataclass(frozen=True)
class Gate:
    """The test's side of it, and the task's."""

    folder: Path

    def begun(self) -> list[Begun]:
        """Tasks that have come so far."""
        names = (p.name.split(".") for p in self.folder.iterdir() if not p.name.startswith("open"))
        return [Begun(instant=i, attempt=int(a), position=int(n), pid=int(pid)) for i, a, n, pid in names]

    def open(self, *positions: int) -> None:
        """Lets tasks of these positions through; of all, when none is named."""
        for name in [f"open-{n}" for n in positions] or ["open"]:
            (self.folder / name).touch()

    def close(self) -> None:
        """Nobody goes through any more."""
        for path in self.folder.glob("open*"):
            path.unlink()

    def wait(self, task: SliceTask) -> None:
        """In the task."""
        (self.folder / f"{task.instant}.{task.attempt}.{task.position}.{os.getpid()}").touch()
        until = time.monotonic() + _WAIT_MAX_S
        while not any((self.folder / name).exists() for name in ("open", f"open-{task.position}")):
            assert time.monotonic() < until, "nobody opened the gate"
            time.sleep(0.02)


def gated(storage: Storage, rounds: Any, sent: Any) -> Any:
    """What a Spark task runs: pickled by name, so executors import this module."""
    kind, round_ = rounds[sent[0]]
    Gate(Path(os.environ["GATE"])).wait(kind(round_, sent[1]))
    return _run_part(storage, rounds, sent)


def main() -> None:
    """As the command."""
    execute._run_part = gated
    cli.main()


if __name__ == "__main__":
    # Not this module under the name of __main__, which executors do not have.
    from tests.support import gated_compactor

    gated_compactor.main()
