"""A Hive Metastore, through `thriftpy2` (extra `hive`), which reads `hive_metastore.thrift` when it is first used."""

from __future__ import annotations

import getpass
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import NoAnswerError, StorageError, UsageError, fault_of, reason_of, without_classes
from phantombase.timeline.reachable import is_port, waiting, why_unreachable

from .catalog import (
    EXPECTED,
    EXTERNAL,
    MADE_BY,
    OUTPUT,
    SERDE,
    CatalogColumn,
    CatalogPartition,
    CatalogTable,
    batches,
    partition_name,
)
from .kerberos import SASL, Kerberos, check_principal

_INTERFACE = Path(__file__).with_name("hive_metastore.thrift")
_PORT = 9083
_NO_HOST = frozenset("/ ")
_CONNECT_MS, _FIRST_MS, _ANSWER_MS = 30_000, 60_000, 120_000
"""The longest waits for a connection, for the first answer, and for another one: a thousand partitions were seen to
take a metastore 4 s. A server that expects TLS or SASL never answers."""
_AT_ONCE = 500
_PLAIN, _TLS = "hive", "hives"


@cache
def interface() -> Any:
    """The structures and the service. UsageError: the package is missing."""
    try:
        import thriftpy2.parser
    except ImportError as error:
        raise UsageError(
            "a Hive Metastore needs the package thriftpy2",
            todo="pip install 'phantombase[hive]' adds it: the tables and syncs of a Hive Metastore.",
        ) from error
    return thriftpy2.parser.load(str(_INTERFACE), "phantombase_metastore_thrift")


@dataclass(frozen=True, slots=True)
class Metastore:
    """The servers of one metastore, which are tried in order. `tls`: by certificates that the system, or the file that
    SSL_CERT_FILE names, trusts. `principal`: of the servers, which ask for Kerberos. `batch`: partitions of a
    request."""

    servers: tuple[tuple[str, int], ...]
    tls: bool = False
    principal: str | None = None
    batch: int = 1000

    @staticmethod
    def parse(text: str, *, batch: int = 1000) -> Metastore:
        """From `hive:HOST[:PORT][,HOST[:PORT]]...[?principal=hive/_HOST@REALM]`, or `hives:...`. UsageError."""
        kind, _, rest = text.partition(":")
        where, asks, principal = rest.partition("?principal=")
        return Metastore(
            tuple(_server(one, text) for one in where.split(",")),
            tls=kind == _TLS,
            principal=check_principal(principal, text) if asks else None,
            batch=batch,
        )

    @property
    def shown(self) -> str:
        return f"{_TLS if self.tls else _PLAIN}:" + ",".join(f"{host}:{port}" for host, port in self.servers)

    @contextmanager
    def calls(self) -> Iterator[_Calls]:
        """See `TableCatalog`."""
        kinds = interface()
        from thriftpy2.thrift import TException

        try:
            with _connected(self, kinds) as client:
                yield _Calls(client, kinds, self.batch)
        except (kinds.Refused, kinds.NoSuchObject, kinds.UnknownDatabase, kinds.AlreadyExists) as error:
            raise StorageError(
                "the Hive Metastore refused a request",
                path=self.shown,
                found=f"{fault_of(error)}: {without_classes(str(error.message))}",
                todo="Its log says more. The data are not affected; the next sync tries again.",
            ) from error
        except (TException, OSError) as error:
            host, port = self.servers[0]
            cause = error.__context__ if isinstance(error.__context__, OSError) else error  # thriftpy2 tells less
            raise NoAnswerError(
                "the Hive Metastore did not answer",
                path=self.shown,
                found=why_unreachable([f"{host}:{port}"], _PORT) or reason_of(cause),
                todo="Check its host and port (hive.metastore.uris), whether it uses TLS (hives:HOST:PORT), and "
                + (
                    f"that it asks for Kerberos ({SASL}) as this principal, and that clocks agree; its log says more."
                    if self.principal
                    else f"whether it asks for Kerberos ({SASL}): hive:HOST:PORT?principal=hive/_HOST@REALM."
                ),
            ) from error


def _server(text: str, whole: str) -> tuple[str, int]:
    host, separator, port = text.strip().rpartition(":")
    host, port = (host, port) if separator else (port, str(_PORT))
    if not host or not is_port(port) or not _NO_HOST.isdisjoint(host):
        raise UsageError(
            "not a Hive Metastore",
            expected=EXPECTED,
            found=whole,
            todo="Name the servers of hive.metastore.uris, without thrift://.",
        )
    return host, int(port)


