"""What the docs show, run: the commands and the Python of a page, and what the commands print.

A page is one story: its blocks share one Python scope and one folder, in which they run.

    ```python     is run
    ```sh         every command must succeed
    ```console    `$ command`, and below it what it prints
    <!-- not run: why -->    above a block: passed over
    <!-- with Spark: what is there -->    above a block of Python or SQL: run where the story has a session of Spark

`python -m tests.project.doc_pages` runs all pages and writes what the commands print today into them.
"""

from __future__ import annotations

import io
import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tests.project.every_command import APPS
from tests.support.places import ROOT
from tests.support.servers.zookeeper_server import zookeeper_server

ALL_PAGES = ("README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md"))))
PAGES = (
    "README.md",
    "docs/start.md",
    "docs/reference/python.md",
    *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs/guides").glob("*.md"))),
)
SHOWN_ZOOKEEPER = "zk1:2181,zk2:2181,zk3:2181"

_BLOCK = re.compile(r"(<!-- (?:not run|with Spark): [^>]*-->\n+)?```(\w+)\n(.*?)```", re.DOTALL)
_HOME = "~"
"""What is shown in place of the folder."""

_SAME = {"bash deploy/demo.sh --keep lake/orders": "compactor-daemon demo --keep lake/orders"}
"""What the script runs once everything is set up."""

COLUMNS = "128"


@dataclass
class Story:
    """One page at work. `spark`: a session for the blocks that need one."""

    folder: Path
    zookeeper: str | None = None
    spark: Any = None
    scope: dict[str, Any] = field(default_factory=lambda: {"__name__": "tests.page"})
    instants: list[str] = field(default_factory=list)

    def play(self, text: str) -> str:
        """The page with what its commands print now. AssertionError: a command fails."""
        with chdir(self.folder):
            return _BLOCK.sub(self._block, text)

    def _block(self, found: re.Match[str]) -> str:
        mark, kind, code = found.groups()
        if mark and (self.spark is None or "with Spark" not in mark):
            return found[0]
        if kind == "python":
            self.python(code)
            for query in self.spark.streams.active if mark else ():
                query.processAllAvailable()
                query.stop()
        elif kind == "sql" and mark:
            for statement in filter(str.strip, code.split(";")):
                self.spark.sql(statement).collect()
        if kind not in ("sh", "console"):
            return found[0]
        printed = [(line, self._command(line)) for line in _commands(kind, code)]
        if kind == "sh":
            return found[0]
        return "```console\n" + "".join(f"$ {line}\n{output}" for line, output in printed) + "```"

    def _command(self, line: str) -> str:
        """What a command prints, in the words of the docs."""
        name, *words = shlex.split(_SAME.get(line, line), comments=True)
        words = [word.replace("$PWD", str(self.folder)) for word in words]
        words = [re.sub(r"^\d{17}$", lambda _: self.instants[-1], word) for word in words]
        words = [word.replace(SHOWN_ZOOKEEPER, self.zookeeper or "") for word in words]
        if words[0] == "run" and "--once" not in words:
            words.append("--once")
        printed = self.call(name, words)
        self.instants += re.findall(r"\b\d{17}\b", printed)
        printed = printed.replace(str(self.folder), _HOME)
        return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())

    def python(self, code: str) -> None:
        """Runs a block, in this process."""
        with redirect_stdout(io.StringIO()):
            exec(code, self.scope)

    def call(self, name: str, words: list[str]) -> str:
        """What a command prints, run in this process. AssertionError: it failed."""
        done = CliRunner().invoke(APPS[name], words, env={"COLUMNS": COLUMNS})
        assert done.exit_code == 0, f"{name} {words}: {done.output} {done.exception!r}"
        return done.stdout


def _commands(kind: str, code: str) -> Iterator[str]:
    for line in code.replace("\\\n", " ").splitlines():
        if kind == "sh" and line.strip() and not line.startswith("#"):
            yield line.strip()
        elif kind == "console" and line.startswith("$ "):
            yield line.removeprefix("$ ")


def comparable(text: str) -> str:
    """A page without what differs from run to run: times, instants, file ids, sizes, widths of columns."""
    for pattern, same in (
        (r"\s+", " "),  # first: a line is broken where the folder of a test is long
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f…-]+", "FILE"),
        (r"\b\d{17}\b", "INSTANT"),
        (r"\d{4}-\d\d-\d\d ", "DAY "),
        (r"\d\d:\d\d:\d\d", "TIME"),
        (r"\d+(\.\d+)? ([KMG]i)?B\b", "SIZE"),
        (r"\d+(\.\d+)? (ms|s|min|h|d)\b( \d+ (s|min|h)\b)*", "TIME"),
        (r"[\d,]+ of ([\d,]+) seconds", r"SECONDS of \1"),
        (r"─+", "─"),
    ):
        text = re.sub(pattern, same, text)
    return text


def main() -> None:
    """Writes into every page what its commands print."""
    with tempfile.TemporaryDirectory() as data, zookeeper_server(Path(data)) as zookeeper:
        for page in PAGES:
            path = ROOT / page
            with tempfile.TemporaryDirectory() as folder:
                played = Story(Path(folder), zookeeper.hosts).play(path.read_text())
            if comparable(played) != comparable(path.read_text()):
                path.write_text(played)


if __name__ == "__main__":
    main()
