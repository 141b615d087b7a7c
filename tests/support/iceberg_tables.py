"""A table that is published to an Iceberg catalog, and the steps of its history."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import read, writer
from phantombase.compactor_daemon.catalogs.options import SyncOptions, SyncResult
from phantombase.compactor_daemon.catalogs.sync import sync_table
from phantombase.compactor_daemon.cleaning.choice import CleanOptions
from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.compactor_daemon.clustering.cluster import cluster_table
from phantombase.compactor_daemon.clustering.options import ClusterOptions
from phantombase.compactor_daemon.undo.restore import restore_table
from phantombase.compactor_daemon.undo.rollback import roll_back_newest
from phantombase.compactor_daemon.undo.savepoint import create_savepoint
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import StorageError
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.read.pins import all_pins, release
from phantombase.timeline.storage.contract import Storage
from tests.support.compaction_steps import open_table, run_all
from tests.support.golden_tables import LOCK

OPERATION = "hoodie.datasource.write.operation"


@dataclass
class Lake:
    """A table below `folder` and its catalog. `given`: the catalog's properties; by default it is one on SQLite."""

    folder: Path
    version: int = 9
    partitions: tuple[str, ...] = ("p",)
    ts: int = 0
    name: str = "t"
    columns: dict[str, Any] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.folder / "t"

    @property
    def to(self) -> str:
        return "iceberg:lake?" + "&".join(f"{name}={value}" for name, value in self.properties.items())

    @property
    def properties(self) -> dict[str, str]:
        where = {"uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": f"file://{self.folder}/iceberg"}
        return self.given or {"type": "sql", **where}

    def rows(self, *ids: str, **more: Any) -> pa.Table:
        self.ts += 1
        of = {"id": pa.array(ids, pa.string()), "p": pa.array([one[0] for one in ids], pa.string())}
        every = {"ts": self.ts, "value": self.ts * 1.5, **self.columns, **more}
        return pa.table({**of, **{name: _times(value, len(ids)) for name, value in every.items()}})

    def put(self, *ids: str, operation: str = "upsert", **more: Any) -> str:
        made = writer(self.rows(*ids, **more))
        if not self.path.exists():
            made = made.table("t", version=self.version).key("id").ordering("ts")
            made = made.partition(*self.partitions) if self.partitions else made
        return made.conf({OPERATION: operation}).write(str(self.path)).instant

    def drop(self, *partitions: str) -> None:
        conf = {OPERATION: "delete_partition", "hoodie.datasource.write.partitions.to.delete": ",".join(partitions)}
        writer(None).conf(conf).write(str(self.path))

    def compact(self, *, execute: bool = True) -> None:
        schedule_compaction(open_table(self.path), LOCK)
        if execute:
            run_all(open_table(self.path))

    def cluster(self) -> None:
        cluster_table(open_table(self.path), ClusterOptions(), LOCK, output=OutputOptions())

    def clean(self, retain: int = 1) -> int:
        return clean_table(open_table(self.path), CleanOptions(retain=retain, floor_s=0), LOCK).files

    def unpinned(self) -> None:
        for name in {pin.name for pin in all_pins(open_table(self.path).storage)}:
            release(open_table(self.path).storage, name)

    def undo(self, instant: str) -> None:
        self.unpinned()
        roll_back_newest(open_table(self.path), LOCK, instant)

    def save(self) -> str:
        return create_savepoint(open_table(self.path), LOCK, None, user="", comment="").instant

    def restore(self, instant: str) -> None:
        self.unpinned()
        restore_table(open_table(self.path), LOCK, instant)

    def sync(self, storage: Storage | None = None, **options: Any) -> SyncResult:
        return sync_table(open_table(self.path, storage), SyncOptions(to=self.to, **options))

    @property
    def catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("lake", **self.properties)

    @property
    def published(self) -> Any:
        """The table of the catalog."""
        return self.catalog.load_table(("default", self.name))

    def wanted(self) -> pa.Table:
        return read(str(self.path), query="read-optimized").to_arrow()

    def check(self, theirs: pa.Table | None = None) -> None:
        """An Iceberg reader has the rows of the read-optimized query."""
        found = self.published.scan().to_arrow() if theirs is None else theirs
        wanted = self.wanted()
        assert set(found.column_names) == set(wanted.column_names)
        assert bag(found) == bag(wanted)

    def check_deaths(
        self, kind: type[Any], sync: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, *, lands: bool
    ) -> None:
        """Dies twice at the commit of a catalog of this kind, which has the commit if it `lands`, and then goes on."""
        real = kind.commit_table

        def dies(*given: Any) -> Any:
            if lands:
                real(*given)
            raise ConnectionResetError("gone")

        for name in ("a2", "b2"):
            self.put(name)
            with monkeypatch.context() as patched:
                patched.setattr(kind, "commit_table", dies)
                with pytest.raises(
                    StorageError, match=r"the Iceberg catalog did not answer.*found connection reset: gone"
                ):
                    sync()
            self.clean()
            self.check_readable()
        sync()
        self.check()
        assert not sync().changed

    def check_readable(self) -> None:
        """The newest snapshot of Iceberg has its files, as all have that a pin holds; an undo releases the others."""
        published = self.published
        held = min((pin.holds for pin in all_pins(open_table(self.path).storage)), default="9")
        newest = published.current_snapshot().snapshot_id
        for snapshot in published.snapshots():
            if snapshot.snapshot_id != newest and snapshot.summary["hudi.holds"] < held:
                continue
            published.scan(snapshot_id=snapshot.snapshot_id).to_arrow()


