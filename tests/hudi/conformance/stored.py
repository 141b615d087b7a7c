"""The stored tables of the matrix, and the recorded answers of the readers."""

from __future__ import annotations

import json
import tarfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from tests.hudi.conformance.verdict import Cell
from tests.support.places import ROOT

TABLES = ROOT / "tests/hudi/conformance/tables"
RESULTS = ROOT / "tests/hudi/conformance/results.json"

Answers: TypeAlias = dict[str, dict[str, dict[str, Cell]]]
"""Of one table: by reader, kind of query, and shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One table and what the readers answered for it. `made_by`, `forged`: see `History`."""

    made_by: str
    forged: str
    answers: Answers


Results: TypeAlias = dict[str, dict[str, Asked]]
"""By version and state."""


def unpack(version: int, folder: Path) -> dict[str, Path]:
    """The tables of a version: by state the folder with `table` and `history.json`."""
    with tarfile.open(TABLES / f"v{version}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return {found.name.replace("_", " "): found for found in sorted(folder.iterdir())}


def pack(folder: Path, version: int) -> None:
    """Keeps the tables of a version, without Hadoop's side files."""

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
        return None if entry.name.endswith(".crc") else entry

    TABLES.mkdir(exist_ok=True)
    with tarfile.open(TABLES / f"v{version}.tar.xz", "w:xz") as archive:
        for found in sorted(folder.iterdir()):
            archive.add(found, arcname=found.name, filter=wanted)


def load_results() -> Results:
    """What was recorded."""
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return {version: {state: _asked(one) for state, one in states.items()} for version, states in saved.items()}


def _asked(saved: dict[str, Any]) -> Asked:
    answers = {
        reader: {kind: {shape: Cell.of(cell) for shape, cell in shapes.items()} for kind, shapes in kinds.items()}
        for reader, kinds in saved["answers"].items()
    }
    return Asked(**{**saved, "answers": answers})


def save_results(results: Results) -> None:
    """As JSON, a line for each table, without what is so by default."""
    parts = (f'"{version}": {{\n{_lines(states)}\n}}' for version, states in results.items())
    RESULTS.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _lines(states: dict[str, Asked]) -> str:
    return ",\n".join(f' "{state}": {json.dumps(one, default=_plain)}' for state, one in states.items())


def _plain(one: Asked | Cell) -> dict[str, Any]:
    if isinstance(one, Asked):
        return {field.name: getattr(one, field.name) for field in fields(one)}
    cell = {name: value for name, value in asdict(one).items() if value}
    if one.miss is not None:
        cell["miss"] = {name: value for name, value in cell["miss"].items() if value or name == "expected"}
    return cell
