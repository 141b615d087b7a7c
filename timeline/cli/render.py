"""What all commands for one table share: their arguments and options, and what draws for a terminal what they computed
(pure: plain dicts in, rich renderables out)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum
from operator import itemgetter
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from ..codec.avro_schema import META_COLUMNS
from ..instants.clock_check import ClockOptions
from ..option import help_of
from ..storage.storage_options import Given
from ..table.table import BUILD_AGAIN, Table
from ..terminal.boundary import one_line
from ..terminal.text_table import (
    Column,
    Row,
    RowsTable,
    age,
    facts_grid,
    human_bytes,
    human_duration,
    labelled,
    numbers,
    plain,
    plural,
    readable,
    sizes,
)

CLOCK = ClockOptions()


class ListedBy(Enum):
    """Where the names of a table's partitions and files come from."""

    STORAGE = "storage"
    METADATA = "metadata"

    def open(self, path: str, timezone: str = CLOCK.timezone, storage_options: Given = None) -> Table:
        table = Table.open(path, storage_options, reading=True).with_clock(ClockOptions(timezone=timezone))
        if self is ListedBy.STORAGE:
            return table
        from ..metadata_table.read import MetadataListing  # late: a start is shorter without

        return replace(table, listing=MetadataListing())


TablePath = Annotated[
    str, typer.Argument(metavar="TABLE", help="base path of the table: the folder that holds .hoodie")
]
Partition = Annotated[
    str | None, typer.Option("--partition", metavar="P", help="Only partitions at or under this path, e.g. year=2026.")
]
Listing = Annotated[
    ListedBy,
    typer.Option(
        "--listing", help="What names partitions and files: folders, or Hudi's metadata table if the table has one."
    ),
]
Timezone = Annotated[str, typer.Option(metavar="ZONE", help=help_of(ClockOptions, "timezone"))]


_CELL_MAX = 40
_SPACE = 2


class ShownRows:
    """Rows of a table as JSON has them: as many columns as fit into the width, the others named below. Without
    `every_column` Hudi's own columns are left out."""

    def __init__(self, data: Row, *, every_column: bool) -> None:
        self._names: list[str] = data["columns"]
        if not every_column:
            self._names = [name for name in self._names if name not in META_COLUMNS] or self._names
        self._rows = [{name: _cell(value) for name, value in row.items()} for row in data["rows"]]
        self._numbers = {name for row in data["rows"] for name, value in row.items() if _is_number(value)}
        self._more: bool = data["more"]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fitting = self._fitting(options.max_width)
        more = " and more; --limit shows them" if self._more else ""
        columns = [Column(n, itemgetter(n), right=n in self._numbers) for n in self._names[:fitting]]
        yield RowsTable(f"{plural(len(self._rows), 'row')}{more}", columns, self._rows)
        if left := self._names[fitting:]:
            yield Text(f"{plural(len(left), 'column')} more; --columns chooses: {', '.join(left)}", "dim")

    def _fitting(self, width: int) -> int:
        """How many columns fit next to each other, at least one."""
        used = 0
        for number, name in enumerate(self._names):
            used += max([cell_len(name), *(cell_len(row[name] or "") for row in self._rows)]) + _SPACE
            if used > width and number:
                return number
        return len(self._names)


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    text = one_line(str(value).lower() if isinstance(value, bool) else str(value))
    return text if len(text) <= _CELL_MAX else text[: _CELL_MAX - 1] + "…"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_STATE_STYLES = {"requested": "yellow", "inflight": "cyan", "completed": "green"}
_HEARTBEAT_STYLES = {"fresh": "green", "stale": "red", "none": "dim"}


def show(data: Row) -> Iterator[RenderableType]:
    """Header, all instants unless only pending ones are wanted, and the pending instants."""
    yield _header(data["table"])
    yield ""
    if not data["pending_only"]:
        requested = Column("requested", lambda row: readable(row["instant"]))
        action = Column("action", lambda row: row.get("kind") or row["action"])
        columns = ("instant", requested, action, Column("state", _state), Column("completed", _completed))
        yield RowsTable(plural(len(data["instants"]), "instant"), columns, data["instants"])
        yield ""
    if data["pending"]:
        pending = Column("pending", lambda row: f"{row['action']} {row['state']}")
        shown = ("instant", pending, Column("for", age), Column("plan", _plan), Column("heartbeat", _heartbeat))
        yield RowsTable(f"{len(data['pending']):,} pending", shown, data["pending"])
    else:
        yield "Nothing is pending."
    for row in data["pending"]:
        if row["problem"]:
            yield labelled("problem", "bold red", f"{row['instant']}: {row['problem']}")


