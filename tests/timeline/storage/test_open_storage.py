"""A storage is opened by URL in one place, and every command means the same table by the same URL."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from phantombase import compact, read, schedule, writer
from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.lake.listing import FolderListing
from phantombase.timeline.errors import NotATableError, StorageError, UnsupportedError, UsageError
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.table.table import Table
from tests.support.golden_tables import unzip_golden


@pytest.mark.parametrize(
    "url", ["{path}", "file://{path}", "file:{path}", "FILE:{path}/", "file:////{path}", "{path}/", "{path}/../{name}"]
)
def test_a_path_and_its_url_are_one_storage(url: str, tmp_path: Path) -> None:
    found = open_storage(url.format(path=tmp_path, name=tmp_path.name))
    assert found == open_storage(str(tmp_path))
    assert found.base_path == str(tmp_path)


@pytest.mark.parametrize(
    "url", ["hdfs:/lake/t", "s3:/b/t", "a:t", "file:t", "file://host/t", "file:", "file://", "file:/"]
)
def test_what_looks_like_a_url_is_no_folder_of_the_working_directory(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hadoop and Spark print local paths as `file:/data/t`. A write to a folder `file:` would be lost."""
    monkeypatch.chdir(tmp_path)
    rows = pa.table({"id": [1]})
    for use in (
        lambda: read(url),
        lambda: writer(rows).table("t").key("id").upsert(url),
        lambda: schedule(url, sole_writer=True),
        lambda: compact(url),
        lambda: ServedTables([url]),
        lambda: FolderListing(url, StorageOptions.of({})),
    ):
        with pytest.raises(UsageError, match=r"neither a path nor a URL|not a local path"):
            use()
    for words in (["schedule", url, "--sole-writer"], ["compact", url], ["status", url]):
        assert isinstance(CliRunner().invoke(app, words).exception, UsageError)
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_another_path_of_one_place(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "table")
    one, other = open_storage(str(tmp_path / "table")), open_storage(str(tmp_path / "link"))
    assert one.location == other.location
    assert one.base_path != other.base_path


@pytest.mark.parametrize("scheme", ["webhdfs", "http"])
def test_another_scheme_is_refused_with_those_there_are(scheme: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"{scheme}://bucket/t.*expected file://.*found {scheme}://"):
        Table.open(f"{scheme}://bucket/t")


def test_options_of_object_stores_are_refused_on_hdfs() -> None:
    """They would have no effect. Those of a Spark session are of no concern; values may be secret."""
    open_storage("hdfs://host:1/t", StorageOptions.of({}).over({"fs.s3a.endpoint": "http://x"}))
    with pytest.raises(UsageError, match=r"no effect on HDFS.*HADOOP_CONF_DIR.*found secret_access_key") as refused:
        open_storage("hdfs://host:1/t", {"secret_access_key": "abc123"})
    assert "abc123" not in str(refused.value)


def test_what_is_no_folder_is_no_table(tmp_path: Path) -> None:
    """What cannot be looked at is unknown, not absent: nobody may make a table there."""
    (tmp_path / "file").touch()
    for name in ("none", "file"):
        with pytest.raises(NotATableError, match="no such folder"):
            Table.open(str(tmp_path / name))
    with pytest.raises(StorageError):
        Table.open(str(tmp_path / "file" / "table"))


@pytest.mark.parametrize("command", ["schedule", "unschedule", "release"])
def test_commands_lock_the_table_that_a_url_names(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a folder of that name below the working directory, which would exclude nobody."""
    path = unzip_golden("v9_pending", tmp_path)
    instant = Table.open(str(path)).load_timeline().pending_merges[0].requested_time
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    more = {"schedule": [], "unschedule": [instant], "release": [instant, "--unreadable"]}[command]
    CliRunner().invoke(app, [command, f"file://{path}", *more, "--sole-writer"])
    assert list(elsewhere.iterdir()) == []
    assert (path / RECORDS / "table.lock").exists()
