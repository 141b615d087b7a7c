"""Makes the tables of the matrix with real Hudi: `python -m tests.hudi.conformance.make 9 6 8 [STATE ...]`.

A table has one file group in each partition, one partition for each shape, see `SHAPES`. Of each version one table is
written up to the point where a table service comes in; its copies go on in one state each."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from phantombase.timeline.table.table import Table
from tests.hudi.conformance.history import BASED, HUDI, SHAPES, History, Write
from tests.hudi.conformance.stored import pack, unpack
from tests.hudi.judge.client import BRIEF, Judge, JudgeError
from tests.hudi.judge.table_files import names

MEMORY: dict[str, object] = {
    "hoodie.index.type": "INMEMORY",
    "hoodie.index.bloom.num_entries": 100,
    "hoodie.bloom.index.filter.type": "SIMPLE",
}
"""New file groups begin with log files, and Hudi can cluster them. The index knows what this JVM wrote to any table."""
ROW_BY_ROW: dict[str, object] = {"hoodie.datasource.write.row.writer.enable": False}
"""Of a bulk insert, which else leaves the index alone."""
EVENT_TIME: dict[str, object] = {
    "hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.DefaultHoodieRecordPayload"
}
BEHIND_CLUSTERING: dict[str, object] = {"hoodie.index.type": "SIMPLE"}
"""Where every file group has a base file."""
LOG_COMPACTION: dict[str, object] = {
    "hoodie.log.compaction.inline": True,
    "hoodie.log.compaction.enable": True,
    "hoodie.log.compaction.blocks.threshold": 1,
}
What: TypeAlias = tuple[Iterable[str], Iterable[int]]
"""Rows: partitions, and numbers of rows in each of them."""
_SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])


class Made:
    """A table in the making, and its history."""

    def __init__(self, judge: Judge, path: Path, name: str, history: History) -> None:
        self.judge, self.path, self.name, self.history = judge, path, name, history
        self.options = {**MEMORY, **EVENT_TIME}

    def create(self, parts: Iterable[str], numbers: Iterable[int]) -> None:
        """The first base files."""
        rows = self._rows(parts, numbers, 1)
        version = self.history.version
        self.judge.create(
            self.path,
            "matrix",
            rows,
            version=version if version > 6 else None,
            partition_field="p",
            operation="bulk_insert",
            options={**self.options, **ROW_BY_ROW},
        )
        self.judge.adopt(self.path, self.options)
        self._note(rows, deletes=False)
        self.history.based = dict.fromkeys(parts, 1)

    def upsert(self, *what: What, **options: object) -> None:
        """One write of Hudi's; rows of a later one have a later ts."""
        rows = self._of(what)
        self.judge.upsert(self.path, rows, options)
        self._note(rows, deletes=False)

    def delete(self, *what: What, **options: object) -> None:
        """One delete of Hudi's."""
        rows = self._of(what)
        self.judge.delete(self.path, rows, options)
        self._note(rows, deletes=True)

    def upsert_late(self, *what: What) -> None:
        """One write of rows with a ts before all others: they lose where the key is there."""
        rows = self._of(what)
        rows = rows.set_column(2, "ts", pa.array([0] * rows.num_rows, pa.int64()))
        self.judge.upsert(self.path, rows)
        self._note(rows, deletes=False)

    def overlap(self, first: What, second: What) -> None:
        """Two writes of Hudi's: the first is requested before the second, and completes after it."""
        writes = self._of([first]), self._of([second])
        self.judge.overlap(self.path, *writes)
        self._note(*writes, deletes=False)

    def around_plan(self, what: What) -> None:
        """A write of Hudi's, between whose request and completion a compaction is requested."""
        rows = self._of([what])
        assert self.judge.upsert_around_plan(self.path, rows) is not None, "Hudi requested no compaction"
        self._note(rows, deletes=False)

    def schedule(self) -> str:
        """A compaction is requested."""
        instant = self.judge.schedule_compaction(self.path)
        assert instant is not None, "nothing to compact"
        return instant

    def compact(self, instant: str, writes: int, parts: Iterable[str] = tuple(SHAPES)) -> None:
        """Hudi executes it; the base files hold that many writes."""
        assert self.judge.run_compaction(self.path, instant) == [instant]
        self.history.based |= dict.fromkeys(parts, writes)

    def timeline(self, ending: str) -> set[str]:
        """Names of files of the timeline."""
        return {n for folder in (".hoodie", ".hoodie/timeline") for n in names(self.path, folder) if n.endswith(ending)}

    def _of(self, what: Iterable[What]) -> pa.Table:
        ts = len(self.history.writes) + 1
        return pa.concat_tables([self._rows(parts, numbers, ts) for parts, numbers in what])

    def _rows(self, parts: Iterable[str], numbers: Iterable[int], ts: int) -> pa.Table:
        chosen = [(part, n) for part in parts for n in numbers]
        rows = [{"id": f"{self.name}-{part}-{n:02d}", "p": part, "ts": ts, "v": 100 * ts + n} for part, n in chosen]
        return pa.Table.from_pylist(rows, _SCHEMA)

    def _note(self, *writes: pa.Table, deletes: bool) -> None:
        """The writes that are completed since; several in the order in which they were requested."""
        known = {w.instant for w in self.history.writes} | {n[:17] for n in self.timeline(".logcompaction.requested")}
        done = {n.partition(".")[0].partition("_") for n in self.timeline(".deltacommit")}
        new = sorted((instant, completed) for instant, _, completed in done if instant not in known)
        for (instant, completed), rows in zip(new, writes, strict=True):
            found = tuple((r["p"], r["id"], r["ts"], r["v"]) for r in rows.to_pylist())
            self.history.writes.append(Write(instant=instant, completed=completed or None, deletes=deletes, rows=found))


