"""What `mkdocs build --strict` makes beside the pages of `docs`: README as the first page, and one page for each public
name of `phantombase`, of its docstrings (mkdocstrings) and an example of `api_examples.txt`, which the tests run.

Nothing of it is committed, and nothing is fetched while it is built. `mkdocs.yml` names this file as a hook.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import phantombase
from phantombase.timeline.errors import PhantombaseError

ROOT = Path(__file__).parents[2]
NAMES = tuple(name for name in phantombase.__all__ if name != "__version__")
_WITH_SPARK = "# with Spark\n"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)([^)#]*)(#[^)]*)?\)")
_NO_LINK = re.compile(r"\]\[(?=[^`\n]*(?:`[^`\n]*`[^`\n]*)*$)", re.MULTILINE)
"""Between two optional parts of a value, outside of code: Markdown would take them for a link."""
_CAUGHT = """try:
    compact("lake/trips")
except {} as error:
    print(error.what, error.path, error.found, error.advice)
"""
_GROUPS = {"Calls": "calls", "Classes": "classes", "Errors": "errors"}


@cache
def stories() -> dict[str, str]:
    """The examples in the order in which they are run, each with the names that it is of."""
    parts = re.split(r"^== (.*)\n", Path(__file__).with_name("api_examples.txt").read_text(), flags=re.MULTILINE)[1:]
    return {names: code.strip() + "\n" for names, code in zip(parts[::2], parts[1::2], strict=True)}


def example(name: str) -> str:
    """The example of a public name, with its imports. KeyError: it has none."""
    for names, code in stories().items():
        if name in names.split():
            return with_imports(code)
    if not is_error(name):
        raise KeyError(name)
    return with_imports(_CAUGHT.format(name))


def needs_spark(code: str) -> bool:
    return _WITH_SPARK in code


def with_imports(code: str) -> str:
    """The code below what it imports."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    lines = ["from pathlib import Path\n"] if "Path" in used else []
    lines += ["import pyarrow as pa\n"] if "pa" in used else []
    named = ", ".join(sorted(used & {*NAMES}))
    line, broken = f"from phantombase import {named}\n", named.replace(", ", ",\n    ")
    lines.append(line if len(line) <= 100 else f"from phantombase import (\n    {broken},\n)\n")
    return "\n".join(["".join(lines), code.removeprefix(_WITH_SPARK)])


def is_error(name: str) -> bool:
    found = getattr(phantombase, name)
    return isinstance(found, type) and issubclass(found, PhantombaseError)


def group(name: str) -> str:
    """The part of the reference that a name is in."""
    if is_error(name):
        return "Errors"
    return "Calls" if inspect.isfunction(getattr(phantombase, name)) else "Classes"


def anchor(heading: str, separator: str = "-") -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", separator)


def page(name: str) -> str:
    """The page of a public name."""
    code = example(name)
    return f"# {name}\n\n{said(name)}\n\n## Example\n\n```python\n{code}```\n"


def said(name: str) -> str:
    """What a page takes from the docstrings. The fields of a dataclass are a table, below them each of its methods."""
    found = getattr(phantombase, name)
    if not dataclasses.is_dataclass(found):
        return f"::: phantombase.{name}"
    fields = dataclasses.fields(found)
    helped = any("help" in one.metadata for one in fields)
    rows = [("field", "type", "default", "what it says")[: 3 + helped], ("---",) * (3 + helped)]
    for one in fields:
        cells = (_cell(one.name), _cell(str(one.type)), _cell(_default(one)), one.metadata.get("help", ""))
        rows.append(cells[: 3 + helped])
    table = "\n".join(f"| {' | '.join(cells)} |".replace("<", "&lt;") for cells in rows)
    methods = [one for one in vars(found) if not one.startswith("_") and one not in {field.name for field in fields}]
    each = [f"::: phantombase.{name}.{one}\n    options: {{heading_level: 3}}" for one in methods]
    return "\n\n".join([f"::: phantombase.{name}\n    options: {{members: false}}", table, *each])


def _cell(text: str) -> str:
    return f"`{text}`".replace(" | ", "` or `") if text else ""


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "" if field.default_factory is dataclasses.MISSING else f"{type(field.default_factory()).__name__}()"
    return repr(getattr(field.default, "value", field.default))


_STYLE = """.md-grid { max-width: 76rem }
.md-typeset pre > code { font-size: .72em }
.md-typeset td code { word-break: normal }"""
"""A window of 1280 pixels shows lines of code and names whole."""


# What mkdocs calls.


def on_config(config: Any) -> Any:
    config.extra_css.append("wide.css")
    config.mdx_configs.setdefault("toc", {})["slugify"] = anchor
    for title in _GROUPS:
        names = [name for name in NAMES if group(name) == title]
        config.nav.append({f"API: {title.lower()}": [{name: f"api/{name}.md"} for name in names]})
    return config


def on_files(files: Any, *, config: Any) -> Any:
    from mkdocs.structure.files import File

    files.append(File.generated(config, "wide.css", content=_STYLE))
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text()))
    for name in NAMES:
        files.append(File.generated(config, f"api/{name}.md", content=page(name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Links of the repository become links of the site; one to a file that is no page becomes its name."""
    source = page.file.src_uri
    folder = ROOT if source == "index.md" else (ROOT / "docs" / source).parent
    if source.startswith("api/"):
        return markdown

    def link(found: re.Match[str]) -> str:
        picture, text, target, place = found.groups()
        if not target or picture:
            return found[0]
        path = Path(os.path.normpath(folder / target))
        if path == ROOT / "README.md":
            to = "index.md"
        elif path.is_relative_to(ROOT / "docs"):
            to = str(path.relative_to(ROOT / "docs"))
        else:
            name = str(path.relative_to(ROOT))
            return f"`{name}`" if text.strip("`") in name else f"{text} (`{name}`)"
        return f"[{text}]({os.path.relpath(to, Path(source).parent)}{place or ''})"

    text = _LINK.sub(link, markdown)
    return text if "```" in text else _NO_LINK.sub(r"]\\[", text)