def _times(value: Any, count: int) -> pa.Array:
    one = value if isinstance(value, pa.Scalar) else pa.scalar(value)
    return pa.array([one.as_py()] * count, one.type)


def bag(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    names = sorted(rows.column_names)
    return Counter(zip(*(map(repr, rows[name].to_pylist()) for name in names), strict=True))


def history(lake: Lake, seed: int, steps: int) -> list[tuple[str, Callable[[], object]]]:
    """Steps by chance, each with its name."""
    by_chance = random.Random(seed)
    ids = [f"{part}{n}" for part in "abc" for n in range(6)]
    saved: list[str] = []

    def some(count: int) -> list[str]:
        return by_chance.sample(ids, count)

    def save() -> None:
        if not saved:
            saved.append(lake.save())

    def restore() -> None:
        if saved:
            lake.restore(saved[0])

    def undo() -> None:
        lake.undo(lake.put(*some(3)))

    def widen() -> None:
        lake.columns[f"more{len(lake.columns)}"] = "x"
        lake.put(*some(2))

    def overwrite() -> None:
        part = by_chance.choice("abc")
        lake.put(f"{part}1", f"{part}9", operation="insert_overwrite")

    every: dict[str, tuple[int, Callable[[], object]]] = {
        "upsert": (6, lambda: lake.put(*some(5))),
        "insert": (2, lambda: lake.put(f"a{lake.ts + 10}", f"b{lake.ts + 10}", operation="insert")),
        "delete": (2, lambda: lake.put(*some(4), operation="delete")),
        "compact": (4, lake.compact),
        "plan": (2, lambda: lake.compact(execute=False)),
        "cluster": (2, lake.cluster),
        "clean": (3, lake.clean),
        "undo": (1, undo),
        "overwrite": (1, overwrite),
        "overwrite all": (1, lambda: lake.put(*some(6), operation="insert_overwrite_table")),
        "drop": (1, lambda: lake.drop(by_chance.choice("abc"))),
        "column": (1, widen),
        "save": (1, save),
        "restore": (1, restore),
    }
    names = by_chance.choices([*every], [weight for weight, _ in every.values()], k=steps)
    return [(name, every[name][1]) for name in names]
