"""The walls of the house: rooms are folders, imports go one way between them, and pure files do no I/O."""

from __future__ import annotations

import re

import pytest

from tests.project.rooms import (
    GROUND,
    PACKAGES,
    circle,
    docstring,
    drawing,
    imported,
    modules,
    ours,
    room,
    rooms,
    rooms_below,
)
from tests.support.places import ROOT

FILES_MAX = 16
"""Files of one room, without its `__init__`."""

IO_LIBRARIES = frozenset(
    ("filelock", "kazoo", "os", "pyspark", "random", "shutil", "socket", "subprocess", "tempfile", "threading", "time")
)

STORAGE_ROOM = "timeline.storage"
"""The only room that knows what kinds of storage there are."""


def pure_modules() -> list[str]:
    """Modules that call themselves pure in the first paragraph of their docstring."""
    return sorted(m for m in modules() if re.search(r"\(pure[,)]|; pure\)", docstring(m).split("\n\n")[0]))


def does_io(module: str) -> bool:
    """Whether a module imports a library that does I/O, asks the clock or starts processes."""
    return any(name.split(".")[0] in IO_LIBRARIES for name, _ in imported(module))


def may_import(one: str) -> set[str]:
    """Rooms of its own package that a room's docstring allows it."""
    found = re.search(r"^May import: (.*)\.\Z", docstring(one.replace("/", ".")), re.MULTILINE | re.DOTALL)
    assert found, f"{one}/__init__.py does not end with `May import: ...`"
    words = re.split(r"[,;]\s+", " ".join(found[1].split()))
    package = one.split("/")[0]
    named = [word for word in words if not word.startswith("all of ") and word != "no other room"]
    return {package if word == GROUND else f"{package}/{word}" for word in named}


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_one_way(package: str) -> None:
    """writer_hooks -> compactor_daemon -> timeline <- pyspark_phantombase; nothing to tests or benchmarks."""
    above = {*PACKAGES[PACKAGES.index(package) + 1 :], "tests", "bench", "api"}
    for module in (m for m in modules() if m.split(".")[0] == package):
        wrong = {name for name, _ in imported(module) if name.split(".")[0] in above}
        assert not wrong, f"{module} imports {wrong}"


def test_rooms_import_one_way() -> None:
    """No circle of rooms: what a room imports stands below it."""
    assert circle(rooms(), rooms_below) == []


def test_no_file_imports_in_a_circle() -> None:
    """Any order of imports works."""
    assert circle(sorted(modules()), ours) == []


@pytest.mark.parametrize("one", rooms())
def test_a_room_says_what_it_may_import(one: str) -> None:
    """Its `__init__` docstring says what lives there, and names exactly the rooms that it imports."""
    package = one.split("/")[0]
    assert may_import(one) == {below for below in rooms_below(one) if below.split("/")[0] == package}
    assert len(docstring(one.replace("/", ".")).split("\n\n")) >= 2, f"{one}/__init__.py does not say what lives there"


@pytest.mark.parametrize("one", rooms())
def test_no_room_is_crowded(one: str) -> None:
    files = [path for path in (ROOT / one).glob("*.py") if path.name != "__init__.py"]
    assert len(files) <= FILES_MAX, f"{one} holds {len(files)} files: part it by subject"


@pytest.mark.parametrize("module", sorted(modules()))
def test_every_module_says_what_it_is(module: str) -> None:
    assert docstring(module), f"{module} has no docstring"


@pytest.mark.parametrize("module", pure_modules())
def test_pure_modules_do_no_io(module: str) -> None:
    """No library that does I/O; from modules that use one, types and constants only."""
    assert not does_io(module), f"{module} does I/O itself"
    wrong = {(m, name) for m, name in imported(module) if m in modules() and does_io(m) and not name[:1].isupper()}
    assert not wrong, f"{module} takes {wrong} from modules that do I/O"


@pytest.mark.parametrize("module", sorted(modules()))
def test_only_the_storage_room_names_a_storage_of_one_kind(module: str) -> None:
    """The rest works through `Storage` and `open_storage`."""
    if room(module) != STORAGE_ROOM.replace(".", "/"):
        assert "LocalStorage" not in {name for _, name in imported(module)}


def test_the_drawing_in_the_docs_is_true() -> None:
    """`python -m tests.project.rooms` prints it."""
    page = (ROOT / "docs/internals/architecture.md").read_text()
    assert [package for package in PACKAGES if drawing(package) not in page] == []


def test_events_are_logged_in_one_way() -> None:
    """`timeline.event_log.get_logger`: structlog's own prints to the standard output of a user's job."""
    own = {
        module
        for module in modules()
        if re.search(r"structlog\.(get_logger|configure)\(", modules()[module].read_text())
    }
    assert own == set()
