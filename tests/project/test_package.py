"""The package as users get it: one import, found beside a user's own modules, and whole in the wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib import metadata
from inspect import isfunction, signature
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pyarrow as pa
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from setuptools import find_packages  # type: ignore[import-untyped]
from typer.testing import CliRunner

import phantombase
from phantombase import PausedError, UsageError
from phantombase.compactor_daemon.cli import main as compactor
from phantombase.timeline import errors
from phantombase.timeline.cli import main as timeline
from tests.project.every_command import every_command
from tests.project.notebook_page import page
from tests.project.rooms import modules
from tests.support.golden_tables import unzip_golden
from tests.support.places import ROOT


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in phantombase.__all__ if not hasattr(phantombase, name)] == []
    assert set(dir(phantombase)) == set(phantombase.__all__)


def test_every_error_is_a_public_name() -> None:
    known = {n for n, e in vars(errors).items() if isinstance(e, type) and issubclass(e, errors.PhantombaseError)}
    assert known <= set(phantombase.__all__)


def test_what_type_checkers_see_is_what_there_is() -> None:
    """The names below TYPE_CHECKING are those that `__getattr__` knows."""
    text = (ROOT / "phantombase/__init__.py").read_text()
    shown = {line.rpartition(" as ")[2] for line in text.splitlines() if line.startswith("    from .")}
    assert shown == set(phantombase.__all__) - {"__version__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'compaction'"):
        phantombase.compaction  # noqa: B018


def test_importing_it_loads_nothing_heavy() -> None:
    """Names are loaded when they are asked for."""
    code = "import phantombase, sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"pyarrow", "pyspark", "kazoo", "polars", "typer"} & set(json.loads(done.stdout))


JOB = """
import timeline, table, compactor_daemon
import pyarrow as pa
from phantombase import Executor, ExecuteOptions, Table, compact, read_table, schedule, writer

assert timeline.MINE and table.MINE and compactor_daemon.MINE
path = "rides"
for ts in (1, 2):
    rows = pa.table({"id": ["a", "b"], "ts": [ts, ts]})
    writer(rows).table("rides").key("id").ordering("ts").buckets(1).upsert(path)
