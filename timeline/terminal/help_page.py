"""The help page of a command as text: options in groups, complete at 80 columns (pure).

Two columns: names of an option with its placeholder, and its meaning with its default. A name that is too long for the
first column has a line of its own, so the second column keeps its width."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

LEAST_WIDTH = 40
MOST_WIDTH = 100
"""Wider lines are hard to read."""
OPTIONS = "Options"
"""The group of options without a group."""
_FIRST = 26
_KEPT = "\N{NO-BREAK SPACE}"
_INDENT = "  "
_MARKUP = re.compile(r"\[/?b\]")
_PLACEHOLDERS = {"int": "N", "integer": "N", "float": "NUMBER", "str": "TEXT", "text": "TEXT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpPage:
    """The content of a command's page. `usage`: the text after the command's name."""

    usage: str
    text: str
    sections: Mapping[str, Sequence[tuple[str, str]]]

    def shown(self, path: str, width: int) -> str:
        return page(f"{path} {self.usage}", self.text, self.sections, width)


def help_of(command: Any) -> HelpPage:
    """The page of one command, from its parameters and subcommands in click or typer."""
    inner = getattr(command, "commands", None)
    if inner is not None:
        named = [(name, one.help.split("\n\n")[0].replace("`", "")) for name, one in inner.items()]
        options = [("--help", "show this page and exit; each command has one")]
        return HelpPage(usage="COMMAND ...", text=command.help, sections={"Commands": named, OPTIONS: options})
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    groups: dict[str, list[tuple[str, str]]] = {}
    for param in command.params:
        if param.param_type_name == "option" and not param.hidden:
            title = getattr(param, "rich_help_panel", None) or OPTIONS
            groups.setdefault(title, []).append((_names(param), _meaning(param)))
    groups.setdefault(OPTIONS, []).append(("--help", "show this page and exit"))
    usage = " ".join([*(p.metavar or p.name.upper() for p in arguments), "[OPTIONS]"])
    named = [(_placeholder(p), p.help or "") for p in arguments]
    sections = {"Arguments": named, OPTIONS: groups.pop(OPTIONS), **groups}
    return HelpPage(usage=usage, text=command.help or "", sections=sections)


def written(pages: Mapping[str, HelpPage]) -> str:
    """The text of a file of pages, by the names of their commands (see `read_pages`)."""
    kept = {name: [page.usage, page.text, page.sections] for name, page in pages.items()}
    return json.dumps(kept, indent=1, ensure_ascii=False) + "\n"


def read_pages(text: str) -> dict[str, HelpPage]:
    """Inverse of `written`."""
    return {
        name: HelpPage(usage=usage, text=body, sections=sections)
        for name, (usage, body, sections) in json.loads(text).items()
    }


def page(usage: str, text: str, sections: Mapping[str, Sequence[tuple[str, str]]], width: int) -> str:
    """A page: usage, description, and sections of names with their meanings, without empty sections."""
    width = min(max(width, LEAST_WIDTH), MOST_WIDTH)
    short = [len(name) for rows in sections.values() for name, _ in rows if len(name) + 2 <= _FIRST]
    first = 2 + max(short, default=0)
    lines = [*_wrapped(f"Usage: {usage}", width, " " * 7), "", *_paragraphs(text, width)]
    for title, rows in sections.items():
        if rows:
            lines += ["", f"{title}:", *_rows(rows, first, width)]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str, width: int) -> Iterator[str]:
    """Paragraphs are filled; indented lines, such as examples, are unchanged."""
    for number, paragraph in enumerate(_MARKUP.sub("", text).strip().split("\n\n")):
        if number:
            yield ""
        if "\n " in paragraph or paragraph.startswith(" "):
            yield from paragraph.split("\n")
        else:
            yield from _wrapped(" ".join(paragraph.replace("`", "").replace("*", "").split()), width, "")


def _rows(rows: Sequence[tuple[str, str]], first: int, width: int) -> Iterator[str]:
    margin = " " * (len(_INDENT) + first)
    for name, meaning in rows:
        lines = _wrapped(meaning, width - len(margin), "")
        if len(name) + 2 <= first:
            yield f"{_INDENT}{name:{first}}{lines[0]}".rstrip()
        else:
            yield f"{_INDENT}{name}"
            yield f"{margin}{lines[0]}".rstrip()
        yield from (f"{margin}{line}" for line in lines[1:])


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    lines = textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_KEPT, " ") for line in lines] or [""]


# --- an option ---------------------------------------------------------------------------------------------------


def _names(param: Any) -> str:
    """`-v, --verbose`; `--codec NAME`. A flag's off name is shown only if the flag is on by default."""
    names = sorted(param.opts, key=len)
    if param.is_flag:
        return ", ".join([*names, *(param.secondary_opts if shown_default(param) == "on" else ())])
    return f"{', '.join(names)} {_placeholder(param)}"


def _placeholder(param: Any) -> str:
    if param.metavar:
        return str(param.metavar)
    if param.param_type_name == "argument":
        return str(param.name).upper()
    if values := _values(param):
        return "|".join(values) if _are_few(values) else "NAME"
    return _PLACEHOLDERS.get(_kind(param), "VALUE")


def _values(param: Any) -> list[str]:
    """The values of an option that has a fixed list of them."""
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    choices = getattr(getattr(param, "type", None), "choices", ())
    return [str(getattr(one, "value", one)) for one in choices]


def _are_few(values: list[str]) -> bool:
    return len("|".join(values)) <= _FIRST


def _kind(param: Any) -> str:
    kind = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    return kind.__name__ if isinstance(kind, type) else str(getattr(getattr(param, "type", None), "name", ""))


def _meaning(param: Any) -> str:
    shown, values, text = shown_default(param), _values(param), param.help or ""
    if values and not param.metavar and not _are_few(values):
        text = f"{text}: {', '.join(values)}"
    return f"{text} [default:{_KEPT}{shown}]" if shown else text


def shown_default(param: Any) -> str:
    """The default as the page shows it; empty: nothing to show."""
    if isinstance(param.show_default, str):
        return param.show_default
    value = getattr(param.default, "value", param.default)
    if not param.show_default or value is None or value is False or value == () or value == []:
        return ""
    return "on" if value is True else f"{value:g}" if isinstance(value, float) else str(value)