def _header(facts: Row) -> RenderableType:
    database = f"{facts['database']}." if facts["database"] else ""
    return facts_grid(
        {
            "table": f"{database}{facts['name']}",
            "path": facts["path"],
            "type": f"{facts['type']}, version {facts['version']}",
            "merge mode": facts["merge_mode"],
            "ordering": ", ".join(facts["ordering_fields"]) or "none: the later write wins",
            "record key": ", ".join(facts["record_key_fields"]) or "made up by Hudi",
            "partitioned by": ", ".join(facts["partition_fields"]) or "nothing",
            "metadata table": _metadata_table(facts),
            "instants in": "UTC" if facts["timezone"] == "UTC" else "the writers' local time",
        }
    )


def _metadata_table(facts: Row) -> str:
    if not facts["metadata_table"]:
        return "off"
    commits = facts["metadata_commits_since_compaction"]
    since = facts["metadata_problem"] if commits is None else _to_compact(commits)
    return f"on ({', '.join(facts['metadata_partitions'])}); {since}"


def _to_compact(commits: int) -> str:
    return f"{plural(commits, 'delta commit')} since its last compaction"


def _state(row: Mapping[str, Any]) -> Text:
    return Text("archived", "dim") if row["archived"] else Text(row["state"], _STATE_STYLES[row["state"]])


def _completed(row: Mapping[str, Any]) -> str | Text | None:
    if row["state"] != "completed":
        return None
    if row["completion_time"] is None:
        return Text("not recorded", "dim")
    text = readable(row["completion_time"])
    same_day = text.startswith(readable(row["instant"])[:10]) and " " in text
    same_year = " " in text and text[:4] == row["instant"][:4]
    return text.partition(" ")[2] if same_day else text[5:] if same_year else text


def _plan(row: Mapping[str, Any]) -> str | Text | None:
    if row["problem"]:
        return Text("unreadable", "red")
    plan = row["plan"]
    if plan is None:
        return None
    size = "unknown bytes" if plan["log_bytes"] is None else human_bytes(plan["log_bytes"])
    return f"{plural(plan['file_groups'], 'file group')}, {size} of logs"


def _heartbeat(row: Mapping[str, Any]) -> Text:
    age = row["heartbeat_age_s"]
    text = row["heartbeat"] if age is None else f"{row['heartbeat']}, {human_duration(age)}"
    return Text(text, _HEARTBEAT_STYLES[row["heartbeat"]])


_SLICE = ("partition", Column("file id", plain("file_id"), shorten=True), "base instant")


def slices(data: Row) -> Iterator[RenderableType]:
    totals = data["totals"]
    base, logs = Column("base", _base, right=True), Column("logs", plain("log_files"), right=True)
    columns = (*_SLICE, base, logs, sizes("log size", "log_bytes"), Column("outcome", _outcome))
    yield RowsTable(plural(totals["slices"], "file slice"), columns, data["slices"])
    yield ""
    yield (
        f"{plural(totals['file_groups'], 'file group')}: {human_bytes(totals['base_bytes'])} in base files, "
        f"{human_bytes(totals['log_bytes'])} in {plural(totals['log_files'], 'log file')}, "
        f"{plural(totals['phantom_slices'], 'phantom slice')}"
    )


def _base(row: Mapping[str, Any]) -> str | Text | None:
    if row["base"] == "phantom":
        return Text("phantom", "magenta")
    return human_bytes(row["base_bytes"])


def _outcome(row: Mapping[str, Any]) -> Text | None:
    if row["replaced_by"]:
        return Text(f"replaced {row['replaced_by']}", "dim")
    return Text(f"in plan {row['pending_plan']}", "yellow") if row["pending_plan"] else None


def plan(data: Row) -> Iterator[RenderableType]:
    totals, executors = data["totals"], data["recommended_executors"]
    title = f"compaction {data['instant']}, {data['state']}: {plural(totals['operations'], 'operation')}"
    logs = Column("logs", lambda row: str(len(row["logs"])), right=True)
    of = (sizes("base", "base_bytes"), logs, sizes("log size", "log_bytes"), sizes("total", "bytes"))
    yield RowsTable(title, (*_SLICE, *of), data["operations"])
    yield ""
    in_logs = f"{human_bytes(totals['log_bytes'])} in {plural(totals['log_files'], 'log file')}"
    total = f"{human_bytes(totals['bytes'])}: {human_bytes(totals['base_bytes'])} in base files, {in_logs}"
    enough = f"{executors} recommended: more cannot finish sooner, the largest slice decides"
    yield facts_grid({"total": total, "executors": enough})