(requested,) = schedule(path, sole_writer=True).requested
done = compact(path, execute=ExecuteOptions(executor=Executor.LOCAL)).done
assert [c.instant for c in done] == [requested.instant]
print(sorted(read_table(Table.open(path)).select(["id", "ts"]).to_pylist(), key=lambda r: r["id"]))
"""


def run_job(python: str, folder: Path, words: Sequence[str] = ("job.py",), **environment: str) -> list[str]:
    """The lines that the job prints, run beside modules of the user's own that are called like ours."""
    for name in ("timeline", "table", "compactor_daemon", "writer_hooks"):
        (folder / f"{name}.py").write_text("MINE = True\n")
    (folder / "job.py").write_text(JOB)
    environment = {**os.environ, **environment}
    run = [python, *words]
    done = subprocess.run(run, capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


ROWS = "[{'id': 'a', 'ts': 2}, {'id': 'b', 'ts': 2}]"


def test_commands_start_without_pandas() -> None:
    """A quarter of a second each, which pyarrow takes when a module of a command makes a scalar as it is imported."""
    modules = {one.module for commands in (timeline.COMMANDS, compactor.COMMANDS) for one in commands.values()}
    script = f"import sys, {', '.join(sorted(modules))}; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


def test_commands_work_without_pandas(tmp_path: Path) -> None:
    """pyarrow would import it with the first value of a column: a tenth of a small compaction."""
    kept = table = str(tmp_path / "kept")
    for program, words in ("compactor_daemon", ["demo", "--keep", kept]), ("timeline", ["read", table, "--limit=1"]):
        ends = "import atexit, sys; atexit.register(lambda: print('pandas' in sys.modules))"
        script = f"{ends}; from phantombase.{program}.cli.main import main; main()"
        run = [sys.executable, "-c", script, *words]
        done = subprocess.run(run, cwd=ROOT, check=True, capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == "False", program


_NEVER = frozenset(
    ("pandas", "polars", "duckdb", "jinja2", "uvicorn", "obstore", "kazoo", "pyspark", "pydantic", "structlog")
)
"""What none of these needs."""
_ROWS = frozenset(("pyarrow", "numpy", "phantombase.timeline.merge", "phantombase.timeline.read.table_read"))
"""What only needs it that reads rows, or looks into files."""
_DOES = frozenset(
    (
        "phantombase.writer_hooks",
        "phantombase.compactor_daemon.daemon",
        "phantombase.compactor_daemon.attempt.attempt",
        "phantombase.compactor_daemon.fleet.catalog",
        "phantombase.compactor_daemon.attempt.publish",
        "phantombase.compactor_daemon.cleaning.clean",
        "phantombase.timeline.metadata_table.update",
    )
)
"""What changes a table, or finds many."""
_STARTS: dict[str, tuple[str, str, frozenset[str]]] = {
    "timeline show": ("timeline", "v9_pending", _ROWS | _DOES),
    "timeline slices": ("timeline", "v9_pending", _ROWS | _DOES),
    "timeline read": ("timeline", "v9_pending", _DOES),
    "compactor-daemon compact": ("compactor_daemon", "v9_plain", _ROWS | _DOES),
    "compactor-daemon status --brief": ("compactor_daemon", "v9_pending", _ROWS | _DOES),
    "compactor-daemon status": ("compactor_daemon", "v9_pending", _DOES),
    "import": ("", "v9_plain", frozenset()),
}
"""By command: its program, the table, and what it does not load besides `_NEVER`."""


@pytest.mark.parametrize("what", _STARTS)
def test_a_command_starts_without_what_it_does_not_need(what: str, tmp_path: Path) -> None:
    """Each of these would take a tenth of the time or more."""
    program, golden, spared = _STARTS[what]
    call = (
        f"from phantombase.{program}.cli.main import main; main()"
        if program
        else "from phantombase import read, writer"
    )
    ends = "import atexit, sys; atexit.register(lambda: print('\\n', *sys.modules))"
    words = [*what.split()[1:], str(unzip_golden(golden, tmp_path))]
    run = [sys.executable, "-c", f"{ends}; {call}", *words]
    done = subprocess.run(run, cwd=ROOT, check=True, capture_output=True, text=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "phantombase.timeline.table.table" in loaded
    assert not [one for one in loaded if f"{one}.".startswith(tuple(f"{name}." for name in _NEVER | spared))]


@pytest.mark.parametrize(
    ("main", "words"),
    [
        ("compactor_daemon", ()),
        ("compactor_daemon", ("compact",)),
        ("compactor_daemon", ("savepoint", "create")),
        ("timeline", ()),
        ("timeline", ("show",)),
    ],
)
def test_help_imports_no_command(main: str, words: tuple[str, ...]) -> None:
    """It takes a tenth of a second of processor time; pyarrow alone would take two."""
    script = (
        f"import sys; from phantombase.{main}.cli.main import main\n"
        f"sys.argv[1:] = [*{words!r}, '--help']\n"
        "try: main()\n"
        "finally: assert not {'pyarrow', 'numpy', 'structlog', 'kazoo'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{main.replace('_', '-')} {' '.join(words)}".strip() in done.stdout
    if words:
        return
    assert "Commands" not in done.stdout  # each is below a title
    names = (timeline if main == "timeline" else compactor).COMMANDS
    assert all(re.search(rf"\n  {name} +\w", done.stdout) for name in names)  # and what it does


def test_the_version_is_shown() -> None:
    for main in (compactor, timeline):
        done = CliRunner().invoke(main.app, ["--version"])
        decoders = r"\(decodes Avro by (numpy|phantombase-native \S+), Parquet by (pyarrow|phantombase-native \S+)\)"
        found = rf"phantombase {metadata.version('phantombase')} {decoders}\n"
        assert done.exit_code == 0
        assert re.fullmatch(found, done.stdout)


def test_modules_of_a_user_may_be_called_like_ours(tmp_path: Path) -> None:
    assert run_job(sys.executable, tmp_path)[-1] == ROWS


WITHOUT_SPARK = """
import sys
from importlib.machinery import PathFinder


class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        left_out = name.partition(".")[0] in ("pyspark", "py4j", "pandas")
        return None if left_out else super().find_spec(name, path, target)


sys.meta_path = [Finder if one is PathFinder else one for one in sys.meta_path]
"""
"""A `sitecustomize` that does not find what `pyspark[sql]` brings."""

ASKS_FOR_SPARK = """
import contextlib, io, json, runpy, sys
from importlib import import_module
from pathlib import Path
from phantombase import PausedError, UsageError, spark_read
from phantombase.compactor_daemon.cli.main import main
from phantombase.compactor_daemon.fleet.zookeeper_server import start_server

for module in json.loads(sys.argv[1]):
    import_module(module)
runpy.run_path("job.py")
found = []
for words in json.loads(sys.argv[2]):
    sys.argv[1:] = words
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            found.append((main() or 0, said.getvalue()))
        except SystemExit as end:
            found.append((end.code or 0, said.getvalue()))
for asks in (lambda: spark_read(None, "rides"), lambda: start_server(Path("zk"), port=1, settings={})):
    try:
        asks()
    except UsageError as error:
        found.append((2, str(error)))
print(json.dumps(found))
"""
"""All in one process, whose start takes longer than what it does."""


def test_all_but_spark_works_without_pyspark(tmp_path: Path) -> None:
    """It is an extra. Where Spark is asked for, one line says what to install."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_SPARK)
    modules = {one.module for commands in (timeline.COMMANDS, compactor.COMMANDS) for one in commands.values()}
    compact = ("compact", "rides", "--schedule", "--sole-writer")
    words = (
        ("demo", "--keep", "kept"),
        compact,
        (*compact, "--executor=spark"),
        (*compact, "--master=local[1]"),
        ("run", "kept", "--executor=spark"),
    )
    asked = ("-c", ASKS_FOR_SPARK, json.dumps(sorted(modules)), json.dumps(words))
    *_, rows, answer = run_job(sys.executable, tmp_path, asked, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert rows == ROWS
    demo, compacts, *asking = json.loads(answer)
    assert (demo[0], compacts[0], len(asking)) == (0, 0, 5)
    for code, said in asking:
        assert code == 2, said
        assert "needs the package pyspark" in said
        assert len(said.splitlines()) == 1
    for _, said in asking[:3]:
        assert "Spark needs the package pyspark" in said
        assert "pip install 'phantombase[spark]' adds it:" in said


@pytest.mark.deep
def test_an_environment_without_the_extra_compacts(tmp_path: Path) -> None:
    """As `pip install .` makes it."""
    venv.create(tmp_path / "env", with_pip=True, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), str(sources(tmp_path))]
    subprocess.run(pip, check=True)
    assert subprocess.run([str(python), "-c", "import pyspark"], check=False, capture_output=True).returncode == 1
    assert run_job(str(python), tmp_path, PYTHONPATH="")[-1] == ROWS


@pytest.mark.parametrize("name", ["timeline", "compactor_daemon", "writer_hooks"])
def test_a_package_has_one_name(name: str) -> None:
    """Under two names an error would not be caught, and two locks of one process would both be held."""
    code = f"import {name}.errors" if name == "timeline" else f"import {name}.options"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert f"ImportError: import phantombase.{name}, not {name}" in done.stderr


def test_a_wheel_would_hold_every_package_and_its_files() -> None:
    """By what setuptools is told, without a build."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = set(find_packages(str(ROOT), include=told["packages"]["find"]["include"]))
    paths = [path.relative_to(ROOT) for path in modules().values()]
    named = [
        path if path.parts[0] in ("phantombase", "pyspark_phantombase") else "phantombase" / path for path in paths
    ]
    assert {".".join(path.parent.parts) for path in named} <= found
    left_out = []
    for package in found:
        for file in (ROOT / package.replace(".", "/")).iterdir():
            patterns = told["package-data"].get(package, [])
            if file.is_file() and file.suffix not in (".py", ".pyc") and not any(map(file.match, patterns)):
                left_out.append(str(file))
    assert left_out == []


def sources(folder: Path) -> Path:
    """A copy of what is built, as the building leaves files beside its sources."""
    copy = folder / "sources"
    copy.mkdir()
    for name in ("phantombase", "timeline", "compactor_daemon", "writer_hooks", "pyspark_phantombase"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


def test_the_wheel_holds_every_module_and_runs_the_demo(tmp_path: Path) -> None:
    """Built from the sources, installed without them beside it."""
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path),
        str(sources(tmp_path)),
    ]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("phantombase-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    paths = [path.relative_to(ROOT) for path in modules().values()]
    # Spark finds its source only as a module of its own, by the beginning of its name.
    wanted = {str(path) if path.parts[0] == "pyspark_phantombase" else f"phantombase/{path}" for path in paths}
    assert wanted | {"phantombase/__init__.py", "phantombase/api.py", "phantombase/py.typed"} <= held
    venv.create(tmp_path / "env", system_site_packages=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    # What it depends on comes from the environment of the tests; the path of the sources does not.
    here = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "dependencies.pth").write_text(f"{here}\n")
    code = "import phantombase; print(phantombase.__file__)"
    where = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert where.startswith(str(site))
    assert run_job(str(python), tmp_path, PYTHONPATH="")[-1] == ROWS
    command = [str(python), "-m", "phantombase.compactor_daemon.cli.main", "demo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["snapshot_unchanged"] is True


def test_every_declared_package_has_one_version_in_the_constraints() -> None:
    """So a clone is set up with what was tested."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    named = {canonicalize_name(Requirement(one).name) for one in declared}
    pinned = [canonicalize_name(line.split("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()]
    assert named - set(pinned) == set()
    assert len(set(pinned)) == len(pinned)


_NO_CALLS = {"run", "claims", "config", "demo", "release", "repair", "show", "slices", "plan", "serve", "pins"}
"""Commands that show what values show, or serve; `release` and `repair` are for people at a broken table."""


def test_what_a_command_does_is_a_call() -> None:
    every = {name for app in (compactor.COMMANDS, timeline.COMMANDS) for name in app}
    commands = every - _NO_CALLS
    assert {name for name in commands if not hasattr(phantombase, name.replace("-", "_"))} == {"repair-times"}


_CALLS = {"savepoint create": "savepoint", "savepoint list": "savepoints", "savepoint delete": "delete_savepoint"}
_CLUSTER_OF_MACHINES = "a call is about one table, in this process: commands ask the fleet"
_AS_HUDI_NAMES_IT = "each name of Hudi is a field of the options: docs/reference/hudi-names.md"
_OF_TABLE = "a call takes a Table, whose clock is `Table.open(path).with_clock(...)`"
_IN_OPTIONS = "a field of the options of its service, which the call of that service takes"
_ONLY_COMMANDS = {
    "tables": "a call is about one table",
    "--json": "results are values",
    "--log-level": "logging is Python's: the logger `phantombase`",
    "--verbose": "as --log-level",
    "--config": "a file is read by `writer(...).config`; options are objects",
    "--conf": _AS_HUDI_NAMES_IT,
    "--props": _AS_HUDI_NAMES_IT,
    "--timezone": _OF_TABLE,
    "--clock-skew": _OF_TABLE,
    **dict.fromkeys(("--root", "--catalog", "--include", "--exclude"), _CLUSTER_OF_MACHINES),
    "--zookeeper": _CLUSTER_OF_MACHINES,
    "--watch": "a loop",
    "--overwrite": "of --output",
    "--drop-metadata-table": "WriteOptions.drop_metadata_table",
    "compact --schedule": "`schedule`, or `maintain`",
    "compact --sole-writer": "of --schedule",
    "compact --dry-run": "`schedule(dry_run=True)`, and `status(...).pending`",
    "pause --for": "until",
    "pause --dry-run": "it would only say that it pauses",
    "resume --dry-run": "`status(...).paused` has the pauses",
    "history --since": "the result is an Arrow table, which is filtered",
    "history --kind": "as --since",
    "history --output": "as --since",
    "read --output": "`to_arrow`, `to_polars`, ... write files",
    "cluster --cancel": "`cancel`, for one instant",
    "metadata --create": "`build_metadata`",
    "metadata --rebuild": "`build_metadata(rebuild=True)`",
    **dict.fromkeys(
        (f"metadata --{one}" for one in ("indexes", "pending-wait", "record-index-groups")), "BuildOptions"
    ),
    "metadata --memory-limit": "BuildOptions",
    "orphans --dry-run": "the default; `remove=True` removes",
}
"""Options of commands that are no parameter of the call and no field of what it takes, with the reason."""


def _names_of(hint: Any, seen: frozenset[Any] = frozenset()) -> set[str]:
    """The fields of the dataclasses in a hint, and of theirs."""
    names = set()
    for kind in {hint, *get_args(hint)} - seen:
        if is_dataclass(kind):
            hints = get_type_hints(kind)
            for one in fields(kind):
                names |= {one.name, one.metadata.get("flag") or one.name, one.name.removesuffix("_s")}
                names |= _names_of(hints[one.name], seen | {kind})
    return {name.replace("_", "-") for name in names}


def test_an_option_of_a_command_is_one_of_its_call() -> None:
    """By name; `_ONLY_COMMANDS` says where else it is, or why it is not."""
    unused, missing = set(_ONLY_COMMANDS), []
    for _, words, command in every_command():
        name = " ".join(words)
        call = getattr(phantombase, _CALLS.get(name, words[0].replace("-", "_")), None)
        if words[0] in _NO_CALLS or call is None:
            continue
        hints = get_type_hints(call)
        known = {one.replace("_", "-") for one in signature(call).parameters}
        known |= {one for of, hint in hints.items() if of != "return" for one in _names_of(hint)}
        known |= {"storage-option", "path", "all" if "table" in known else ""}
        for param in command.params:
            option = param.opts[0]
            own = {word.lstrip("-") for word in param.opts} | {(param.name or "").replace("_", "-")}
            excused = {option, f"{name} {option}"} & set(_ONLY_COMMANDS)
            service = name == "maintain" and option.startswith(_OPTIONS_OF_SERVICES)
            zookeeper = option.startswith("--zookeeper")
            unused -= excused
            if not (own & known or excused or service or zookeeper):
                missing.append(f"{name} {option}")
    assert missing == []
    assert unused == set()


_OPTIONS_OF_SERVICES = ("--metadata-", "--cluster-", "--clean-", "--orphans-", "--sync-", "--archive-")
_NOT_PUBLIC = frozenset(("StorageOptions", "ServiceOptions", "RunService"))
"""A dictionary is given; what `maintain` takes is the options themselves; what the daemon calls."""


def test_what_is_taken_and_returned_can_be_imported() -> None:
    public = {getattr(phantombase, name) for name in phantombase.__all__ if name != "__version__"}
    left = set()
    for one in public - {phantombase.Table}:
        made = is_dataclass(one) and isinstance(one, type)
        of = [one] if made or isfunction(one) else []
        if isinstance(one, type):
            every = (method.fget if isinstance(method, property) else method for method in vars(one).values())
            of += [method for method in every if isfunction(method) and not method.__name__.startswith("_")]
        for each in of:
            with suppress(NameError):  # a type of a library that is imported late
                kinds = [*get_type_hints(each).values()]
                while kinds:
                    kind = kinds.pop()
                    kinds += get_args(kind)
                    ours = isinstance(kind, type) and kind.__module__.startswith("phantombase.")
                    if ours and kind not in public and not kind.__module__.endswith("filter.tree"):
                        left.add(kind.__name__)
    assert left == _NOT_PUBLIC


def test_a_session_of_calls(tmp_path: Path) -> None:
    """Paths of pathlib, values that show themselves shortly, and as tables in a notebook; no lock, no change."""
    path, rows = tmp_path / "rides", pa.table({"id": ["a", "b", "c"], "ts": [1, 2, 3]})
    writes = phantombase.writer(rows).table("rides").key("id").ordering("ts")
    done = [writes.upsert(path), writes.upsert(path)]
    found = phantombase.read(path)
    assert len(found) == found.count() == 3
    assert sorted(row["id"] for row in found) == ["a", "b", "c"]
    assert len(phantombase.read(path, query="incremental", begin=done[0].instant, limit=2)) == 2
    with pytest.raises(UsageError, match="one of lock= and sole_writer=True"):
        phantombase.clean(path)
    phantombase.pause(path, "an audit", services=["clean"])
    with pytest.raises(PausedError, match="an audit"):
        phantombase.clean(path, sole_writer=True)
    assert len(phantombase.resume(path)) == 1
    kept = phantombase.savepoint(path, comment="before", sole_writer=True)
    assert phantombase.savepoints(path) == (kept,)
    phantombase.delete_savepoint(path, kept.instant, sole_writer=True)
    planned = phantombase.schedule(path, sole_writer=True)
    assert planned.instant is not None
    now = phantombase.status(path)
    assert now.pending
    assert now.verdict
    assert now.outlook
    assert phantombase.status(path, brief=True).outlook is None
    assert phantombase.unschedule(path, planned.instant, sole_writer=True).instant == planned.instant
    again = phantombase.schedule(path, sole_writer=True)
    assert again.instant is not None
    assert phantombase.cancel(path, again.instant).attempts == ()
    compacted = phantombase.compact(path)
    audits, checked = phantombase.audit(path), phantombase.check(path)
    assert [one.good for one in audits] == [True]
    assert phantombase.validate(path).good
    assert checked.verdict.health is phantombase.Health.WELL
    results: list[object] = [*done, found, again, compacted, audits[0], checked, phantombase.validate(path)]
    services = (phantombase.archive, phantombase.clean, phantombase.cluster, phantombase.metadata)
    results += [service(path, dry_run=True) for service in services]
    results += [phantombase.orphans(path), phantombase.restore(path, to=done[0].instant, dry_run=True)]
    results += [phantombase.rollback(path, writes.upsert(path).instant, sole_writer=True), writes]
    public = {name: one for name in phantombase.__all__ if is_dataclass(one := getattr(phantombase, name))}
    others = {name for name, one in public.items() if not name.endswith("Options") and not hasattr(one, "_repr_html_")}
    assert others == {"RunningSpark", "Table"}
    for one in results:
        assert re.search(r"object at 0x|hoodie\.archivelog|\n", repr(one)) is None
        assert len(repr(one)) < 400, one
        assert "<table>" in one._repr_html_(), one  # type: ignore[attr-defined]
    shown = page(results)
    assert re.search(r">None<|\.\d{7}|OutputOptions|claims_problem", shown) is None  # only fields that hold something
    secret = phantombase.writer(rows, storage_options={"aws_secret_access_key": "hidden"})
    assert "hidden" not in secret._repr_html_() + repr(secret)
    assert "\n" not in repr(secret)


def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all that is used later, from another folder."""
    monkeypatch.chdir(tmp_path)
    rows, path = pa.table({"id": ["a"], "ts": [1]}), Path("rides")
    for _ in range(2):
        phantombase.writer(rows).table("rides").key("id").ordering("ts").upsert(path)
    phantombase.schedule(path, sole_writer=True)
    found, work = phantombase.read(path), phantombase.plan_compaction(path)
    compaction = phantombase.AsyncCompaction(path, phantombase.LocalRunner(threads=1))
    sink = phantombase.writer().foreach_batch(path)
    monkeypatch.chdir("/")
    assert work is not None
    assert [task.execute().rows for task in work.tasks] == [1]
    sink(rows, 0)
    with compaction:
        assert len(found) == 1
    assert compaction.errors == ()


@pytest.mark.deep
def test_the_site_is_built_without_a_network(tmp_path: Path) -> None:
    """With a page for each public name; a link or an anchor that leads nowhere ends it."""
    pytest.importorskip("mkdocs", reason="the extra `site` is not installed")
    nowhere = {f"{scheme}_proxy": "http://127.0.0.1:1" for scheme in ("http", "https")}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    env = {**os.environ, **nowhere, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    pages = {path.parent.name for path in (tmp_path / "site/api").glob("*/index.html")}
    assert pages == {name for name in phantombase.__all__ if name != "__version__"}
    assert "Removes old file slices" in (tmp_path / "site/search/search_index.json").read_text()
