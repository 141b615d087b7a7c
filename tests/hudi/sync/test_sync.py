"""The catalog's tables after each write with Hudi's sync on: ours are those that real Hudi made.

`recorded.json`: what Hudi 1.2.0 (version 9) and 0.15.0 (version 6) made of `cases.py` in a Hive Metastore, see
`record.py`. Glue has the same ones; its own sync by Hudi is in no package that could be had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phantombase import writer
from phantombase.compactor_daemon.catalogs.options import SyncOptions
from phantombase.compactor_daemon.catalogs.sync import sync_table
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.format.table_config import PROPERTIES
from phantombase.timeline.table.table import Table
from tests.hudi.judge.client import BRIEF, Judge
from tests.hudi.sync.case import HUDI, SYNC, TYPE, Case, differences, essence, everything, plain, recorded
from tests.hudi.sync.cases import REFUSED, all_cases
from tests.support.servers.glue_catalog import MemoryGlue
from tests.support.servers.hive_metastore import HiveMetastore, MemoryMetastore

CASES = all_cases()


def in_memory(metastore: MemoryMetastore, database: str, path: Path) -> Any:
    tables = {}
    for name, table in sorted(metastore.bases[database].items()):
        partitions = [one for _, one in sorted(metastore.parts[database, name].items())]
        tables[name] = {"table": plain(table, path), "partitions": [plain(one, path) for one in partitions]}
    return tables


_NAMES = {
    "StorageDescriptor": "sd",
    "Columns": "cols",
    "SerializationLibrary": "serializationLib",
    "Name": "name",
    "DatabaseName": "dbName",
}
_NOT_OF_GLUE = ("owner", "createTime", "lastAccessTime", "transient_lastDdlTime")


def in_glue(catalog: MemoryGlue, database: str, path: Path) -> Any:
    """In the words of a metastore."""
    tables = {}
    for name in sorted(catalog.backend.get_database(database).tables):
        table = {**_plain(catalog.raw(database, name)), "tableName": name}
        assert table["parameters"].pop("hudi.metadata-listing-enabled") == "FALSE"
        for more in ("name", "catalogId", "updateTime", "versionId"):
            table.pop(more, None)
        own = {"dbName": database, "tableName": name}
        partitions = [{**_plain(one), **own} for one in catalog.partitions(database, name)]
        for one in partitions:
            for more in ("creationTime", "catalogId"):
                one.pop(more, None)
        tables[name] = plain({"table": table, "partitions": partitions}, path)
    return tables


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        fields = value.items()
        return {_NAMES.get(k, k[0].lower() + k[1:]): v if k == "Parameters" else _plain(v) for k, v in fields}
    return value


def left_out(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [left_out(one, names) for one in value]
    return {k: left_out(v, names) for k, v in value.items() if k not in names} if isinstance(value, dict) else value


def written(case: Case, number: int, to: int | str, path: Path) -> str | None:
    """The error of a batch of a case; None: it is written and synced. `to`: the port of a metastore, or a catalog of
    Glue. A COPY_ON_WRITE table, which only Hudi writes, is one of another type whose settings are changed: it has the
    same base files."""
    batch = case.batches[number]
    conf = {"hoodie.write.table.version": case.version, **case.options(batch, to if isinstance(to, int) else 0)}
    if isinstance(to, str):
        del conf[f"{SYNC}metastore.uris"]
        conf["hoodie.meta.sync.client.tool.class"] = "org.apache.hudi.aws.sync.AwsGlueCatalogSyncTool"
        conf["hoodie.aws.glue.region"] = to.removeprefix("glue:")
    is_cow = conf.pop(TYPE) == "COPY_ON_WRITE"
    on = {} if not is_cow else {f"{SYNC}enable": "false"}
    try:
        error = writer(batch.rows).conf({**conf, **on}).write(str(path)).after.error
        if is_cow:
            file = path / PROPERTIES
            file.write_text(file.read_text().replace("MERGE_ON_READ", "COPY_ON_WRITE"))
            where = to if isinstance(to, str) else f"hive:127.0.0.1:{to}"
            sync_table(Table.open(str(path), reading=True), SyncOptions(to=where, database=case.id))
    except PhantombaseError as failed:
        return str(failed)
    return error


VERSIONS = sorted({case.version for case in CASES})


@pytest.mark.parametrize("version", VERSIONS)
def test_our_tables_are_those_that_hudi_made(version: int, memory_metastore: MemoryMetastore, tmp_path: Path) -> None:
    compare(version, memory_metastore.port, lambda name, path: in_memory(memory_metastore, name, path), tmp_path)


@pytest.mark.parametrize("version", [pytest.param(6, marks=pytest.mark.deep), 9])
def test_tables_in_glue_are_those_in_a_metastore(version: int, memory_glue: MemoryGlue, tmp_path: Path) -> None:
    """But for who made them and when, and for Athena's parameter."""
    compare(
        version, memory_glue.where, lambda name, path: in_glue(memory_glue, name, path), tmp_path, without=_NOT_OF_GLUE
    )


