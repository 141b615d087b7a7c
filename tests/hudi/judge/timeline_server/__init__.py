"""Hudi's own timeline server as a process: what `timeline serve` is measured against, and compared with.

Its `main` cannot be used: it returns after starting, and the JVM ends."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hudi.judge.environment import JudgeError
from tests.hudi.judge.java_client import compiled

_SOURCE = Path(__file__).with_name("TimelineServer.java")
_READY_S = 120


@contextmanager
def hudi_server(version: str, *, heap: str = "2g") -> Iterator[str]:
    """The address of a running server of this Hudi version. JudgeError: it does not start."""
    command = ["java", f"-Xmx{heap}", "-cp", compiled(version, _SOURCE), _SOURCE.stem]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        late = threading.Timer(_READY_S, process.kill)
        late.start()
        try:
            assert process.stdout is not None
            port = next((line.split()[1] for line in process.stdout if line.startswith("PORT ")), None)
            late.cancel()
            if port is None:
                raise JudgeError(f"the timeline server of Hudi {version} does not start")
            yield f"http://127.0.0.1:{port}"
        finally:
            late.cancel()
            process.kill()