# The writes.

_LIVING = ("base", "logs", "phantom")
_WRITTEN = ("base", "logs")
_GONE = ("deleted",)


def before(made: Made) -> None:
    """What was written when a table service comes in."""
    made.create(BASED, range(12))
    made.upsert((["logs"], range(12)), (BASED, range(6)))
    made.upsert((SHAPES, range(3, 9)), (SHAPES, (12, 13)))
    made.delete((_LIVING, (0, 1)), (_GONE, range(7)))


def behind(made: Made, **options: object) -> None:
    """What is written behind a table service; nothing in `phantom`."""
    made.upsert((_WRITTEN, (2, 4, 6, 14, 15)), **options)
    made.delete((_WRITTEN, (5, 12)), (_GONE, range(7, 14)), **options)


# The states.


def requested(made: Made) -> None:
    """A compaction is requested, and Hudi writes behind it."""
    made.schedule()
    behind(made)


def inflight(made: Made) -> None:
    """It was begun: its inflight file, base files and markers are there; that of `logs` is half a file."""
    instant = made.schedule()
    behind(made)
    _leave_partial(made, instant)


def _leave_partial(made: Made, instant: str) -> None:
    executed = made.path.with_name("executed")
    shutil.copytree(made.path, executed)
    made.judge.run_compaction(executed, instant, MEMORY)
    (inflight,) = executed.glob(f".hoodie/**/{instant}.compaction.inflight")
    shutil.copy(inflight, made.path / inflight.relative_to(executed))
    for file in executed.glob(f"*/*_{instant}.parquet"):
        place = file.relative_to(executed)
        content = file.read_bytes()
        (made.path / place).write_bytes(content[: len(content) // 2] if place.parts[0] == "logs" else content)
        marker = made.path / ".hoodie/.temp" / instant / f"{place}.marker.CREATE"
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
    shutil.rmtree(executed)
    made.history.forged = "Hudi executed the plan on a copy; its inflight file and base files, one cut, came from there"


def completed(made: Made) -> None:
    """It was executed, and Hudi writes on."""
    instant = made.schedule()
    behind(made)
    made.compact(instant, 4)
    made.upsert((_WRITTEN, (3, 16)))


def rolled_back(made: Made) -> None:
    """It was begun and rolled back: it pends again, with a rollback on the timeline and no base files."""
    inflight(made)
    instant = max(n.partition(".")[0] for n in made.timeline(".compaction.requested"))
    (base,) = (made.path / "phantom").glob(f"*_{made.history.writes[0].instant}.parquet")
    hidden = made.path / "hidden"
    base.rename(hidden)
    try:
        made.judge.run_compaction(made.path, instant)
    except JudgeError:
        pass  # it rolls back what pends, begins anew, and finds that a base file lacks
    else:
        raise AssertionError("executed without a base file")
    finally:
        hidden.rename(base)
    for file in (
        *made.path.glob(f".hoodie/**/{instant}.compaction.inflight"),
        *made.path.glob(f"*/*_{instant}.parquet"),
    ):
        file.unlink()
    shutil.rmtree(made.path / ".hoodie/.temp" / instant, ignore_errors=True)
    assert made.timeline(".rollback"), "Hudi rolled nothing back"
    made.history.forged = "Hudi rolled the attempt back and began a second one, whose traces were removed"


def two_pending(made: Made) -> None:
    """Two compactions pend on different file groups; writes between them and behind both."""
    made.upsert((("base",), range(6)))
    made.delete((_GONE, range(7)))
    made.schedule()
    made.upsert((("logs",), range(12)), (("phantom",), range(4)))
    made.upsert((("logs",), range(3, 9)), (("phantom",), (12, 13)))
    made.schedule()
    behind(made)


def log_compacted(made: Made) -> None:
    """The logs were merged into one, and Hudi writes on."""
    made.upsert((_WRITTEN, (2, 4, 6, 14, 15)), (("phantom",), (3,)), (_GONE, (8,)), **LOG_COMPACTION)
    (instant,) = (name[:17] for name in made.timeline(".logcompaction.requested"))
    made.history.restamped = instant if made.history.version > 6 else None
    made.delete((_WRITTEN, (5, 12)), (_GONE, range(7, 14)))


def log_compaction_pending(made: Made) -> None:
    """It was begun: its log files, one cut, are there."""
    log_compacted(made)
    (instant,) = (name[:17] for name in made.timeline(".logcompaction.requested"))
    (done,) = made.path.glob(f".hoodie/**/{instant}*.deltacommit")
    table = Table.open(str(made.path))
    metadata = table.commit_metadata(table.load_timeline().completed_writes[instant])
    done.unlink()
    for part, stats in metadata.partition_to_write_stats.items():
        for stat in stats:
            file = made.path / str(stat.path)
            content = file.read_bytes()
            file.write_bytes(content[: len(content) // 2] if part == "logs" else content)
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the whole file
    made.history.restamped = None
    made.history.forged = "Hudi executed the plan; its completed file was removed and one of its log files cut"


def clustering_pending(made: Made) -> None:
    """A clustering of all file groups is requested; Hudi then refuses to write to them."""
    made.delete((_GONE, range(7, 14)))
    made.judge.plan_clustering(made.path, MEMORY)
    assert made.timeline("clustering.requested") | made.timeline("replacecommit.requested"), "nothing to cluster"


def clustered(made: Made) -> None:
    """They were clustered, and Hudi writes to the new ones; of new rows it makes base files."""
    made.delete((_GONE, range(7, 14)))
    made.judge.cluster(made.path, MEMORY)
    made.upsert((_WRITTEN, (2, 4, 6, 14, 15)), **BEHIND_CLUSTERING)
    made.history.based = {"base": 6, "logs": 6, "phantom": 5}
    made.delete((_WRITTEN, (5, 12)), **BEHIND_CLUSTERING)


def overlapping(made: Made) -> None:
    """A compaction is requested; behind it two writers overlap: requested first, completed last."""
    made.schedule()
    made.overlap((("base", "deleted"), (2, 4, 14)), (("logs", "phantom"), (2, 4, 14)))
    made.delete((_WRITTEN, (5, 12)), (_GONE, range(15)))


def late_rows(made: Made) -> None:
    """A compaction is requested; behind it rows with an old ts arrive, and a few new ones."""
    made.schedule()
    made.upsert_late((_WRITTEN, (2, 4, 6, 14, 15)), (_GONE, (9,)))
    made.delete((_WRITTEN, (5, 12)), (_GONE, range(7, 14)))


def during_a_write(made: Made) -> None:
    """A compaction is requested while a write is inflight, which completes; Hudi writes on behind it."""
    made.around_plan((SHAPES, (2, 4, 14)))
    made.delete((_WRITTEN, (5, 12)), (_GONE, range(15)))


State: TypeAlias = Callable[[Made], None]

STATES: dict[str, State] = {
    "compaction requested": requested,
    "compaction inflight": inflight,
    "compaction completed": completed,
    "compaction rolled back": rolled_back,
    "two compactions pending": two_pending,
    "log compaction pending": log_compaction_pending,
    "log compaction completed": log_compacted,
    "clustering pending": clustering_pending,
    "clustering completed": clustered,
    "late rows behind a compaction": late_rows,
    "compaction requested during a write": during_a_write,
    "overlapping writers": overlapping,
}
"""What happens to the table of each."""
REFUSED = {(6, "compaction requested during a write"): "Hudi 0.15.0 refuses the write: the plan is a conflict"}
"""States that Hudi does not let come up."""


def make(judge: Judge, version: int, folder: Path, states: Iterable[str]) -> list[str]:
    """The tables of one version, each in a folder of its state: `table`, `history.json`; what could not be made."""
    wrong = list[str]()
    for state in states:
        if (version, state) in REFUSED:
            continue
        path = folder / state.replace(" ", "_")
        made = Made(
            judge, path / "table", f"{version} {state}", History(version=version, made_by=f"Hudi {HUDI[version]}")
        )
        try:
            if state == "two compactions pending":
                made.create(BASED, range(12))
            else:
                before(made)
            STATES[state](made)
        except (JudgeError, AssertionError, ValueError) as error:
            wrong.append(f"v{version} {state}: {error!r}"[:1500])
            shutil.rmtree(path, ignore_errors=True)
            continue
        made.history.save(path / "history.json")
        print(f"v{version} {state}", flush=True)
    return wrong


def main() -> None:
    """Makes and stores the tables of the versions and states that are named, by default all."""
    versions, states = named(sys.argv[1:])
    for version in versions:
        with tempfile.TemporaryDirectory() as folder, Judge(HUDI[version], java_options=BRIEF) as judge:
            there = unpack(version, Path(folder)) if states != list(STATES) else {}
            for state in there.keys() & {*states}:
                shutil.rmtree(there[state])
            for line in make(judge, version, Path(folder), states):
                print(line, flush=True)
            pack(Path(folder), version)


def named(words: list[str]) -> tuple[list[int], list[str]]:
    """The versions and the states among the words of a command; all if it names none."""
    versions = [int(word) for word in words if word.isdecimal()]
    return versions or list(HUDI), [word for word in words if not word.isdecimal()] or list(STATES)


if __name__ == "__main__":
    main()
