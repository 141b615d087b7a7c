"""The accessibility rules of axe-core, for a page in a browser (`chromium`)."""

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
    """The script, from npm's package the first time. NotInstalledError."""
    script = cache() / f"axe-core-{_VERSION}.js"
    script.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{script}.lock"):
        if not script.exists():
            _fetch(script)
    return script.read_text()


def _fetch(script: Path) -> None:
    if shutil.which("npm") is None:
        raise NotInstalledError(f"axe-core comes with npm, which is missing; or put it at {script}")
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", f"axe-core@{_VERSION}", "--silent"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_MAX_S)
        if done.returncode != 0:
            raise NotInstalledError(f"`{' '.join(command)}` failed: {(done.stdout + done.stderr)[-1000:]}")
        with tarfile.open(Path(folder) / done.stdout.split()[-1]) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            whole = script.with_suffix(".new")
            whole.write_bytes(member.read())
            whole.rename(script)


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
