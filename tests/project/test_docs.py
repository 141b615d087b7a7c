"""The docs stay true: what they show is run, what they list exists, what they link to is there."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from phantombase import Writer
from phantombase.timeline import errors
from phantombase.timeline.storage.object_url import hadoop_names
from phantombase.timeline.storage.storage_options import CONNECTION, SETTINGS
from phantombase.timeline.table.table import Table
from phantombase.timeline.terminal.option_group import written
from pyspark_phantombase import register
from tests.project import docs_site
from tests.project.doc_pages import ALL_PAGES, PAGES, SHOWN_ZOOKEEPER, Story, comparable
from tests.project.every_command import APPS, every_page
from tests.project.option_reference import HELP, NAMES_PAGE, PAGE, names_reference, pages, reference
from tests.project.rooms import ours
from tests.support.golden_tables import unzip_golden
from tests.support.places import ROOT
from tests.support.servers.axe import npm_package
from tests.support.servers.debian import NotInstalledError
from tests.support.servers.zookeeper_server import ZooKeeper, wait_until

_FOLDERS = "timeline|compactor_daemon|writer_hooks|pyspark_phantombase|phantombase|tests|deploy|bench"
_FILE = re.compile(rf"`((?:{_FOLDERS})/[\w/.-]+\.\w+)`")
_CITED_PAGE = re.compile(r"\bdocs/[\w/-]+\.md")
_CITED_SECTION = re.compile(r"hudi-format(?:\.md)?(?: section)? (\d+(?:\.\d+)?)")
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


_OF_PYARROW = (
    "reportMissingTypeStubs",
    "reportUnknownMemberType",
    "reportUnknownVariableType",
    "reportUnknownArgumentType",
)
TREE = {n for n, e in vars(errors).items() if isinstance(e, type) and issubclass(e, errors.PhantombaseError)}


def text(page: str) -> str:
    """A page of the docs."""
    return (ROOT / page).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_happens(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Every command and snippet runs, and commands print what the page shows (`python -m tests.project.doc_pages`)."""
    zookeeper: ZooKeeper | None = request.getfixturevalue("zookeeper") if SHOWN_ZOOKEEPER in text(page) else None
    played = Story(tmp_path, zookeeper.hosts if zookeeper else None).play(text(page))
    assert comparable(played) == comparable(text(page))


def test_links_lead_somewhere() -> None:
    """Every link to a page, and to a heading."""
    links = [(page, *link) for page in ALL_PAGES for link in _LINK.findall(text(page))]
    assert links
    assert [link for link in links if not leads_somewhere(*link)] == []


def leads_somewhere(page: str, target: str, anchor: str) -> bool:
    """Whether the file of a link is there, and has the heading that it names."""
    path = (ROOT / page).parent / target if target else ROOT / page
    return path.exists() and (not anchor or anchor in headings(path.read_text()))


def headings(page: str) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    names = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") for name in names}


def test_the_reference_of_options_is_that_of_the_code() -> None:
    """`python -m tests.project.option_reference` has been run since an option changed."""
    assert PAGE.read_text() == reference()
    assert NAMES_PAGE.read_text() == names_reference()


def test_each_public_name_has_an_example_that_runs(tmp_path: Path) -> None:
    """That of its page in the site; the story with Spark runs those that need it."""
    scope: dict[str, Any] = {}
    codes = [code for code in docs_site.stories().values() if not docs_site.needs_spark(code)]
    with chdir(tmp_path), redirect_stdout(io.StringIO()):
        for code in [*map(docs_site.with_imports, codes), *map(docs_site.example, filter(docs_site.is_error, TREE))]:
            exec(code, scope)
    assert [name for name in docs_site.NAMES if not docs_site.example(name)] == []


