"""Draws partitions with every odd state of file groups, and random filters: two ways to look at them must agree.

Several slices, logs of pending and unknown writes, groups in pending plans, replaced ones, compactions whose base file
another attempt left too, lost and damaged files, archived instants, files of size 0, names that are not data files,
change data, and times that two writes share."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from phantombase.timeline.format.layout import LAYOUT_2, Layout
from phantombase.timeline.instants.timeline import Timeline
from phantombase.timeline.storage.contract import Entry
from phantombase.timeline.view.view import ViewFacts
from phantombase.timeline.view.witness import NamedFile, Witness
from tests.support.builders import timeline_of

PARTITION = "p"
FILES = ("a", "b-ü", "c")
_OTHERS = (".x.crc", "_SUCCESS", ".hoodie_partition_metadata", "notes.txt", ".f_10.log.1_0-0-0.crc")


def drawn_timeline(rng: Random, layout: Layout) -> Timeline:
    """Writes and table services at 10 to 60, completed or not, in any order of completion; some are archived."""
    names, archived = list[str](), list[str]()
    for time in ("10", "20", "30", "40", "50", "60"):
        action = rng.choice(("deltacommit", "deltacommit", "deltacommit", "commit", "replacecommit"))
        if rng.random() < 0.85:
            completed = f"{time}_{max(11, int(time) + rng.choice((1, 5, 15, 25, -15)))}" if layout is LAYOUT_2 else time
            (archived if time < "30" and rng.random() < 0.3 else names).append(f"{completed}.{action}")
        elif rng.random() < 0.7:
            pending = {"commit": "compaction.requested", "replacecommit": "replacecommit.requested"}
            names.append(f"{time}.{pending.get(action, 'deltacommit.inflight')}")
        if rng.random() < 0.03:  # a table service of the same time
            names.append(f"{time}_{time}.commit" if layout is LAYOUT_2 else f"{time}.commit")
    return timeline_of(layout, *names, archived=archived)


def drawn_listing(rng: Random) -> list[Entry]:
    """Files of three groups; half of the groups are as most are: a base file, and logs behind it."""
    names = list[str]()
    for file_id in FILES:
        if rng.random() < 0.6:
            bases, logs = ["10"], rng.sample(("10", "20", "30", "40", "50"), rng.randint(0, 3))
        else:
            bases = rng.sample(("10", "20", "30", "40"), rng.randint(0, 3))
            logs = rng.choices(("10", "20", "30", "40", "50", "60", "70"), k=rng.randint(0, 4))
        names += [f"{file_id}_0-0-0_{instant}.parquet" for instant in bases]
        names += [f"{file_id}_9-9-9_{instant}.parquet" for instant in bases if rng.random() < 0.04]
        for number, instant in enumerate(logs):
            end = rng.choice(("", "_0-0-0", "_0-0-0", "_9-0-0", "_10-0-0", "_0-0-0.cdc"))
            names.append(f".{file_id}_{instant}.log.{rng.choice((1, 1, 2, 10))}{number * (end == '') or ''}{end}")
    names += rng.sample(_OTHERS, rng.randint(0, 2))
    names += ["readme_1.hfile"] if rng.random() < 0.03 else []  # no base file's name
    listed = [Entry(name=n, is_folder=False, size=rng.choice((1, 5, 7)) if rng.random() < 0.99 else 0) for n in names]
    folder = [Entry(name="a_0-0-0_60.parquet", is_folder=True)] if rng.random() < 0.05 else []
    unique = {entry.name: entry for entry in listed + folder}
    return [unique[name] for name in sorted(unique)]


def drawn_facts(rng: Random, timeline: Timeline, entries: list[Entry]) -> ViewFacts:
    """Pending plans, replaced groups and compactions, some with a base file that is not there."""
    keys = [(PARTITION, file_id) for file_id in (*FILES, "gone")]
    pending = [i.requested_time for i in timeline.pending_compactions]
    compacted: dict[tuple[str, str], dict[str, str]] = {}
    for entry in entries:
        file_id, token, rest = (*entry.name.split("_"), "", "")[:3]
        instant = rest.partition(".")[0]
        if not entry.name.startswith(".") and (PARTITION, file_id) in keys and rng.random() < 0.15:
            named = entry.name if rng.random() < 0.8 else f"{file_id}_{token}-x_{instant}.parquet"
            compacted.setdefault((PARTITION, file_id), {})[instant] = named
    if rng.random() < 0.05:
        key = rng.choice(keys)
        compacted.setdefault(key, {})["55"] = f"{key[1]}_0-0-0_55.parquet"
    shared = timeline.shared_times
    return ViewFacts(
        pending_plans={k: rng.choice(pending) for k in keys if pending and rng.random() < 0.1},
        replaced={k: "60" for k in keys if rng.random() < 0.08},
        compacted=compacted,
        shared={t: frozenset(f"{PARTITION}/{e.name}" for e in entries if rng.random() < 0.5) for t in shared},
        forming=frozenset(k for k in keys if rng.random() < 0.03),
        witness=_witness(rng, timeline, entries) if rng.random() < 0.4 else Witness(),
    )


def _witness(rng: Random, timeline: Timeline, entries: list[Entry]) -> Witness:
    """Most files are named by a completed write, with their size; some are gone, some are another attempt's."""
    named: dict[str, list[NamedFile]] = {write.requested_time: [] for write in timeline.completed}
    names = [e.name for e in entries] + [
        f"{rng.choice(FILES)}_0-0-0_50.parquet",
        f".{rng.choice(FILES)}_30.log.7_0-0-0",
    ]
    sizes = {e.name: e.size for e in entries}
    for name in names if named else ():
        own = name.partition(".log.")[0].rpartition("_")[2].partition(".")[0]
        write = own if own in named else rng.choice(list(named))
        if rng.random() < (0.98 if name in sizes else 0.1):
            size = sizes.get(name, 4) if rng.random() < 0.99 else rng.choice((0, 3, 9))
            named[write].append(NamedFile(path=f"{PARTITION}/{name}", size=size))
    for write in named:
        if rng.random() < 0.1:
            base = f"{rng.choice(FILES)}_0-0-0_{rng.choice(('05', '50'))}.parquet"
            named[write].append(NamedFile(path=f"{PARTITION}/{base}", size=0, is_below=True))
    return Witness.of((time, None if rng.random() < 0.02 else {PARTITION: files}) for time, files in named.items())


