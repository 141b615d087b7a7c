"""Where the tables of a catalog come from: folders, a Hive Metastore."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.catalogs.catalog import CatalogTable, base_path
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.fleet.catalog import CatalogListing, FolderListing
from phantombase.timeline.errors import StorageError, UsageError
from phantombase.timeline.storage.contract import Entry
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.storage.storage_options import StorageOptions
from tests.support.compaction_steps import AS_A_USER, as_a_user, open_table
from tests.support.daemons import hostile_table, lake_of, pending_table
from tests.support.places import ROOT, capture_logs
from tests.support.selection import for_each
from tests.support.servers.hive_metastore import HiveMetastore
from tests.support.servers.s3_server import S3Server

HUDI = "org.apache.hudi.hadoop.realtime.HoodieParquetRealtimeInputFormat"


def tables_of(root: Path) -> list[str]:
    return list(FolderListing(str(root), StorageOptions()).tables())


def test_tables_are_found_at_some_depth_and_none_below_a_table(tmp_path: Path) -> None:
    for name in ("a", "db/b", "db/c", "x/y/z", "x/y/too/deep", "a/2026/inner", ".hidden/t"):
        (tmp_path / name / ".hoodie").mkdir(parents=True)
    (tmp_path / "plain").mkdir()
    (tmp_path / "file").write_text("")
    assert tables_of(tmp_path) == ["a", "db/b", "db/c", "x/y/z"]
    assert FolderListing(f"{tmp_path}/", StorageOptions()).tables()["db/b"] == f"{tmp_path}/db/b"


def test_tables_that_come_and_go_are_seen(tmp_path: Path) -> None:
    (tmp_path / "a" / ".hoodie").mkdir(parents=True)
    listing = FolderListing(str(tmp_path), StorageOptions())
    assert list(listing.tables()) == ["a"]
    (tmp_path / "db" / "b" / ".hoodie").mkdir(parents=True)
    shutil.rmtree(tmp_path / "a")
    assert list(listing.tables()) == ["db/b"]


@pytest.mark.parametrize("name", ["nothing/there", "table"])
def test_a_wrong_root_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "table" / ".hoodie").mkdir(parents=True)
    with pytest.raises(UsageError, match="root is a table" if name == "table" else "does not exist"):
        tables_of(tmp_path / name)


@as_a_user
def test_a_closed_folder_may_be_a_table(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    code = "import sys; from tests.compactor_daemon.fleet.test_listing import *; print(tables_of(Path(sys.argv[1])))"
    command = [*AS_A_USER, sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "['closed']\n"


def test_a_known_table_costs_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        (tmp_path / f"t{n}" / ".hoodie").mkdir(parents=True)
    listing = FolderListing(str(tmp_path), StorageOptions())
    first = listing.tables()
    asked: list[str] = []
    listed = LocalStorage.list

    def counted(self: LocalStorage, folder: str) -> list[Entry]:
        asked.append(folder)
        return listed(self, folder)

    monkeypatch.setattr(LocalStorage, "list", counted)
    assert listing.tables() == first
    assert asked == [""]


def test_the_tables_of_a_bucket(s3: S3Server) -> None:
    root = f"s3://{s3.new_bucket()}/lake"
    storage = open_storage(root)
    for name in ("a", "db/b"):
        storage.put_if_absent(f"{name}/.hoodie/hoodie.properties", b"x")
    storage.put_if_absent("plain/file", b"x")
    assert FolderListing(root, StorageOptions()).tables() == {"a": f"{root}/a", "db/b": f"{root}/db/b"}


@pytest.mark.deep
def test_the_hudi_tables_of_a_hive_metastore(tmp_path: Path, hive_metastore: HiveMetastore) -> None:
    """Listed, served and compacted; a MERGE_ON_READ table has several names, other tables are left out."""
    original = pending_table(tmp_path / "original")
    orders, rides, hidden = lake_of(tmp_path / "lake", ["orders", "rides", "hidden"], original)
    hive_metastore.create(
        "default",
        {
            "orders_ro": (f"file:{orders}", "org.apache.hudi.hadoop.HoodieParquetInputFormat", {}),
            "orders_rt": (f"file:{orders}", HUDI, {}),
            "orders": (f"file:{orders}", "none", {"spark.sql.sources.provider": "hudi"}),
            "text": (f"file:{tmp_path}/text", "org.apache.hadoop.mapred.TextInputFormat", {}),
        },
    )
    hive_metastore.create("db", {"rides": (f"file:{rides}", HUDI, {}), "hidden": (f"file:{hidden}", HUDI, {})})
    where = f"127.0.0.1:{hive_metastore.port}"
    assert CatalogListing(f"hive:{where}", StorageOptions()).tables() == {
        "db/hidden": str(hidden),
        "db/rides": str(rides),
        "default/orders": str(orders),
    }
    line = ["run", "--catalog", f"hive:{where}", "--exclude", "hidden", "--once", "--executor", "local"]
    ran = CliRunner().invoke(app, line)
    assert ran.exit_code == 0, ran.output
    left = [p.name for p in (orders, rides, hidden) if open_table(p).load_timeline().pending_compactions]
    assert left == ["hidden"]


@for_each(
    [
        ("file:/data/t", HUDI, {}, "/data/t"),
        ("file:///data/t/", HUDI, {}, "file:///data/t"),
        ("s3://lake/t", "", {"spark.sql.sources.provider": "HUDI"}, "s3://lake/t"),
        ("s3://lake/t", "org.apache.hadoop.mapred.TextInputFormat", {}, None),
        ("", HUDI, {}, ""),
    ]
)
def test_the_base_path_of_a_table_of_a_metastore(
    location: str, input_format: str, parameters: dict[str, str], path: str | None
) -> None:
    table = CatalogTable(
        database="d",
        name="t",
        location=location,
        columns=(),
        partition_columns=(),
        input_format=input_format,
        serde_properties={},
        parameters=parameters,
    )
    assert (base_path(location) if table.is_hudi else None) == path


def test_a_metastore_that_does_not_answer_is_one_error() -> None:
    with pytest.raises(StorageError, match="connection refused"):
        CatalogListing("hive:127.0.0.1:1", StorageOptions()).tables()
    for wrong in ("", "host:port", ":1", "thrift://host:9083", "//host:9083", "host:9083,:9083"):
        with pytest.raises(UsageError, match=r"not a Hive Metastore.*without thrift://"):
            CatalogListing(f"hive:{wrong}", StorageOptions())
    assert CatalogListing("hive:host", StorageOptions()).shown == "hive:host:9083"


def test_a_daemon_that_runs_once_serves_a_lake_with_a_bad_table(tmp_path: Path) -> None:
    original = pending_table(tmp_path / "original")
    lake_of(tmp_path / "lake", ["sales_eu", "sales_us", "sales_tmp", "other"], original)
    hostile_table(tmp_path / "lake" / "sales_bad", original)
    (tmp_path / "fleet.toml").write_text(
        f'[run]\nroot = "{tmp_path}/lake"\ninclude = ["sales_*"]\nexclude = ["*_tmp"]\n'
        '[[pool]]\nmatch = "sales_eu"\nweight = 3\nslo = 900\nhours = "00:00-23:59 UTC"\nquota = 0.5\n'
        'bytes-per-hour = "1g"\ntrigger = "always"\n'
    )
    line = ["run", "--config", str(tmp_path / "fleet.toml"), "--once", "--executor", "local", "--json"]
    ran = CliRunner().invoke(app, line)
    data = json.loads(ran.stdout)
    assert ran.exit_code == 1, "a table could not be served"
    assert sorted(Path(one["table"]).name for one in data["compacted"]) == ["sales_eu", "sales_us"]
    assert [Path(table).name for table in data["problems"]] == ["sales_bad"]
    line = ["status", "--config", str(tmp_path / "fleet.toml"), "--root", f"{tmp_path}/lake", "--json"]
    rows = json.loads(CliRunner().invoke(app, line).stdout)["tables"]
    assert {row["name"]: row["pool"] for row in rows}["sales_eu"] == "sales_eu"
    shown = CliRunner().invoke(app, ["status", "--root", f"{tmp_path}/lake", "--include", "sales_*"])
    assert "4 tables, 1 pending, 1 broken, 3 well" in shown.output


def test_a_pattern_that_matches_no_table_is_named(tmp_path: Path) -> None:
    """Of pools: also one whose tables an earlier pool has, or that are left out. Where tables are named, too."""
    lake_of(tmp_path / "lake", ["sales_eu", "old"], pending_table(tmp_path / "original"))
    (tmp_path / "fleet.toml").write_text(
        "".join(f'[[pool]]\nmatch = "{pattern}"\nweight = 2\n' for pattern in ("sales_*", "sale_*", "*_eu", "old", "*"))
    )
    config = ["--config", str(tmp_path / "fleet.toml")]
    found = ["--root", f"{tmp_path}/lake", *config, "--exclude", "old", "--include", "sales_*", "--include", "hr"]
    pools = {"event": "pools_have_no_table", "patterns": "sale_* *_eu old"}
    patterns = {"event": "patterns_match_no_table", "patterns": "hr"}
    run = ["run", "--once", "--executor", "local", "--sole-writer"]
    for line, warned in (
        (["status", *found], [patterns, pools]),
        ([*run, *found], [patterns, pools]),
        ([*run, f"{tmp_path}/lake/sales_eu", *config], [pools]),
    ):
        with capture_logs() as logs:
            ran = CliRunner().invoke(app, line)
        assert ran.exit_code == 0, ran.output
        told = [log for log in logs if log["event"].endswith("no_table")]
        assert [{name: log[name] for name in ("event", "patterns")} for log in told] == warned
    shown = CliRunner().invoke(app, ["status", *found])
    assert "pools without a table: sale_*, *_eu, old" in " ".join(shown.output.split())
    data = json.loads(CliRunner().invoke(app, ["status", *found, "--json"]).stdout)
    assert (data["patterns_without_table"], data["pools_without_table"]) == (["hr"], ["sale_*", "*_eu", "old"])


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        ('match = "a"\nwait = 3', "Did you mean"),
        ("weight = 3", "a pool names its tables"),
        ('match = "a"\nhours = "now"', "not hours of a day"),
        ('match = "a"\nquota = 3', "quota is a part"),
        ('match = "a"\nbytes-per-hour = "much"', "not a size"),
        ('match = "a"\ntrigger = "sometimes"', "not a value"),
    ],
)
def test_a_mistake_in_a_lane_is_one_error(tmp_path: Path, pool: str, expected: str) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "fleet.toml").write_text(f"[[pool]]\n{pool}\n")
    line = ["run", "--root", f"{tmp_path}/lake", "--config", str(tmp_path / "fleet.toml"), "--once"]
    ran = CliRunner().invoke(app, line)
    assert isinstance(ran.exception, UsageError)
    assert expected in str(ran.exception)
    assert "fleet.toml [[pool]] 1" in str(ran.exception)


@pytest.mark.parametrize("line", [["run"], ["run", "t", "--root", "r"], ["run", "t", "--include", "x"]])
def test_tables_are_named_or_found(line: list[str]) -> None:
    assert isinstance(CliRunner().invoke(app, line).exception, UsageError)
