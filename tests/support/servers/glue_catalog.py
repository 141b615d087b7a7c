"""AWS Glue in this process: moto, with the versions and limits that moto does not check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from phantombase.compactor_daemon.catalogs import glue
from phantombase.timeline.clocks import Retry
from phantombase.timeline.storage import object_clients

_LIMITS = {"PartitionInputList": 100, "Entries": 100, "PartitionsToDelete": 25, "PartitionsToGet": 1000}
REGION = "us-east-1"


@dataclass(frozen=True)
class Fault:
    """What becomes of a request: it is refused with an error `code`; `lost`: it takes effect all the same."""

    code: str
    lost: bool = False


class MemoryGlue:
    """The interface of `MemoryMetastore`, as far as tests of both need it. `faults`: by request, the oldest first, of
    which each is used once; `errors`: of single partitions in the answers of batches, likewise."""

    where, asks = f"glue:{REGION}", "GetTables"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.before: Callable[[str], None] = lambda _: None
        self.faults: dict[str, list[Fault]] = {}
        self.errors: dict[str, list[str]] = {}
        self.archived: list[bool] = []
        self.clear()

    def client(self, made: Callable[..., Any], *given: Any) -> Any:
        client = made(*given)
        client.meta.events.register("provide-client-params.glue", self._asked)
        client.meta.events.register("before-call.glue", self._refused)
        client.meta.events.register("after-call.glue", self._answered)
        return client

    def _asked(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        self.calls.append(model.name)
        try:
            self.before(model.name)
        except ValueError as error:
            raise EndpointConnectionError(endpoint_url=self.where) from error
        for name, most in _LIMITS.items():
            assert len(params.get(name, ())) <= most, (model.name, name)
        if model.name == "UpdateTable":
            self.archived.append(not params["SkipArchive"])
            now = self.raw(params["DatabaseName"], params["TableInput"]["Name"])["VersionId"]
            if params["VersionId"] != now:
                self.faults.setdefault(model.name, []).append(Fault("ConcurrentModificationException"))

    def _refused(self, model: Any, **_: Any) -> Any:
        fault = next((one for one in self.faults.get(model.name, ()) if not one.lost), None)
        if fault is None:
            return None
        self.faults[model.name].remove(fault)
        return SimpleNamespace(status_code=400), {"Error": {"Code": fault.code, "Message": "injected"}}

    def _answered(self, http_response: Any, parsed: dict[str, Any], model: Any, **_: Any) -> None:
        if http_response.status_code >= 300:
            return
        for fault in [one for one in self.faults.get(model.name, ()) if one.lost][:1]:
            self.faults[model.name].remove(fault)
            http_response.status_code = 500
            parsed["Error"] = {"Code": fault.code, "Message": "injected"}
        for code in self.errors.pop(model.name, ()):
            values = ["a"] if not self.first else self.first
            error = {"PartitionValues": values, "PartitionValueList": values, "ErrorDetail": {"ErrorCode": code}}
            parsed.setdefault("Errors", []).append(error)

    first: list[str] | None = None
    """The values of the partition of `errors`; by default `a`."""

    def clear(self) -> None:
        from moto.glue.models import glue_backends

        backends = glue_backends["123456789012"]
        for backend in backends.values():
            backend.reset()
        self.backend = backends[REGION]
        self.backend.create_database("default", {"Name": "default"})

    def raw(self, database: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.backend.get_table(database, name).as_dict()
        return found

    def parameters(self, database: str, name: str) -> dict[str, str]:
        found: dict[str, str] = self.raw(database, name)["Parameters"]
        return found

    def partitions(self, database: str, name: str) -> list[dict[str, Any]]:
        found = self.backend.get_table(database, name).partitions.values()
        return sorted((one.as_dict() for one in found), key=lambda one: one["Values"])

    def values(self, database: str, name: str) -> list[tuple[str, ...]]:
        return [tuple(one["Values"]) for one in self.partitions(database, name)]

    def put(self, name: str, parameters: dict[str, str]) -> None:
        """Parameters of a table of the database `default`, by another client."""
        table = self.raw("default", name)
        self._update({**table, "Parameters": {**table["Parameters"], **parameters}})

    def _update(self, table: dict[str, Any]) -> None:
        version = table.pop("VersionId")
        self.backend.update_table(table["DatabaseName"], table["Name"], table)
        assert self.raw(table["DatabaseName"], table["Name"])["VersionId"] != version

    def change(self, name: str, *, location: str = "", plain: bool = False, unpartitioned: bool = False) -> None:
        """Of a table of the database `default`, by another client."""
        table = self.raw("default", name)
        place = dict(table["StorageDescriptor"])
        if location:
            place["Location"] = location
        if plain:
            place["InputFormat"], table["Parameters"] = "org.apache.hadoop.mapred.TextInputFormat", {}
        keys = [] if unpartitioned else table["PartitionKeys"]
        self._update({**table, "StorageDescriptor": place, "PartitionKeys": keys})


@pytest.fixture
def memory_glue(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryGlue]:
    moto = pytest.importorskip("moto")
    made = object_clients.aws_client
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with moto.mock_aws():
        found = MemoryGlue()
        monkeypatch.setattr(object_clients, "aws_client", lambda *given: found.client(made, *given))
        monkeypatch.setattr(glue, "CATALOG_AGAIN", Retry((0.0,) * 4))
        yield found
