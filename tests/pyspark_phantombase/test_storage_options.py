"""The Spark source takes the options of an object store, and sends no secret to its tasks."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from phantombase.timeline.errors import UsageError
from pyspark_phantombase.batch_reader import table_columns
from pyspark_phantombase.options import source_options
from tests.support.golden_tables import unzip_golden
from tests.support.servers.s3_server import S3Server


def test_options_of_the_store_are_named_as_such() -> None:
    """With `storage.` before them, or under Hadoop's names."""
    given = {"storage.region": "eu", "fs.s3a.secret.key": "hidden", "storage.AWS_ACCESS_KEY_ID": "hidden"}
    found = source_options({"path": "s3://b/t", **given})
    assert dict(found.storage.given)["region"] == "eu"
    assert b"hidden" not in pickle.dumps(found)
    assert "hidden" not in repr(found)
    with pytest.raises(UsageError, match="Did you mean region"):
        source_options({"path": "s3://b/t", "storage.regoin": "eu"})
    with pytest.raises(UsageError, match="unknown option of the source"):
        source_options({"path": "s3://b/t", "region": "eu"})


def test_the_table_is_opened_with_them(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = s3.upload(unzip_golden("v9_pending", tmp_path), s3.new_bucket(), "t")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    found = source_options({"path": url, "storage.endpoint": s3.url})
    assert "_hoodie_record_key" in table_columns(found).fieldNames()
