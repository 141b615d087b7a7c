"""Runs one measured process: seconds from its start to its end, and the memory of it and its children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SAMPLE_S = 0.05
_TIMEOUT_S = 3600.0
_REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """`peak_bytes`: greatest sum of resident memory over the process and its children, mapped inputs included."""

    seconds: float
    peak_bytes: int
    stdout: str

    @property
    def answer(self) -> dict[str, Any]:
        """The JSON object in the last line of stdout."""
        found: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return found


def child(*arguments: str) -> Ran:
    """One command of `bench.child`."""
    return run([sys.executable, "-m", "bench.child", *arguments])


def run(command: list[str]) -> Ran:
    """Runs a command to its end; RuntimeError with its last words when it fails."""
    with tempfile.TemporaryFile() as words:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=words, text=True, cwd=_REPOSITORY)
        memory = _Memory(process.pid)
        try:
            stdout, _ = process.communicate(timeout=_TIMEOUT_S)
        finally:
            process.kill()
            seconds = time.perf_counter() - started
            peak = memory.stop()
        if process.returncode:
            words.seek(0)
            tail = words.read().decode(errors="replace")[-4000:]
            raise RuntimeError(f"`{' '.join(command)}` exited {process.returncode}:\n{tail}")
    return Ran(seconds=seconds, peak_bytes=peak, stdout=stdout)


class _Memory:
    """Samples the resident memory of a process tree until `stop`."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._peak = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._end.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._end.wait(_SAMPLE_S):
            self._peak = max(self._peak, _resident_bytes(self._root))


def _resident_bytes(root: int) -> int:
    """Linux only; 0 elsewhere."""
    children: dict[int, list[int]] = defaultdict(list)
    pages: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        children[int(fields[1])].append(int(entry.name))
        pages[int(entry.name)] = int(fields[21])
    total, open_ = 0, [root]
    while open_:
        process = open_.pop()
        total += pages.get(process, 0)
        open_ += children[process]
    return total * os.sysconf("SC_PAGE_SIZE")
