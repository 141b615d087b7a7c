"""The docs stay true: what they show is run, what they list exists, what they link to is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import typer

from phantombase.timeline import errors
from phantombase.timeline.storage.hadoop_options import hadoop_names
from phantombase.timeline.storage.storage_options import CONNECTION, SETTINGS
from tests.project.doc_pages import ALL_PAGES, PAGES, SHOWN_ZOOKEEPER, Story, comparable
from tests.project.every_command import APPS
from tests.project.option_reference import NAMES_PAGE, PAGE, names_reference, reference
from tests.project.rooms import ours
from tests.support.places import ROOT
from tests.support.servers.zookeeper_server import ZooKeeper

_FOLDERS = "timeline|compactor_daemon|writer_hooks|pyspark_phantombase|phantombase|tests|deploy|bench"
_FILE = re.compile(rf"`((?:{_FOLDERS})/[\w/.-]+\.\w+)`")
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


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


def test_every_command_is_described() -> None:
    """And no other."""
    listed = set(re.findall(r"^\| `((?:timeline|compactor-daemon) [a-z-]+)", text("docs/reference/commands.md"), re.M))
    groups = {name: typer.main.get_command(app) for name, app in APPS.items()}
    assert listed == {f"{name} {c}" for name, group in groups.items() for c in group.commands}  # type: ignore[attr-defined]


def test_every_error_is_described() -> None:
    """With its place in the tree."""
    described = set(re.findall(r"^\| `(\w+)`", text("docs/reference/errors.md"), re.MULTILINE))
    known = {n for n, e in vars(errors).items() if isinstance(e, type) and issubclass(e, errors.PhantombaseError)}
    assert described == known


def test_every_page_is_on_the_map() -> None:
    """README names each page, and fits on a few screens."""
    linked = {target for target, _ in _LINK.findall(text("README.md"))}
    assert linked == {page for page in ALL_PAGES if page != "README.md"}
    assert len(text("README.md").splitlines()) <= 150


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
