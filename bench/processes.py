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
    """`peak_bytes`: greatest sum of resident memory over the process and its children, mapped inputs included;
    `peak_private_bytes`: without pages of files, which the system takes back when it needs them."""

    seconds: float
    peak_bytes: int
    peak_private_bytes: int
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
        memory = Memory(process.pid)
        try:
            stdout, _ = process.communicate(timeout=_TIMEOUT_S)
        finally:
            process.kill()
            seconds = time.perf_counter() - started
            peak, private = memory.stop()
        if process.returncode:
            words.seek(0)
            tail = words.read().decode(errors="replace")[-4000:]
            raise RuntimeError(f"`{' '.join(command)}` exited {process.returncode}:\n{tail}")
    return Ran(seconds=seconds, peak_bytes=peak, peak_private_bytes=private, stdout=stdout)


class Memory:
    """Samples the resident memory of a process tree until `stop`, which gives the peak, and that of private memory."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._peak = self._private = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> tuple[int, int]:
        self._end.set()
        self._thread.join()
        return self._peak, self._private

    def _watch(self) -> None:
        while not self._end.wait(_SAMPLE_S):
            resident, private = _memory_bytes(self._root)
            self._peak, self._private = max(self._peak, resident), max(self._private, private)


def _memory_bytes(root: int) -> tuple[int, int]:
    """Resident memory of a process tree, and that without pages of files. Linux only; 0 elsewhere."""
    children: dict[int, list[int]] = defaultdict(list)
    pages: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            _, resident, shared, *_ = (entry / "statm").read_text().split()
        except OSError:
            continue  # ended meanwhile
        children[int(fields[1])].append(int(entry.name))
        pages[int(entry.name)] = (int(resident), int(resident) - int(shared))
    total, private, open_ = 0, 0, [root]
    while open_:
        process = open_.pop()
        all_, own = pages.get(process, (0, 0))
        total, private = total + all_, private + own
        open_ += children[process]
    page = os.sysconf("SC_PAGE_SIZE")
    return total * page, private * page