# Random filters over the columns of a table: texts whose values are mostly values of the table, or beside them.


_OPS = ("=", "!=", "<>", "<", "<=", ">", ">=")
_DEPTH_MAX = 3


def random_filter(random: Random, rows: pa.Table, depth: int = 0) -> str:
    """A condition as `parse_filter` takes it, and as DuckDB does if `X'00'` becomes `from_hex('00')`."""
    kind = random.random()
    if depth < _DEPTH_MAX and kind < 0.25:
        parts = [random_filter(random, rows, depth + 1) for _ in range(random.randint(2, 3))]
        return f"({random.choice((' and ', ' or ')).join(parts)})"
    if depth < _DEPTH_MAX and kind < 0.35:
        return f"not ({random_filter(random, rows, depth + 1)})"
    name = random.choice([f.name for f in rows.schema if not pa.types.is_nested(f.type)])
    return _condition(random, f'"{name}"', rows.column(name))


def _condition(random: Random, name: str, column: pa.ChunkedArray) -> str:
    kind = random.random()
    if kind < 0.1:
        return f"{name} is {random.choice(('', 'not '))}null"
    if pa.types.is_string(column.type) and kind < 0.25:
        return f"{name} {random.choice(('', 'not '))}like {_pattern(random, _value(random, column))}"
    if kind < 0.35:
        values = ", ".join(_literal(_value(random, column), column.type) for _ in range(random.randint(1, 4)))
        return f"{name} {random.choice(('', 'not '))}in ({values})"
    if kind < 0.45:
        ends = [_literal(_value(random, column), column.type) for _ in range(2)]
        return f"{name} {random.choice(('', 'not '))}between {ends[0]} and {ends[1]}"
    return f"{name} {random.choice(_OPS)} {_literal(_value(random, column), column.type)}"


def _value(random: Random, column: pa.ChunkedArray) -> Any:
    """A value of the column, at times the next one, or the type's zero if the column has none."""
    value = column[random.randrange(len(column))].as_py() if len(column) else None
    if value is None or (isinstance(value, float) and value != value):
        return _ZERO[_family(column.type)]
    if isinstance(value, str) and random.random() < 0.2:
        return value + "a"
    if isinstance(value, int | Decimal) and not isinstance(value, bool) and -(2**30) < value < 2**30:
        return value + random.choice((-1, 0, 0, 0, 0, 1))
    return value


_ZERO: dict[str, Any] = {
    "text": "",
    "bytes": b"",
    "bool": True,
    "number": 0,
    "date": date(2024, 1, 1),
    "moment": datetime(2024, 1, 1),
}


def _family(kind: pa.DataType) -> str:
    if pa.types.is_string(kind):
        return "text"
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "bytes"
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_timestamp(kind):
        return "moment"
    return "bool" if pa.types.is_boolean(kind) else "number"


def _literal(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{Decimal(value):f}"
    if isinstance(value, datetime):
        moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return f"'{moment.isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"date '{value.isoformat()}'"
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _pattern(random: Random, value: str) -> str:
    at = random.randint(0, len(value))
    text = random.choice((value[:at] + "%", "%" + value[at:], value[:at] + "_" + value[at + 1 :], value))
    return _literal(text.replace("\\", ""), pa.string())
