"""`docs/reference/python.md`, made of the public names' signatures, docstrings and fields. See `option_reference`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import phantombase
from phantombase.timeline.errors import PhantombaseError
from tests.support.places import ROOT

PAGE = ROOT / "docs/reference/python.md"

_HEAD = """# Python

This page is generated from the code by `python -m tests.project.option_reference`; a test compares it, and runs the
example. All names are imported from `phantombase`. `table` is a path, a `pathlib.Path`, a URL or a `Table`.
What changes a table needs `lock`, which all its writers share, or `sole_writer=True`. Every error is a
[`PhantombaseError`](errors.md). Fields of options are [described apart](options.md), under the same names.

```python
import pyarrow as pa

from phantombase import audit, clean, compact, read, savepoint, schedule, status, writer

rides = pa.table({"id": ["a", "b"], "zone": ["north", "south"], "ts": [1, 1]})
table = writer(rides).table("rides").key("id").partition("zone").ordering("ts").buckets(1)
for _ in range(2):
    table.upsert("/data/calls")
savepoint("/data/calls", comment="before the compaction", sole_writer=True)
planned = schedule("/data/calls", sole_writer=True)
print(planned.instant, len(status("/data/calls").pending))
print(compact("/data/calls").done[0].rows)
print(all(one.good for one in audit("/data/calls")), clean("/data/calls", dry_run=True).why)
print(len(read("/data/calls", filter="zone = 'north'")))
```

In a notebook a result shows itself as a table. The rows of `read` are iterated as dicts, or taken by `to_arrow`,
`to_polars`, `to_pandas`, `to_duckdb` and every library that takes an Arrow stream.
"""


def page() -> str:
    """The whole page."""
    found = {name: getattr(phantombase, name) for name in phantombase.__all__ if name != "__version__"}
    calls = {name: one for name, one in found.items() if inspect.isfunction(one)}
    errors = {name for name, one in found.items() if isinstance(one, type) and issubclass(one, PhantombaseError)}
    classes = {name: one for name, one in found.items() if name not in errors and name not in calls}
    parts = [_HEAD, "## Calls\n", *(_call(name, one) for name, one in calls.items())]
    parts += ["## Values\n", *(_value(name, one) for name, one in classes.items())]
    return "\n".join(parts)


def _call(name: str, call: Any) -> str:
    given = inspect.signature(call).parameters.values()
    text = ", ".join(map(_parameter, given))
    return f"### {name}\n\n`{name}({text})` gives {_result(call)}.\n\n{_text(call)}\n"


def _parameter(one: inspect.Parameter) -> str:
    """With its class where that is one of options."""
    plain = str(one.replace(annotation=inspect.Parameter.empty))
    kind = str(one.annotation).removesuffix(" | None")
    return plain.replace("=", f": {kind} = ") if kind.endswith("Options") else plain


def _result(call: Any) -> str:
    return f"`{call.__annotations__['return']}`".replace("`None`", "nothing")


def _value(name: str, kind: Any) -> str:
    lines = [f"### {name}\n"]
    if not is_dataclass(kind) or not re.match(rf"{name}\(", kind.__doc__ or ""):
        lines.append(f"{_text(kind)}\n")
    if isinstance(kind, type) and issubclass(kind, Enum):
        lines.append(f"One of {', '.join(f'`{one.value}`' for one in kind)}.\n")
    elif is_dataclass(kind) and (names := [one.name for one in fields(kind) if not one.name.startswith("_")]):
        lines.append(f"Fields: {', '.join(f'`{one}`' for one in names)}.\n")
    if methods := list(_methods(kind)):
        lines.append(f"Also: {', '.join(f'`{one}`' for one in methods)}.\n")
    return "\n".join(lines)


def _methods(kind: Any) -> Iterator[str]:
    for name, one in vars(kind).items():
        if not name.startswith("_") and (inspect.isfunction(one) or isinstance(one, property | staticmethod)):
            yield name if isinstance(one, property) else f"{name}()"


def _text(of: Any) -> str:
    """The docstring; a table of words in it, which is indented, stays as it is."""
    return inspect.cleandoc(of.__doc__ or "")
