"""Tables on MinIO: what is tested on an S3 server for tests, on a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

import tests.timeline.storage.s3.test_on_s3 as on_s3
from tests.support.golden_tables import GOLDEN
from tests.support.servers.minio_server import MinioServer
from tests.timeline.storage.s3.test_on_s3 import no_local_disk as no_local_disk

pytestmark = pytest.mark.deep


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tables_are_read_and_compacted(name: str, minio: MinioServer, tmp_path: Path) -> None:
    """The same rows as on disk, before and after, and as Hudi read them."""
    on_s3.test_golden_tables_are_read_and_compacted(name, minio, tmp_path)