@pytest.mark.deep
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_examples_are_typed(checker: str, tmp_path: Path) -> None:
    """Those of names, and the files of `deploy/examples`, as a user's type checker sees them. Of pyright without the
    rules of `strict` that pyarrow, which has no types, breaks in each line."""
    given = "import pyarrow as pa\nfrom pyspark.sql import SparkSession\n"
    given += "trips = pa.table({})\nspark = SparkSession.builder.getOrCreate()\n"
    for number, code in enumerate(docs_site.stories().values()):
        (tmp_path / f"story_{number}.py").write_text(given + docs_site.with_imports(code))
    shutil.copytree(ROOT / "deploy/examples", tmp_path, dirs_exist_ok=True)
    files, node = sorted(map(str, tmp_path.glob("*.py"))), shutil.which("node")
    strict = ("--strict", f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={ROOT / '.mypy_cache'}")
    command = [sys.executable, "-m", "mypy", *strict, *files]
    if checker == "pyright":
        try:
            command = [node or "node", str(npm_package("pyright", "1.1.411") / "index.js"), "-p", str(tmp_path)]
        except NotInstalledError as error:
            pytest.skip(f"NO PYRIGHT HERE: examples are checked by mypy alone: {error}")
        settings = {
            "extraPaths": [str(ROOT), str(tmp_path)],
            "typeCheckingMode": "strict",
            **dict.fromkeys(_OF_PYARROW, False),
        }
        (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
        command += ["--pythonpath", sys.executable]
    environment = {**os.environ, "MYPYPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.spark
@pytest.mark.deep
def test_what_needs_spark_runs(spark: Any, tmp_path: Path) -> None:
    """The blocks of pages, and the examples of names."""
    register(spark)
    for page in ("docs/guides/reading.md", "docs/guides/writing.md"):
        folder = tmp_path / Path(page).stem
        folder.mkdir()
        trips = spark.createDataFrame([("a", "north", 9, 1.5)], "id string, zone string, ts long, fare double")
        trips.write.parquet(str(folder / "source"))
        stream = spark.readStream.schema(trips.schema).parquet(str(folder / "source"))
        scope = {"spark": spark, "trips": trips, "cancelled": trips.limit(0), "stream": stream}
        there = partial(
            re.sub, r"(?<=[\"'])(?=lake/|copy|checkpoint(?!Location))", f"{folder}/"
        )  # its workers are elsewhere
        Story(folder, spark=spark, scope={"__name__": "tests.page", **scope}).play(there(text(page)))
    for code in filter(docs_site.needs_spark, docs_site.stories().values()):
        exec(docs_site.with_imports(there(code)), {**scope})


def test_every_error_is_described() -> None:
    """With its place in the tree."""
    described = set(re.findall(r"^\| `(\w+)`", text("docs/reference/errors.md"), re.MULTILINE))
    assert described == TREE


def test_every_page_is_on_the_map() -> None:
    """README names each page, and fits on a few screens."""
    linked = {target for target, _ in _LINK.findall(text("README.md"))}
    assert linked == {page for page in ALL_PAGES if page != "README.md"}
    assert len(text("README.md").splitlines()) <= 150


def test_a_page_that_the_code_cites_is_there() -> None:
    """With the section of `hudi-format.md` that is cited."""
    sources = {p: p.read_text() for folder in _FOLDERS.split("|") for p in (ROOT / folder).rglob("*.py")}
    pages = {page for source in sources.values() for page in _CITED_PAGE.findall(source)}
    assert [page for page in pages if not (ROOT / page).exists()] == []
    sections = {number for source in sources.values() for number in _CITED_SECTION.findall(source)}
    known = set(re.findall(r"^##+ (\d+(?:\.\d+)?)", text("docs/internals/hudi-format.md"), re.MULTILINE))
    assert sections
    assert sections - known == set()


def test_a_file_that_a_page_names_is_there() -> None:
    """Paths of files in the repository, which pages write whole."""
    named = [(page, path) for page in ALL_PAGES for path in _FILE.findall(text(page))]
    assert named
    assert [(page, path) for page, path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_walk_goes_downwards_only(number: int) -> None:
    """Each file of a walk is imported by one that was passed before."""
    page = text("docs/internals/architecture.md")
    walk = page.partition(f"### Walk {number}")[2].partition("\n`compact` and inline")[0].partition("\n##")[0]
    modules = [path.removesuffix(".py").replace("/", ".") for path in _FILE.findall(walk)]
    reached = {modules[0]}
    for module in modules[1:]:
        above = set(reached)
        while below := {name for one in above for name in ours(one)} - above:
            above |= below
        assert module in above, module
        reached.add(module)


def test_what_a_page_imports_is_there() -> None:
    """Also in blocks that are not run."""
    python = re.compile(r"```python\n(.*?)```", re.DOTALL)
    blocks = [(page, block) for page in ALL_PAGES for block in python.findall(text(page))]
    assert blocks
    for page, block in blocks:
        imports = [node for node in ast.parse(block).body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(list[ast.stmt](imports), []), page, "exec"), {})


def test_the_page_of_object_stores_names_every_option() -> None:
    """Under each of its names."""
    page = (ROOT / "docs/guides/object-stores.md").read_text()
    own = {n for of in SETTINGS.values() for s in of for n in (s.name, *s.variables) if s.name not in CONNECTION}
    other = {"fs.s3a.proxy.host", "fs.s3a.proxy.port"}
    assert [name for name in (own | set(CONNECTION) | hadoop_names()) - other if f"`{name}" not in page] == []


# Help of every command at 80 columns: no option name, placeholder, default or line is cut.


@pytest.mark.parametrize("app", APPS)
def test_the_kept_pages_are_those_of_the_commands(app: str) -> None:
    """`python -m tests.project.option_reference` has been run since an option or a text changed."""
    assert HELP[app].read_text() == written(pages(app))


def test_nothing_is_cut() -> None:
    """Each option with its placeholder and default stands whole in one line."""
    for app, path, command in every_page():
        is_whole(app, path, command)


def is_whole(app: str, path: tuple[str, ...], command: Any) -> None:
    """Asserts it of the help of one command."""
    shown = CliRunner().invoke(APPS[app], [*path, "--help"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    text = shown.stdout
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    lines = [line.split() for line in text.splitlines()]
    for param in command.params:
        names = [one for one in param.opts if one.startswith("-")]
        assert all(any(name in (w.rstrip(",") for w in line) for line in lines) for name in names), names
        if param.metavar:
            assert param.metavar in text
        if isinstance(param.show_default, str):
            assert any(f"[default: {param.show_default}]" in line for line in text.splitlines())
    if path and not hasattr(command, "commands"):
        assert all(word in text for word in ("--log-level LEVEL", "-v, --verbose", "--help"))


# README's commands as a user runs them: the installed commands, Spark, the scripts. `test_docs` runs the rest.


README = (ROOT / "README.md").read_text()
DAEMON = (ROOT / "docs/guides/daemon.md").read_text()
WRITING = (ROOT / "docs/guides/writing.md").read_text()


def commands(page: str) -> list[str]:
    """The command lines in the blocks of a page, without their comments."""
    lines = re.findall(r"^(?:\$ )?((?:compactor-daemon|bash|timeline) .*)$", page, re.MULTILINE)
    return [line.split("  #")[0].strip() for line in lines]


def run(line: str, table: Path) -> subprocess.CompletedProcess[str]:
    """A shown command line on a real table."""
    words = [str(table) if w == "lake/orders" else w for w in shlex.split(line)]
    words[0] = str(Path(sys.executable).with_name(words[0]))
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


def test_the_shown_commands_run(tmp_path: Path) -> None:
    """One command compacts a table, exactly as shown, through the installed commands."""
    table = unzip_golden("v9_plain", tmp_path)
    shown = [c for c in commands(README) if c.startswith("compactor-daemon")]
    assert [line.split()[1] for line in shown] == ["compact"]
    for line in shown:
        done = run(line, table)
        assert done.returncode == 0, done.stderr
    assert "requested" not in run("timeline show lake/orders --pending", table).stdout


def test_the_shown_fleet_runs_until_it_is_stopped(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    """The daemon as shown, but for tables, ZooKeeper's hosts, and Spark."""
    orders, rides = (unzip_golden(name, tmp_path / name) for name in ("v9_pending", "v6_pending"))
    (daemon,) = [c for c in commands(DAEMON) if c.startswith("compactor-daemon run lake/orders --zoo")]
    hosts = re.sub(r"zk1:2181[,a-z0-9:]*", zookeeper.hosts, daemon)
    command, *rest = shlex.split(hosts.replace("lake/orders", f"{orders} {rides}"))
    process = subprocess.Popen([str(Path(sys.executable).with_name(command)), *rest, "--executor", "local"])
    try:
        wait_until(
            lambda: not any(Table.open(str(t)).load_timeline().pending_compactions for t in (orders, rides)), 180
        )
        process.terminate()
        assert process.wait(180) == 0
    finally:
        process.kill()


def test_listed_methods_and_examples_exist() -> None:
    """Each method of a write that the guide names, and each example."""
    named = set(re.findall(r"^\| (?:`\.[a-z_]+\([^|]*\)`[, ]*)+", WRITING, re.MULTILINE))
    methods = {m for cell in named for m in re.findall(r"\.([a-z_]+)\(", cell)}
    assert len(methods) > 12
    assert all(callable(getattr(Writer, m, None)) for m in methods)
    assert set(re.findall(r"`([a-z_]+\.py)`", WRITING)) == {
        p.name for p in (ROOT / "deploy/examples").glob("*.py") if p.name != "rides.py"
    }


def test_the_two_commands_exist() -> None:
    """And the test command is what continuous integration runs."""
    scripts = [c.split()[1] for c in commands(README) if c.startswith("bash")]
    assert scripts == ["deploy/demo.sh", "deploy/test.sh"]
    assert all((ROOT / s).is_file() for s in scripts)
    assert "bash deploy/test.sh" in (ROOT / ".ci" / "run").read_text()


def test_set_up_says_what_is_missing(tmp_path: Path) -> None:
    """Without Java what needs Spark stops with one sentence that says so."""
    environment = {"PATH": "/usr/bin:/bin", "JAVA_HOME": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", str(ROOT / "deploy" / "setup.sh"), "spark"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert "phantombase needs Python >= 3.11, and Spark Java 17 or newer: no Java 17 was found" in done.stderr
