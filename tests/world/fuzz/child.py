"""Runs a range of cases, a JSON line for each: `python -m tests.world.fuzz.child PRISTINE SEED FIRST END`.

The parent (`runner`) watches from outside, because what is looked for here can end or block a process."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

from phantombase.timeline.clocks import Retry
from phantombase.timeline.instants import instant_files
from tests.world.fuzz.case import build, make_case
from tests.world.fuzz.exercise import exercise

ADDRESS_SPACE_BYTES = 6 << 30
"""Hard limit. Far above what is used: allocators and thread stacks reserve much."""
GROWTH_BYTES_MAX = 512 << 20
"""How much a case may add to resident memory at its peak; tables are below 3 MB."""
HUNG_S = 60.0
"""Seconds after which a case tells where it is, for the runner that is about to end it."""
_COMPACT_EVERY = 8


def _status(field: str) -> int:
    """Bytes of a memory figure of this process: VmRSS, VmHWM."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) * 1024 if match else 0


def run_case(pristine: Path, scratch: Path, seed: int, number: int) -> dict[str, object]:
    """One case: `outcome` is a word, or `failed` with `detail`."""
    case = make_case(pristine, seed, number)
    said: dict[str, object] = {"number": number, "table": case.table, "file": case.path, "what": case.what}
    root = Path(tempfile.mkdtemp(dir=scratch))
    try:
        build(pristine, case, root / "table")
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        started, resident = time.monotonic(), _status("VmRSS")
        try:
            outcome = exercise(root, case.what, compact=Random(number).randrange(_COMPACT_EVERY) == 0)
            said["outcome"] = outcome
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            said |= {"outcome": "failed", "detail": "".join(traceback.format_exception(error))[-6000:]}
        said["seconds"] = round(time.monotonic() - started, 3)
        said["growth"] = grown = _status("VmHWM") - resident
        if grown > GROWTH_BYTES_MAX and said["outcome"] != "failed":
            said |= {"outcome": "failed", "detail": f"memory grew by {grown >> 20} MiB"}
        return said
    finally:
        shutil.rmtree(root)


def main(pristine: str, seed: str, first: str, end: str) -> None:
    """Prints a line a case, `{"number": ...}` with its outcome."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Nothing is being written by anybody here, and nothing has to survive a power cut.
    setattr(instant_files, "TORN_AGAIN", Retry(()))  # noqa: B010
    setattr(os, "fsync", lambda _: None)  # noqa: B010
    scratch = Path(pristine).parent / f"cases-{os.getpid()}"
    scratch.mkdir()
    faulthandler.enable()
    for number in range(int(first), int(end)):
        faulthandler.dump_traceback_later(HUNG_S)
        said = run_case(Path(pristine), scratch, int(seed), number)
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