@contextmanager
def _connected(store: Metastore, kinds: Any) -> Iterator[Any]:
    from thriftpy2.rpc import client_context
    from thriftpy2.transport import TTransportException

    how: dict[str, Any] = {"connect_timeout": _CONNECT_MS, "socket_timeout": _FIRST_MS}
    if store.tls:
        import ssl

        how["ssl_context"] = ssl.create_default_context()
    if store.principal is not None:  # a server without SASL does not answer at all
        how["socket_timeout"] = _CONNECT_MS
    with ExitStack() as stack:
        for number, server in enumerate(store.servers, start=1):
            how["trans_factory"] = asked = _Asked(f"waiting for the Hive Metastore at {server[0]}:{server[1]}")
            if store.principal is not None:
                how["trans_factory"] = Kerberos(
                    principal=store.principal, host=server[0], shown=store.shown, answer_ms=_ANSWER_MS
                )
            try:
                with waiting(asked.words):
                    asked.client = stack.enter_context(client_context(kinds.Metastore, *server, **how))
            except (TTransportException, OSError):
                if number == len(store.servers):
                    raise
            else:
                break
        yield asked


class _Asked:
    """The calls of a client, each with a word of what is waited for; the first answer is waited for less long."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.client: Any = None
        self._socket: Any = None

    def get_transport(self, made: Any) -> Any:
        """As thriftpy2 does by default."""
        from thriftpy2.transport import TBufferedTransportFactory

        self._socket, factory = made, cast(Any, TBufferedTransportFactory())
        return factory.get_transport(made)

    def __getattr__(self, name: str) -> Any:
        def ask(*args: Any) -> Any:
            with waiting(self.words):
                answer = getattr(self.client, name)(*args)
            if self._socket is not None:
                self._socket.set_timeout(_ANSWER_MS)
            return answer

        return ask


class _Calls:
    """See `Calls`. `kinds`: the structures of Thrift."""

    def __init__(self, client: Any, kinds: Any, batch: int) -> None:
        self._client, self._kinds, self._batch = client, kinds, batch

    def databases(self) -> list[str]:
        return list(self._client.get_all_databases())

    def changed(self, after: int) -> tuple[int, set[tuple[str, str]]]:
        """The number of the last notification, and the tables of those that came after another one, by database and
        name. Of many, only of the first. None, where the numbers begin again or `after` is below 0."""
        last = self._client.get_current_notificationEventId().eventId
        if not 0 <= after < last:
            return last, set()
        asked = self._kinds.EventsAfter(lastEvent=after, maxEvents=_AT_ONCE)
        found = self._client.get_next_notification(asked).events
        tables = {(one.dbName, one.tableName) for one in found if one.tableName}
        return max((one.eventId for one in found), default=last), tables

    def create_database(self, name: str) -> None:
        made = self._kinds.Database(name=name, description=MADE_BY, parameters={})
        with suppress(self._kinds.AlreadyExists):
            self._client.create_database(made)

    def all_tables(self, database: str) -> Iterator[CatalogTable]:
        return self.tables(database, self._client.get_all_tables(database))

    def tables(self, database: str, names: Collection[str]) -> Iterator[CatalogTable]:
        for some in batches(list(names), _AT_ONCE):
            asked = self._kinds.GetTablesRequest(dbName=database, tblNames=some)
            try:
                yield from map(_table, self._client.get_table_objects_by_name_req(asked).tables)
            except self._kinds.UnknownDatabase:
                return

    def create(self, table: CatalogTable) -> bool:
        made = self._kinds.Table(
            tableName=table.name,
            dbName=table.database,
            owner=_user(),
            createTime=clock_ms() // 1000,
            lastAccessTime=0,
            retention=0,
            sd=self._storage(table, table.location, table.columns, table.serde_properties),
            partitionKeys=self._columns(table.partition_columns),
            parameters=dict(table.parameters),
            tableType=EXTERNAL,
        )
        try:
            self._client.create_table(made)
        except self._kinds.AlreadyExists:
            return False
        return True

    def alter(self, table: CatalogTable, *, partitions: bool) -> bool:
        """See `Calls`; a metastore knows no versions, and changes the columns of partitions with those of the table."""
        made = table.raw
        if _known(made.sd.cols) != table.columns:
            made.sd.cols = self._columns(table.columns)
        made.parameters, made.sd.serdeInfo.parameters = dict(table.parameters), dict(table.serde_properties)
        more = self._kinds.EnvironmentContext(properties={"CASCADE": "true"} if partitions else {})
        self._client.alter_table_with_environment_context(table.database, table.name, made, more)
        return True

    def partitions(self, table: CatalogTable) -> Iterable[CatalogPartition]:
        return map(_partition, self._client.get_partitions(table.database, table.name, -1))

    def named(self, table: CatalogTable, values: Collection[tuple[str, ...]]) -> Iterator[CatalogPartition]:
        for some in batches(self._names(table, values), self._batch):
            yield from map(_partition, self._client.get_partitions_by_names(table.database, table.name, some))

    def add(self, table: CatalogTable, partitions: Sequence[CatalogPartition]) -> None:
        for some in batches(partitions, self._batch):
            made = [self._made(table, one) for one in some]
            request = self._kinds.AddPartitionsRequest(
                dbName=table.database, tblName=table.name, parts=made, ifNotExists=True, needResult=False
            )
            self._client.add_partitions_req(request)

    def move(self, table: CatalogTable, partitions: Sequence[CatalogPartition]) -> None:
        for one in partitions:
            one.raw.sd.location, one.raw.sd.cols = one.location, self._columns(one.columns)
        for some in batches(partitions, self._batch):
            self._client.alter_partitions(table.database, table.name, [one.raw for one in some])

    def drop(self, table: CatalogTable, values: Collection[tuple[str, ...]]) -> None:
        for some in batches(self._names(table, values), self._batch):
            request = self._kinds.DropPartitionsRequest(
                dbName=table.database,
                tblName=table.name,
                parts=self._kinds.RequestPartsSpec(names=list(some)),
                deleteData=False,
                ifExists=True,
                needResult=False,
            )
            self._client.drop_partitions_req(request)

    def _names(self, table: CatalogTable, values: Collection[tuple[str, ...]]) -> list[str]:
        return [partition_name(table.partition_columns, one) for one in values]

    def _made(self, table: CatalogTable, one: CatalogPartition) -> Any:
        return self._kinds.Partition(
            values=list(one.values),
            dbName=table.database,
            tableName=table.name,
            createTime=clock_ms() // 1000,
            lastAccessTime=0,
            sd=self._storage(table, one.location, one.columns, table.serde_of_partitions),
            parameters={},
        )

    def _storage(
        self, table: CatalogTable, location: str, columns: Iterable[CatalogColumn], serde: Mapping[str, str]
    ) -> Any:
        return self._kinds.StorageDescriptor(
            cols=self._columns(columns),
            location=location,
            inputFormat=table.input_format,
            outputFormat=OUTPUT,
            compressed=False,
            numBuckets=0,
            serdeInfo=self._kinds.SerDeInfo(serializationLib=SERDE, parameters=dict(serde)),
            bucketCols=[],
            sortCols=[],
            parameters={},
        )

    def _columns(self, columns: Iterable[CatalogColumn]) -> list[Any]:
        return [self._kinds.FieldSchema(name=one.name, type=one.type, comment=one.comment) for one in columns]


def _user() -> str:
    with suppress(OSError, KeyError, ImportError):
        return getpass.getuser()
    return "phantombase"


def _known(columns: Iterable[Any] | None) -> tuple[CatalogColumn, ...]:
    return tuple(CatalogColumn(name=one.name, type=one.type, comment=one.comment or "") for one in columns or ())


def _table(raw: Any) -> CatalogTable:
    place = raw.sd
    return CatalogTable(
        database=raw.dbName,
        name=raw.tableName,
        location=(place and place.location) or "",
        columns=_known(place and place.cols),
        partition_columns=_known(raw.partitionKeys),
        input_format=(place and place.inputFormat) or "",
        serde_properties=(place and place.serdeInfo and place.serdeInfo.parameters) or {},
        parameters=raw.parameters or {},
        raw=raw,
    )


def _partition(raw: Any) -> CatalogPartition:
    place = raw.sd
    return CatalogPartition(
        values=tuple(raw.values),
        location=(place and place.location) or "",
        columns=_known(place and place.cols),
        raw=raw,
    )
