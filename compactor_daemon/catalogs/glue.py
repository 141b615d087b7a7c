"""AWS's Glue Data Catalog, through `boto3` (extra `s3`).

Hudi's AwsGlueCatalogSyncTool makes the tables that its HiveSyncTool makes, and says in a parameter whether Athena lists
files by the metadata table. Glue has its own limits: partitions of a request, and a version of a table for each change
of it, which is why a table is changed once, with its mark. A change names the version that it was made from: another
process that has changed the table since then is no loser."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from phantombase.timeline.clocks import CATALOG_AGAIN, retries
from phantombase.timeline.errors import NoAnswerError, StorageError, UsageError
from phantombase.timeline.reachable import is_server_url
from phantombase.timeline.storage.storage_options import Settings

from .catalog import (
    EXPECTED,
    EXTERNAL,
    MADE_BY,
    OUTPUT,
    SERDE,
    Calls,
    CatalogColumn,
    CatalogPartition,
    CatalogTable,
    batches,
)

_WHERE = re.compile(r"glue:(?P<region>[a-z0-9-]*)(?:@(?P<endpoint>https?://[^\s@]+))?", re.ASCII)
_MADE, _GOT, _DROPPED = 100, 1000, 25
"""The most partitions of a request that makes or changes them, asks for them, drops them."""
_COMMENT_BYTES = 255
_GONE, _THERE, _STALE = "EntityNotFoundException", "AlreadyExistsException", "ConcurrentModificationException"
_PASSING = frozenset(
    {
        _STALE,
        "ThrottlingException",
        "Throttling",
        "ThrottledException",
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "InternalServiceException",
        "InternalFailure",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "OperationTimeoutException",
        "RequestTimeout",
        "ResourceNotReadyException",
        "FederationSourceRetryableException",
    }
)
"""Errors after which a request is made again."""
_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class Glue:
    """The catalog of an account. `region`, `endpoint` empty: those of AWS's environment. `settings`: see
    `open_catalog`, also for `archive` and `batch`."""

    region: str
    endpoint: str
    settings: Settings = field(repr=False, compare=False)
    archive: bool
    batch: int

    @staticmethod
    def parse(text: str, settings: Settings, *, archive: bool, batch: int) -> Glue:
        """From `glue:[REGION][@ENDPOINT]`. UsageError."""
        found = _WHERE.fullmatch(text)
        if found is None or not is_server_url(found["endpoint"] or "https://host"):
            raise UsageError("not a catalog of AWS Glue", expected=EXPECTED, found=text)
        region, endpoint = found["region"] or settings.of("region") or "", found["endpoint"] or ""
        return Glue(region, endpoint, settings, archive=archive, batch=batch)

    @property
    def shown(self) -> str:
        return f"glue:{self.region}" + (f"@{self.endpoint}" if self.endpoint else "")

    @contextmanager
    def calls(self) -> Iterator[Calls]:
        """See `TableCatalog`."""
        try:
            import botocore.exceptions as botocore
        except ImportError as error:
            raise UsageError(
                "AWS Glue needs the package boto3",
                todo="pip install 'phantombase[s3]' adds it: AWS Glue, and what S3 asks of boto3.",
            ) from error
        from phantombase.timeline.storage.object_clients import aws_client

        try:
            yield _Calls(aws_client("glue", self.settings, self.region, self.endpoint), self)
        except botocore.ClientError as error:
            raise _refused(self, f"{_code(error)}: {error.response['Error'].get('Message', '')}") from error
        except botocore.BotoCoreError as error:
            raise NoAnswerError(
                "AWS Glue did not answer",
                path=self.shown,
                found=str(error),
                todo="Check the region (glue:REGION), the credentials (AWS_ACCESS_KEY_ID, or those of the machine) and "
                "the network. The data are not affected; the next sync tries again.",
            ) from error


def _refused(store: Glue, found: str) -> StorageError:
    return StorageError(
        "AWS Glue refused a request",
        path=store.shown,
        found=found,
        todo="Check the rights of these credentials (glue:*Table*, glue:*Partition*, glue:*Database*). The data are "
        "not affected; the next sync tries again.",
    )


def _code(error: Any) -> str:
    return str(error.response["Error"].get("Code", ""))


class _Calls:
    """See `Calls`. Errors are those of boto3, which `Glue.calls` puts into the tree."""

    def __init__(self, client: Any, store: Glue) -> None:
        self._client, self._store = client, store

    def _ask(self, call: Callable[..., Any], *, passing: Collection[str] = _PASSING, **request: Any) -> Any:
        """An answer. Errors that may pass, and lost answers, are tried again: each request may be repeated."""
        import botocore.exceptions as botocore

        for is_last in retries(CATALOG_AGAIN):
            try:
                return call(**request)
            except botocore.ClientError as error:
                status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
                if is_last or (_code(error) not in passing and status < _SERVER_ERROR):
                    raise
            except (botocore.ConnectionClosedError, botocore.ReadTimeoutError):
                if is_last:
                    raise
        raise AssertionError("the last try raises")

    def _pages(self, call: Callable[..., Any], what: str, **request: Any) -> Iterator[Any]:
        while True:
            page = self._ask(call, **request)
            yield from page[what]
            if not page.get("NextToken"):
                return
            request["NextToken"] = page["NextToken"]

    def databases(self) -> list[str]:
        return [one["Name"] for one in self._pages(self._client.get_databases, "DatabaseList")]

    def create_database(self, name: str) -> None:
        try:
            self._ask(self._client.create_database, DatabaseInput={"Name": name, "Description": MADE_BY})
        except self._client.exceptions.AlreadyExistsException:
            return

    def all_tables(self, database: str) -> Iterator[CatalogTable]:
        return map(_table, self._pages(self._client.get_tables, "TableList", DatabaseName=database))

    def tables(self, database: str, names: Collection[str]) -> Iterator[CatalogTable]:
        """See `Calls`. One request, and one more for each table that its answer does not have."""
        expression, left = "|".join(map(re.escape, names)), set(names)
        try:
            for one in self._pages(self._client.get_tables, "TableList", DatabaseName=database, Expression=expression):
                if one["Name"] in left:
                    left.remove(one["Name"])
                    yield _table(one)
            for name in sorted(left):
                try:
                    yield _table(self._ask(self._client.get_table, DatabaseName=database, Name=name)["Table"])
                except self._client.exceptions.EntityNotFoundException:
                    continue
        except self._client.exceptions.EntityNotFoundException:  # the database
            return

    def create(self, table: CatalogTable) -> bool:
        made = {
            "Name": table.name,
            "StorageDescriptor": _storage(table, table.location, table.columns, table.serde_properties),
            "PartitionKeys": _columns(table.partition_columns),
            "TableType": EXTERNAL,
            "Parameters": dict(table.parameters),
        }
        try:
            self._ask(self._client.create_table, DatabaseName=table.database, TableInput=made)
        except self._client.exceptions.AlreadyExistsException:
            return False
        return True

    def alter(self, table: CatalogTable, *, partitions: bool) -> bool:
        if partitions:
            found = self.partitions(table)
            self.move(table, [one for one in found if one.types != table.types], columns=table.columns)
        known = self._client.meta.service_model.shape_for("TableInput").members
        made = {name: value for name, value in table.raw.items() if name in known}
        place = made["StorageDescriptor"]
        if _table(table.raw).columns != table.columns:
            place = {**place, "Columns": _columns(table.columns)}
        serde = {**place.get("SerdeInfo", {}), "Parameters": dict(table.serde_properties)}
        made["StorageDescriptor"] = {**place, "SerdeInfo": serde}
        made["Parameters"] = dict(table.parameters)
        version = {"VersionId": table.raw["VersionId"]} if table.raw.get("VersionId") else {}
        try:
            self._ask(
                self._client.update_table,
                passing=_PASSING - {_STALE},
                DatabaseName=table.database,
                TableInput=made,
                SkipArchive=not self._store.archive,
                **version,
            )
        except self._client.exceptions.ConcurrentModificationException:
            return False
        return True

    def partitions(self, table: CatalogTable) -> Iterable[CatalogPartition]:
        return map(_partition, self._pages(self._client.get_partitions, "Partitions", **_of(table)))

    def named(self, table: CatalogTable, values: Collection[tuple[str, ...]]) -> Iterator[CatalogPartition]:
        for some in batches(list(values), min(_GOT, self._store.batch)):
            asked = [{"Values": list(one)} for one in some]
            for is_last in retries(CATALOG_AGAIN):
                answer = self._ask(self._client.batch_get_partition, **_of(table), PartitionsToGet=asked)
                yield from map(_partition, answer.get("Partitions", ()))
                if not (asked := answer.get("UnprocessedKeys", [])):
                    break
                if is_last:
                    raise _refused(self._store, f"{len(asked)} partitions of {table.name} were not looked up")

    def add(self, table: CatalogTable, partitions: Sequence[CatalogPartition]) -> None:
        made = [(one.values, self._input(table, one)) for one in partitions]
        self._batches(self._client.batch_create_partition, "PartitionInputList", table, made, _MADE, fine=_THERE)

    def move(
        self,
        table: CatalogTable,
        partitions: Sequence[CatalogPartition],
        columns: tuple[CatalogColumn, ...] | None = None,
    ) -> None:
        """See `Calls`. `columns`: of all of them."""
        known = self._client.meta.service_model.shape_for("PartitionInput").members
        made = []
        for one in partitions:
            place = {
                **one.raw["StorageDescriptor"],
                "Location": one.location,
                "Columns": _columns(columns or one.columns),
            }
            own = {name: value for name, value in one.raw.items() if name in known}
            entry = {"PartitionValueList": list(one.values), "PartitionInput": {**own, "StorageDescriptor": place}}
            made.append((one.values, entry))
        self._batches(self._client.batch_update_partition, "Entries", table, made, _MADE)

    def drop(self, table: CatalogTable, values: Collection[tuple[str, ...]]) -> None:
        made = [(one, {"Values": list(one)}) for one in values]
        self._batches(self._client.batch_delete_partition, "PartitionsToDelete", table, made, _DROPPED, fine=_GONE)

    def _batches(
        self,
        call: Callable[..., Any],
        what: str,
        table: CatalogTable,
        items: Sequence[tuple[tuple[str, ...], Mapping[str, Any]]],
        most: int,
        *,
        fine: str = "",
    ) -> None:
        """Requests of at most `most` partitions. Those that an answer names with an error that may pass are sent again;
        another error than `fine` is one of the request. StorageError."""
        for some in batches(items, min(most, self._store.batch)):
            left = dict(some)
            for is_last in retries(CATALOG_AGAIN):
                request: dict[str, Any] = {**_of(table), what: list(left.values())}
                answer = self._ask(call, **request)
                wrong = {}
                for error in answer.get("Errors", ()):
                    code = error.get("ErrorDetail", {}).get("ErrorCode", "an error without a code")
                    values = tuple(error.get("PartitionValues") or error.get("PartitionValueList") or ())
                    if code != fine:
                        wrong[values] = code
                left = {values: one for values, one in left.items() if values in wrong}
                if not wrong:
                    break
                if is_last or not left or not _PASSING.issuperset(wrong.values()):
                    shown = ", ".join(sorted({*wrong.values()}))
                    raise _refused(self._store, f"{shown} for {len(wrong)} partitions of {table.name}")

    def _input(self, table: CatalogTable, one: CatalogPartition) -> dict[str, Any]:
        place = _storage(table, one.location, one.columns, table.serde_of_partitions)
        return {"Values": list(one.values), "StorageDescriptor": place}


def _of(table: CatalogTable) -> dict[str, str]:
    return {"DatabaseName": table.database, "TableName": table.name}


def _storage(
    table: CatalogTable, location: str, columns: Iterable[CatalogColumn], serde: Mapping[str, str]
) -> dict[str, Any]:
    """`s3a` is Hadoop's name of what AWS calls `s3`."""
    return {
        "Columns": _columns(columns),
        "Location": location.replace("s3a://", "s3://", 1),
        "InputFormat": table.input_format,
        "OutputFormat": OUTPUT,
        "SerdeInfo": {"SerializationLibrary": SERDE, "Parameters": dict(serde)},
    }


