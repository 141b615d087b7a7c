"""Packages of npm, and of these axe-core: the accessibility rules for a page in a browser (`chromium`)."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from filelock import FileLock

from tests.support.servers.debian import NotInstalledError, cache

_VERSION = "4.14.1"
_MAX_S = 120.0
_NOT_ASKED = {"meta-refresh": "pages that read themselves again have a link that ends it (WCAG 2.2.1, turn off)"}


def source() -> str:
    """The script. NotInstalledError."""
    return (npm_package("axe-core", _VERSION) / "axe.min.js").read_text()


def npm_package(name: str, version: str) -> Path:
    """The folder of a package without dependencies, from npm the first time. NotInstalledError."""
    folder = cache() / f"{name}-{version}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            if shutil.which("npm") is None:
                raise NotInstalledError(f"{name} comes with npm, which is missing; or put it at {folder}")
            with tempfile.TemporaryDirectory(dir=folder.parent) as new:
                command = ["npm", "pack", f"{name}@{version}", "--silent"]
                done = subprocess.run(command, cwd=new, capture_output=True, text=True, timeout=_MAX_S)
                if done.returncode != 0:
                    raise NotInstalledError(f"`{' '.join(command)}` failed: {(done.stdout + done.stderr)[-1000:]}")
                with tarfile.open(Path(new) / done.stdout.split()[-1]) as archive:
                    archive.extractall(new, filter="data")
                Path(new, "package").rename(folder)
    return folder


def question() -> str:
    """What a page is asked that has the script: a promise of the violations, as JSON."""
    options = {"rules": {rule: {"enabled": False} for rule in _NOT_ASKED}}
    shown = (
        "{rule: v.id, impact: v.impact, where: v.nodes.map(n => n.html.slice(0, 160)), why: v.nodes[0].failureSummary}"
    )
    return f"axe.run(document, {json.dumps(options)}).then(r => JSON.stringify(r.violations.map(v => ({shown}))))"


def violations(answer: str) -> list[Any]:
    """The answer to the question."""
    return list(json.loads(answer))