def compare(
    version: int, to: int | str, there: Callable[[str, Path], Any], folder: Path, without: tuple[str, ...] = ()
) -> None:
    for case in (one for one in CASES if one.version == version):
        known, path = recorded()[case.id], folder / case.id
        assert known["digest"] == case.digest, "python -m tests.hudi.sync.record"
        for number, hudis in enumerate(known["after"]):
            error = written(case, number, to, path)
            if case.name in REFUSED or "refused" in hudis:
                assert error is not None, case.id
                assert REFUSED.get(case.name, "") in error
                break
            assert error is None, case.id
            ours, theirs = (left_out(essence(one), without) for one in (there(case.id, path), hudis["tables"]))
            assert differences(ours, theirs) == [], (case.id, number)


@pytest.mark.deep
def test_a_real_metastore_keeps_them_alike(hive_metastore: HiveMetastore, tmp_path: Path) -> None:
    """Field by field, with what the metastore fills in."""
    known, wrong = recorded(), dict[str, Any]()
    for case in (one for one in CASES if one.name not in REFUSED):
        for number, hudis in enumerate(known[case.id]["after"]):
            path = tmp_path / case.id
            error = written(case, number, hive_metastore.port, path)
            ours = everything(hive_metastore.port, case.id, path)
            if (found := differences(essence(ours["tables"]), essence(hudis["tables"]))) or error is not None:
                wrong[f"{case.id} {number}"] = error or found
    assert wrong == {}


@pytest.mark.interop
@pytest.mark.deep
def test_spark_finds_by_name_what_only_phantombase_wrote(hive_metastore: HiveMetastore, tmp_path: Path) -> None:
    """The snapshot has the rows of logs, the read-optimized table those of base files; a later write is found, too."""
    case, path = next(one for one in CASES if one.id == "v9_evolving"), tmp_path / "t"
    uri = f"thrift://127.0.0.1:{hive_metastore.port}"
    conf = {"spark.sql.catalogImplementation": "hive", "spark.hadoop.hive.metastore.uris": uri}
    for number in range(2):
        assert written(case, number, hive_metastore.port, path) is None
    with Judge(HUDI[9], java_options=BRIEF, more=conf) as judge:

        def found(name: str) -> list[tuple[Any, ...]]:
            rows = judge.sql(f"select id, p, v, ts, more from {case.id}.{name}")
            return sorted((row["id"], row["p"], row["v"], row["ts"], row["more"]) for row in rows)

        new, snapshot = ("1-new", "new", 1, 2, "w"), [("0-x", "x", 1, 2, "w"), ("1-y", "y", 1, 1, None)]
        assert found("t") == found("t_rt") == sorted([*snapshot, new])
        assert found("t_ro") == sorted([("0-x", "x", 1, 1, None), snapshot[1], new])
        names = [row["tableName"] for row in judge.sql(f"show tables in {case.id}")]
        assert sorted(names) == ["t", "t_ro", "t_rt"]
        parts = judge.sql(f"show partitions {case.id}.t_ro")
        assert sorted(row["partition"] for row in parts) == ["p=new", "p=x", "p=y"]
