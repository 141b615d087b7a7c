"""The rooms of the house as the code has them: folders, what each imports, and on which floor it stands.

python -m tests.project.rooms       writes the map into docs/internals/architecture.md, and prints rooms and sizes"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from tests.support.places import ROOT

PACKAGES = ("timeline", "compactor_daemon", "writer_hooks", "pyspark_phantombase")
"""Each package may import those before it, and itself."""

GROUND = "ground"
"""What the files beside the sub-packages of a package are called."""


@cache
def modules() -> dict[str, Path]:
    """Every module of the packages by its dotted name, `timeline.format.log_block` say."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {_dotted(path).removesuffix(".__init__"): path for path in found}


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@cache
def imported(module: str) -> frozenset[tuple[str, str]]:
    """What a file imports, wherever in the file: pairs of a module and a name of it ('' for the module itself)."""
    path, found = modules()[module], set[tuple[str, str]]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join((*_package_above(path, node.level), *filter(None, (node.module,))))
            name = base.removeprefix("phantombase.")
            for alias in node.names:
                one = f"{name}.{alias.name}"
                found.add((one, "") if one in modules() else (name, alias.name))
    return frozenset(found)


def _package_above(path: Path, level: int) -> tuple[str, ...]:
    folders = path.relative_to(ROOT).parts[:-1]
    return folders[: len(folders) - level + 1] if level else ()


def docstring(module: str) -> str:
    """The docstring of a module; empty where it has none."""
    return ast.get_docstring(ast.parse(modules()[module].read_text())) or ""


def room(module: str) -> str:
    """The folder of a module."""
    return str(modules()[module].parent.relative_to(ROOT))


def rooms() -> list[str]:
    """All folders that hold modules."""
    return sorted({room(module) for module in modules()})


def ours(module: str) -> set[str]:
    """Modules of the packages that a module imports."""
    return {name for name, _ in imported(module) if name in modules()}


@cache
def rooms_below(one: str) -> frozenset[str]:
    """Other rooms that the files of a room import."""
    return frozenset(room(name) for module in modules() if room(module) == one for name in ours(module)) - {one}


def circle(starts: Iterable[str], below: Callable[[str], Iterable[str]]) -> list[str]:
    """A circle that can be reached from the starts; empty where there is none."""
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> list[str]:
        if name in above:
            return [*above[above.index(name) :], name]
        if name not in done:
            for other in sorted(below(name)):
                if found := visit(other, (*above, name)):
                    return found
            done.add(name)
        return []

    return next((found for start in starts if (found := visit(start, ()))), [])


PAGE = ROOT / "docs/internals/architecture.md"
_BEGIN, _END = "<!-- made by tests.project.rooms -->", "<!-- end -->"


def with_map(page: str) -> str:
    """A page with the map in its place: every folder of the packages, and what its `__init__` says."""
    before, _, rest = page.partition(_BEGIN)
    lines = [f"| `{one}` | {docstring(one.replace('/', '.'))} |" for one in rooms()]
    return "\n".join([before + _BEGIN, "| package | what |", "| --- | --- |", *lines, _END]) + rest.partition(_END)[2]


@cache
def _floor(package: str, one: str) -> int:
    below = (other for other in rooms_below(one) if other.split("/")[0] == package)
    return 1 + max((_floor(package, other) for other in below), default=0)


def drawing(package: str) -> str:
    """The rooms of a package by floor, the top floor first: a room stands above all that it imports."""
    inside = [one for one in rooms() if one.split("/")[0] == package]
    floors = {one: _floor(package, one) for one in inside}
    lines = [f"{package}/"]
    for number in range(max(floors.values()), 0, -1):
        names = [one.removeprefix(package).lstrip("/") or GROUND for one in inside if floors[one] == number]
        lines.append(f"  {number:2}  {', '.join(names)}")
    return "\n".join(lines)


def sizes() -> list[tuple[str, int, int]]:
    """What is measured of the house, its number today, and the goal: at most that many."""
    files = {module: path for module, path in modules().items() if path.name != "__init__.py"}
    lines = {module: len(path.read_text().splitlines()) for module, path in files.items()}
    users = Counter(name for module in files for name in ours(module) - {module})
    in_rooms = Counter(room(module) for module in files)
    floors = max(_floor("timeline", one) for one in rooms() if one.split("/")[0] == "timeline")
    return [
        ("files", len(files), 320),
        ("packages", len(in_rooms), 42),
        ("lines", sum(lines.values()), 61_500),
        ("files used by one other file", sum(users[module] == 1 for module in files), 40),
        ("packages of 1 to 3 files", sum(count <= 3 for count in in_rooms.values()), 4),
        ("files of over 400 lines", sum(count > 400 for count in lines.values()), 12),
        ("files of over 500 lines", sum(count > 500 for count in lines.values()), 0),
        ("levels of imports in timeline", floors, 9),
    ]


if __name__ == "__main__":
    PAGE.write_text(with_map(PAGE.read_text()))
    print("\n\n".join(drawing(package) for package in reversed(PACKAGES)))
    print("\n".join(f"{number:7,} (goal {goal:,}) {what}" for what, number, goal in sizes()))
