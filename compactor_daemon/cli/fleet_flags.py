"""The options of a fleet: how commands reach ZooKeeper, which tables of a catalog are served, and the pools.

The pools of the configuration file:

    [[pool]]
    match = "sales_*"         the first pool that matches a table counts
    slo = 900                 seconds
    weight = 4
    hours = "22:00-06:00 Europe/Berlin"
    quota = 0.5
    bytes-per-hour = "200g"
    budget = "2core-hours"
    daemons = 2
    trigger = "num-commits"   and any other option of [schedule]"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from phantombase.timeline.errors import UsageError
from phantombase.timeline.locks.zookeeper_connection import ZooKeeperAccess, with_access
from phantombase.timeline.option import option
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.terminal.option_group import Only, from_settings, names_of
from phantombase.timeline.terminal.settings import POOLS, read_file

if (
    TYPE_CHECKING
):  # what finds and shares tables is imported where a catalog or ZooKeeper is named: most commands name none
    from ..fleet.catalog import Catalog, TableListing
    from ..fleet.pools import Pool, Pools
    from ..fleet.zookeeper_session import ZooKeeperOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogFlags:
    root: str | None = option(
        None, "all tables below this folder, also those that come later; instead of TABLE", metavar="FOLDER"
    )
    catalog: str | None = option(
        None,
        "all Hudi tables of a Hive Metastore, hive:HOST:PORT, or of AWS Glue, glue:[REGION]; instead of TABLE",
        metavar="CATALOG",
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
        from ..fleet.pools import pools_of

        given = read_file(config).get(POOLS, []) if config is not None else []
        if not isinstance(given, list):
            raise UsageError("pools are an array of tables", path=config, expected=f"[[{POOLS}]]", found=f"[{POOLS}]")
        return pools_of(_pools(given, str(config), schedule), self.include, self.exclude, self.slo_s)

    def found(self, tables: list[str], pools: Pools, options: StorageOptions) -> Catalog | None:
        """The catalog, None where tables are named. UsageError: both or neither."""
        if "" in (self.root, self.catalog):
            todo = "Give its value: a variable may be empty."
            raise UsageError("--root or --catalog is empty", expected="a folder or a catalog", todo=todo)
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
        from ..fleet.catalog import Catalog

        return Catalog(listing=self._listing(options), pools=pools)

    def _listing(self, options: StorageOptions) -> TableListing:
        from ..fleet.catalog import CatalogListing, FolderListing

        if self.root is not None:
            return FolderListing(self.root, options)
        return CatalogListing(str(self.catalog), options)


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
            raise error.at(where) from error


def _pool(given: Mapping[str, Any], schedule: ScheduleOptions) -> Pool:
    from ..fleet.pools import Hours, Pool

    values = {name.replace("_", "-"): value for name, value in given.items()}
    match, hours = values.pop("match"), values.pop("hours", None)
    planned, rest = from_settings(schedule, values)
    own = {name: rest.pop(name) for name in _OWN & rest.keys()}
    if rest:
        name = next(iter(rest))
        known = sorted({"match", "hours", *_OWN, *(flag.replace("_", "-") for flag in names_of(ScheduleOptions))})
        near = difflib.get_close_matches(name, known, n=1)
        what = "not a setting of a pool"
        raise UsageError(what, found=name, todo=f"Did you mean {near[0]}?" if near else f"One of {' '.join(known)}.")
    pool: Pool = from_settings(Pool(match=match), own)[0]
    return replace(pool, hours=None if hours is None else Hours.parse(str(hours)), schedule=planned)


_OWN = frozenset({"weight", "slo", "quota", "bytes-per-hour", "budget", "daemons"})
_CONNECT_S = 10.0
EMBEDDED = "embedded"


def _file(name: str, help_text: str) -> Any:
    """An option that names a file, `--zookeeper-NAME FILE`."""
    return option(None, help_text, flag=f"zookeeper_{name}", metavar="FILE")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperFlags:
    """How a command reaches ZooKeeper. `hosts` None: it uses no ZooKeeper."""

    hosts: str | None = option(
        None,
        "ZooKeeper of the fleet: host:port[,host:port][/chroot], or `embedded`: the server that the daemons of "
        "this machine run",
        flag="zookeeper",
        metavar="HOSTS|embedded",
    )
    folder: Path | None = option(
        None, "folder of the embedded server [default: a folder of this user]", flag="zookeeper_dir", metavar="FOLDER"
    )
    session_s: float = option(
        10.0, "a daemon loses its claims after this time without a sign of life", flag="zookeeper_session", least=1
    )
    digest_file: Path | None = _file("digest_file", "a file with user:password for ZooKeeper, the same for all daemons")
    ca: Path | None = _file("ca", "ZooKeeper over TLS: certificates to trust (PEM)")
    cert: Path | None = _file("cert", "ZooKeeper over TLS: client certificate (PEM)")
    key: Path | None = _file("key", "ZooKeeper over TLS: client private key (PEM)")
    sasl: str | None = option(
        None, "ZooKeeper over SASL: GSSAPI (Kerberos) or DIGEST-MD5", flag="zookeeper_sasl", metavar="MECHANISM"
    )
    sasl_file: Path | None = _file("sasl_file", "a file with user:password for DIGEST-MD5")

    def options(self) -> ZooKeeperOptions | None:
        """The options, None without hosts. UsageError: a file cannot be read, or options are given without hosts.
        ZooKeeperError: no embedded server is running."""
        if self.hosts is None:
            if self._access().is_given or self.folder is not None:
                raise UsageError("options of ZooKeeper are given without --zookeeper", todo="Add --zookeeper HOSTS.")
            return None
        if self.hosts != EMBEDDED and self.folder is not None:
            raise UsageError(
                "--zookeeper-dir is the folder of an embedded server",
                expected=f"--zookeeper {EMBEDDED}",
                found=f"--zookeeper {self.hosts}",
                todo="Leave one of them out.",
            )
        from ..fleet.zookeeper_server import default_folder, embedded_hosts
        from ..fleet.zookeeper_session import ZooKeeperOptions

        text = self.hosts if self.hosts != EMBEDDED else embedded_hosts(self.folder or default_folder())
        hosts, within = with_access(text)
        given = self._access()
        if within.is_given and given.is_given:
            raise UsageError(
                "the access to ZooKeeper is given twice", expected="after --zookeeper HOSTS?, or as options"
            )
        access = within if within.is_given else given
        return ZooKeeperOptions(
            hosts=hosts, session_timeout_s=self.session_s, connect_timeout_s=_CONNECT_S, access=access
        )

    def on_lock(self, lock: str | None) -> str | None:
        """The lock with the same access as the fleet, if it is one in ZooKeeper that names none of its own."""
        if lock is None or not lock.startswith("zookeeper:") or "?" in lock or self.hosts in (None, EMBEDDED):
            return lock
        given = self._access()
        return lock + (given if given.is_given else with_access(str(self.hosts))[1]).query

    def _access(self) -> ZooKeeperAccess:
        paths = (self.ca, self.cert, self.key, self.digest_file, self.sasl_file)
        ca, cert, key, digest, user = (None if path is None else str(path) for path in paths)
        return ZooKeeperAccess(ca=ca, cert=cert, key=key, digest_file=digest, sasl=self.sasl, sasl_file=user)

    @contextmanager
    def running(self) -> Iterator[ZooKeeperOptions | None]:
        """The options of a daemon; with `embedded`, joins or starts the server, which runs until exit."""
        if self.hosts != EMBEDDED:
            yield self.options()
            return
        from ..fleet.zookeeper_server import default_folder, embedded_zookeeper

        with embedded_zookeeper(self.folder or default_folder()) as server:
            yield replace(self, hosts=server.hosts, folder=None).options()


ZOOKEEPER = ZooKeeperFlags()
"""No fleet."""
Fleet = Annotated[ZooKeeperFlags, Only("hosts", "folder", "digest_file", "ca", "cert", "key", "sasl", "sasl_file")]
"""For commands that show a fleet, or ring its doorbell, and hold no claims."""
