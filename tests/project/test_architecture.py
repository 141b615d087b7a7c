"""The walls of the house: rooms are folders, imports go one way between them, and pure files do no I/O."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from tests.project.rooms import (
    PACKAGES,
    PAGE,
    circle,
    docstring,
    imported,
    modules,
    ours,
    room,
    rooms,
    rooms_below,
    sizes,
    with_map,
)
from tests.support.places import ROOT

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


def test_packages_import_one_way() -> None:
    """writer_hooks -> compactor_daemon -> timeline <- pyspark_phantombase; nothing to tests or benchmarks."""

    def above(module: str) -> set[str]:
        package = module.split(".")[0]
        return {*PACKAGES[PACKAGES.index(package) + 1 :], "tests", "bench", "api"}

    own = (module for module in modules() if module.split(".")[0] in PACKAGES)
    wrong = {(m, name) for m in own for name, _ in imported(m) if name.split(".")[0] in above(m)}
    assert wrong == set()


def test_rooms_import_one_way() -> None:
    """No circle of rooms: what a room imports stands below it."""
    assert circle(rooms(), rooms_below) == []


def test_no_file_imports_in_a_circle() -> None:
    """Any order of imports works."""
    assert circle(sorted(modules()), ours) == []


def test_every_module_says_what_it_is() -> None:
    assert [module for module in modules() if not docstring(module)] == []


def test_the_map_shows_every_package() -> None:
    """`python -m tests.project.rooms` has been run since a folder or its docstring changed."""
    assert PAGE.read_text() == with_map(PAGE.read_text())
    assert [one for one in rooms() if "\n" in docstring(one.replace("/", "."))] == []


def test_pure_modules_do_no_io() -> None:
    """No library that does I/O; from modules that use one, types and constants only."""
    pure = pure_modules()
    assert pure
    assert [module for module in pure if does_io(module)] == []
    active = {module for module in modules() if does_io(module)}
    taken = {(m, *what) for m in pure for what in imported(m) if what[0] in active and not what[1][:1].isupper()}
    assert taken == set()


def test_only_the_storage_room_names_a_storage_of_one_kind() -> None:
    """The rest works through `Storage` and `open_storage`."""
    outside = [module for module in modules() if room(module) != STORAGE_ROOM.replace(".", "/")]
    assert [module for module in outside if "LocalStorage" in {name for _, name in imported(module)}] == []


def test_events_are_logged_in_one_way() -> None:
    """`timeline.event_log.get_logger`: structlog's own prints to the standard output of a user's job."""
    own = {
        module
        for module in modules()
        if re.search(r"structlog\.(get_logger|configure)\(", modules()[module].read_text())
    }
    assert own == set()


def test_the_time_of_day_has_one_source() -> None:
    """A test, or a replay, that sets the clock sets it for all."""
    asks = re.compile(r"\btime\.time(_ns)?\(|datetime\.(now|today|utcnow)\(|date\.today\(")
    assert {name for name, path in modules().items() if asks.search(path.read_text())} == {"timeline.clocks"}


def test_a_class_name_has_one_home() -> None:
    """Two classes of one name are told apart by their imports alone."""
    homes: dict[str, list[str]] = {}
    for module, path in modules().items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_no_test_module_is_imported() -> None:
    """What tests share lies in `tests/support`, or in a module beside them that has no tests."""
    taken = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                taken |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                taken |= {alias.name for alias in node.names}
    found = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "tests").rglob("test_*.py")}
    assert {module for module in found if any(f"{name}.".startswith(f"{module}.") for name in taken)} == set()


def test_the_sleep_of_one_thread_is_replaced() -> None:
    """Heartbeats and servers sleep beside a test. What is meant for it ended one of them, and the test never."""
    replaced = re.compile(r"""setattr\(\s*(time,\s*"sleep"|"time\.sleep")""")
    found = [
        str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*.py") if replaced.search(path.read_text())
    ]
    assert found == ["tests/support/clock.py"]


def test_tests_lie_in_folders_like_those_of_the_code() -> None:
    """Those of a package; tests of one storage have a folder of their own."""
    folders = {path.parent.relative_to(ROOT / "tests") for p in PACKAGES for path in (ROOT / "tests" / p).rglob("*.py")}
    assert {str(folder) for folder in folders if not any((ROOT / folder).glob("*.py"))} == {"timeline/storage/s3"}


def test_sizes_are_measured(record_property: Callable[[str, object], None]) -> None:
    """A run prints them; what may fail is above: a class with two homes, a circle, an import upwards."""
    for what, number, goal in sizes():
        assert number >= 0
        record_property(what, f"{number:,}, goal {goal:,}")


def test_no_loop_asks_for_the_names_of_all_columns() -> None:
    """`schema.names` and `schema_arrow` are made at each call: in a loop over columns they cost the square of their
    number. A set of the names is made before the loop."""
    assert [f"{name}:{line}" for name, path in modules().items() for line in _asked_in_loops(path.read_text())] == []
    assert _asked_in_loops("x = [n for n in a.names if n in b.names]\ny = [t for t in a if n in t.names]") == [1]


def _asked_in_loops(source: str) -> list[int]:
    """The lines on which what a loop repeats asks for the names of a schema that the loop does not change."""
    found = set[int]()
    for loop in (node for node in ast.walk(ast.parse(source)) if isinstance(node, _LOOPS)):
        changed = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        once = loop.iter if isinstance(loop, ast.For) else getattr(loop, "generators", [loop])[0]
        first = set(ast.walk(once.iter)) if isinstance(once, ast.comprehension) else set(ast.walk(once))
        for node in ast.walk(loop):
            asked = node.comparators[0] if isinstance(node, ast.Compare) else node
            if not isinstance(asked, ast.Attribute) or node in first:
                continue
            is_made = asked.attr in (("schema_arrow",) if asked is node else ("names", "column_names"))
            if is_made and not changed & {n.id for n in ast.walk(asked) if isinstance(n, ast.Name)}:
                found.add(asked.lineno)
    return sorted(found)


_LOOPS = (ast.For, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