def _columns(columns: Iterable[CatalogColumn]) -> list[dict[str, str]]:
    return [{"Name": one.name, "Type": one.type, "Comment": _cut(one.comment)} for one in columns]


def _cut(comment: str) -> str:
    return comment.encode()[:_COMMENT_BYTES].decode(errors="ignore")


def _known(columns: Iterable[Mapping[str, Any]]) -> tuple[CatalogColumn, ...]:
    return tuple(
        CatalogColumn(name=one["Name"], type=one.get("Type", ""), comment=one.get("Comment") or "") for one in columns
    )


def _table(raw: Mapping[str, Any]) -> CatalogTable:
    place = raw.get("StorageDescriptor") or {}
    return CatalogTable(
        database=raw["DatabaseName"],
        name=raw["Name"],
        location=place.get("Location") or "",
        columns=_known(place.get("Columns") or ()),
        partition_columns=_known(raw.get("PartitionKeys") or ()),
        input_format=place.get("InputFormat") or "",
        serde_properties=(place.get("SerdeInfo") or {}).get("Parameters") or {},
        parameters=raw.get("Parameters") or {},
        raw=raw,
    )


def _partition(raw: Mapping[str, Any]) -> CatalogPartition:
    place = raw.get("StorageDescriptor") or {}
    return CatalogPartition(
        values=tuple(raw["Values"]),
        location=place.get("Location") or "",
        columns=_known(place.get("Columns") or ()),
        raw=raw,
    )
