"""The options of `run` for the tables of a catalog, and the pools of its configuration file.

[[pool]]
match = "sales_*"         the first pool that matches a table counts
slo = 900                 seconds
weight = 4
hours = "22:00-06:00 Europe/Berlin"
quota = 0.5
bytes-per-hour = "200g"
daemons = 2
trigger = "num-commits"   and any other option of [schedule]
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from phantombase.timeline.errors import UsageError
from phantombase.timeline.option import option
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.terminal.settings import POOLS, read_file

from ..catalog.catalog import Catalog
from ..catalog.hours import Hours
from ..catalog.listing import FolderListing, TableListing
from ..catalog.pools import Pool, Pools, pools_of
from .option_flags import flags_of, from_settings

METASTORE = "hive"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogFlags:
    """Which tables are found, and served."""

    root: str | None = option(
        None, "all tables below this folder, also those that come later; instead of TABLE", metavar="FOLDER"
    )
    catalog: str | None = option(
        None, "all Hudi tables of a Hive Metastore; instead of TABLE", metavar="hive:HOST:PORT"
    )
    include: tuple[str, ...] = option(
        (), "only tables of this name, such as `sales_*` or `db/sales_*`; may be repeated", metavar="PATTERN"
    )
    exclude: tuple[str, ...] = option((), "no tables of this name; may be repeated", metavar="PATTERN")
    slo_s: float | None = option(
        None, "a compaction that is pending for longer is late: the latest tables come first", least=1
    )

    def pools(self, config: str | None, schedule: ScheduleOptions) -> Pools:
        """The pools of the configuration file. `schedule`: of tables whose pool says nothing else."""
        given = read_file(config).get(POOLS, []) if config is not None else []
        if not isinstance(given, list):
            raise UsageError("pools are an array of tables", path=config, expected=f"[[{POOLS}]]", found=f"[{POOLS}]")
        return pools_of(_pools(given, str(config), schedule), self.include, self.exclude, self.slo_s)

    def found(self, tables: list[str], pools: Pools, options: StorageOptions) -> Catalog | None:
        """The catalog, None where tables are named. UsageError: both or neither."""
        given = [name for name in (tables, self.root, self.catalog) if name]
        if tables and (self.include or self.exclude):
            raise UsageError("--include and --exclude are for tables that are found", todo="Add --root or --catalog.")
        if len(given) != 1:
            raise UsageError(
                "the tables are named, or found",
                expected="one of TABLE..., --root and --catalog",
                found="none of them" if not given else "several of them",
            )
        if tables:
            return None
        return Catalog(listing=self._listing(options), pools=pools)

    def _listing(self, options: StorageOptions) -> TableListing:
        if self.root is not None:
            return FolderListing(self.root, options)
        kind, _, where = str(self.catalog).partition(":")
        if kind != METASTORE:
            raise UsageError("unknown kind of catalog", expected="hive:HOST:PORT", found=repr(self.catalog))
        from ..catalog.metastore import MetastoreListing  # late: its library is an extra

        return MetastoreListing(where)


CATALOG = CatalogFlags()
"""Named tables."""


def _pools(given: list[Any], path: str, schedule: ScheduleOptions) -> Iterator[Pool]:
    for number, one in enumerate(given, start=1):
        where = f"{path} [[{POOLS}]] {number}"
        if not isinstance(one, dict) or not isinstance(one.get("match"), str):
            raise UsageError("a pool names its tables", path=where, expected='match = "PATTERN"', found=str(one))
        try:
            yield _pool(one, schedule)
        except UsageError as error:
            raise UsageError(
                error.what, path=where, expected=error.expected, found=error.found, todo=error.todo
            ) from error


def _pool(given: Mapping[str, Any], schedule: ScheduleOptions) -> Pool:
    values = {name.replace("_", "-"): value for name, value in given.items()}
    match, hours = values.pop("match"), values.pop("hours", None)
    planned, rest = from_settings(schedule, values)
    own = {name: rest.pop(name) for name in _OWN & rest.keys()}
    if rest:
        name = next(iter(rest))
        known = sorted({"match", "hours", *_OWN, *(flag.replace("_", "-") for flag in flags_of(ScheduleOptions))})
        near = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            "not a setting of a pool",
            found=name,
            todo=f"Did you mean {near[0]}?" if near else f"One of {' '.join(known)}.",
        )
    pool: Pool = from_settings(Pool(match=match), own)[0]
    return replace(pool, hours=None if hours is None else Hours.parse(str(hours)), schedule=planned)


_OWN = frozenset({"weight", "slo", "quota", "bytes-per-hour", "daemons"})
