"""The Hudi tables of a Hive Metastore, over Thrift (extra `hive`).

`thriftpy2` reads the interface below when it is first used: of hive_metastore.thrift only the calls and fields that are
asked for, with their numbers; a reader of Thrift skips the others. The calls are those of Hive 2.3 to 4.

Hudi's sync registers a MERGE_ON_READ table under up to three names, `t`, `t_ro` and `t_rt`, with one location.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from phantombase.timeline.errors import StorageError, UsageError
from phantombase.timeline.reachable import why_unreachable

_INTERFACE = """
struct StorageDescriptor { 2: string location, 3: string inputFormat }
struct Table { 1: string tableName, 7: StorageDescriptor sd, 9: map<string, string> parameters }
struct GetTablesRequest { 1: required string dbName, 2: optional list<string> tblNames }
struct GetTablesResult { 1: required list<Table> tables }
exception MetaException { 1: string message }
service Metastore {
  list<string> get_all_databases() throws (1: MetaException problem),
  list<string> get_all_tables(1: string db_name) throws (1: MetaException problem),
  GetTablesResult get_table_objects_by_name_req(1: GetTablesRequest req)
    throws (1: MetaException problem, 2: MetaException operation, 3: MetaException database),
}
"""
_PORT = 9083
_TIMEOUT_MS = 30_000
_AT_ONCE = 500
_PROVIDER = "spark.sql.sources.provider"


class MetastoreListing:
    """See the module, and `Listing`. Names are DATABASE/TABLE."""

    def __init__(self, where: str) -> None:
        host, separator, port = where.rpartition(":")
        self._host, self._port = (host, port) if separator else (port, str(_PORT))
        if not self._host or not self._port.isdigit():
            raise UsageError("not a Hive Metastore", expected="hive:HOST:PORT", found=f"hive:{where}")
        self._interface = _interface()

    @property
    def shown(self) -> str:
        """See `Listing`."""
        return f"hive:{self._host}:{self._port}"

    def tables(self) -> Mapping[str, str]:
        """See `Listing`. StorageError: no answer."""
        by_path: dict[str, str] = {}
        with self._client() as client:
            for database in client.get_all_databases():
                names = client.get_all_tables(database)
                for start in range(0, len(names), _AT_ONCE):
                    asked = self._interface.GetTablesRequest(dbName=database, tblNames=names[start : start + _AT_ONCE])
                    for table in client.get_table_objects_by_name_req(asked).tables:
                        path = _hudi_path(table)
                        if path is not None:
                            name = f"{database}/{table.tableName}"
                            by_path[path] = min(by_path.get(path, name), name, key=lambda n: (len(n), n))
        return {name: path for path, name in sorted(by_path.items())}

    @contextmanager
    def _client(self) -> Iterator[Any]:
        from thriftpy2.rpc import client_context
        from thriftpy2.thrift import TException

        try:
            with client_context(
                self._interface.Metastore,
                self._host,
                int(self._port),
                connect_timeout=_TIMEOUT_MS,
                socket_timeout=_TIMEOUT_MS,
            ) as client:
                yield client
        except (TException, OSError, self._interface.MetaException) as error:
            raise StorageError(
                "the Hive Metastore did not answer",
                path=self.shown,
                found=why_unreachable([f"{self._host}:{self._port}"], _PORT) or f"{type(error).__name__}: {error}",
                todo="Check its host and port (hive.metastore.uris), and that it asks for no SASL.",
            ) from error


def _interface() -> Any:
    try:
        import thriftpy2.parser
    except ImportError as error:
        raise UsageError(
            "a Hive Metastore needs the package thriftpy2", todo="Install it: pip install 'phantombase[hive]'."
        ) from error
    return thriftpy2.parser.load_fp(io.StringIO(_INTERFACE), "phantombase_metastore_thrift")


def _hudi_path(table: Any) -> str | None:
    """The base path of a Hudi table; None: it is another table."""
    if table.sd is None or not table.sd.location:
        return None
    is_hudi = (table.parameters or {}).get(_PROVIDER, "").lower() == "hudi"
    if not is_hudi and "hudi" not in (table.sd.inputFormat or "").lower():
        return None
    location = str(table.sd.location).rstrip("/")
    # Hadoop writes file:/path, which is no URL with a host.
    return location.removeprefix("file:") if location.startswith("file:/") and "://" not in location else location