def read(data: Row) -> Iterator[RenderableType]:
    yield (
        f"{plural(data['rows'], 'row')} of {plural(data['slices'], 'file slice')} in {data['seconds']:,.2f} s "
        f"-> {data['output']} ({human_bytes(data['bytes'])})"
    )
    yield from _window(data["window"])


def rows(data: Row, *, every_column: bool) -> Iterator[RenderableType]:
    yield ShownRows(data, every_column=every_column)
    yield from _window(data["window"])


def _window(window: Row | None) -> Iterator[RenderableType]:
    if window is not None:
        yield f"writes after {window['begin'] or 'the beginning'}, up to {window['end']}; next: --begin {window['end']}"


def audit(data: Row) -> Iterator[RenderableType]:
    if not data["instants"]:
        yield "No compaction by phantombase has left a ledger here."
        return
    found = Column("found", lambda r: ", ".join(f"{n:,} {verdict}" for verdict, n in r["verdicts"].items()))
    columns = ("instant", numbers("file groups"), numbers("rows"), found, Column("", _verdict))
    yield RowsTable(plural(len(data["instants"]), "instant"), columns, data["instants"])
    for row in data["instants"]:
        for problem in row["problems"]:
            yield labelled("wrong", "bold red", f"{row['instant']}: {problem}")
        for leftover in row["leftovers"]:
            yield labelled("left over", "yellow", f"{leftover}: the next compactor run removes it")


def _verdict(row: Mapping[str, Any]) -> Text:
    return Text("good", "green") if row["good"] else Text("WRONG", "bold red")


def pins(data: Row) -> Iterator[RenderableType]:
    if data["released"] is not None:
        verb = "would be released" if data["dry_run"] else "released"
        yield f"{plural(data['released'], 'pin')} {verb}."
    if data["pins"]:
        ends = Column("ends", lambda r: f"in {r['expires_in_s']:,.0f} s" if r["live"] else Text("expired", "yellow"))
        columns = ("name", Column("holds the table from", plain("holds")), "holder", ends)
        yield RowsTable(plural(len(data["pins"]), "pin"), columns, data["pins"])
    else:
        yield "No pins: no reader holds an old state."


def validate(data: Row) -> Iterator[RenderableType]:
    rows = data["differences"]
    if rows:
        bytes_of = (sizes("on storage", "storage_bytes"), sizes("in the metadata table", "metadata_bytes"))
        columns = ("partition", "file", Column("found", plain("what")), *bytes_of)
        yield RowsTable(plural(len(rows), "difference"), columns, rows)
        yield ""
    for name, why in data["damaged_indexes"].items():
        todo = f"`compactor-daemon metadata TABLE --rebuild --indexes {name}` builds it again"
        yield labelled(name, "bold red", f"{why}; {todo}")
    if data["record_index"]:
        why = f"lacks entries of rows, which Hudi's writers would double: {data['record_index']}. {BUILD_AGAIN}"
        yield labelled("record index", "bold red", why)
    for row in data["mistimed"]:
        when = f"{row['file']} was modified at {row['modified']}, {row['why']}"
        yield labelled("mistimed", "bold red", f"{row['instant']}: {when}")
    for row in data["lost"]:
        found = "is not there" if row["found_bytes"] is None else f"has {row['found_bytes']} bytes"
        named = f"the completed write {row['instant']} names it with {row['expected_bytes']} bytes"
        yield labelled("lost", "bold red", f"{row['file']} {found}; {named}")
    for time in data["unreadable_commits"]:
        yield f"torn: the completed file of {time} cannot be read: which files it wrote is not known"
    for path in data["unnamed"]:
        why = "is of no write that is known, and its rows count, for Hudi too: find out what made it"
        yield labelled("unnamed", "bold red", f"{path} {why}")
    for path in data["strays"]:
        yield f"passed over: {path} is no file of the table"
    compared = f"{plural(data['partitions'], 'partition')}, {plural(data['files'], 'file')}"
    commits = data["metadata_commits_since_compaction"]
    compared = "no metadata table" if commits is None else f"{compared}; the metadata table has {_to_compact(commits)}"
    yield Text.assemble(_verdict(data), f": {compared}")
    if data["mistimed"]:
        yield (
            "Hudi 1.x then reads other rows than 0.15: timeline repair-times (see its help) sets the times back, "
            "where files keep the times that they are given"
        )


def repaired(data: Row) -> Iterator[RenderableType]:
    for row in data["files"]:
        yield f"{row['file']}: {row['time']}"
    yield f"{plural(len(data['files']), 'time')} {'to set' if data['dry_run'] else 'set'}"
