"""Tables on real S3 servers: what is tested on an S3 server for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

import tests.timeline.storage.s3.test_on_s3 as on_s3
from tests.support.golden_tables import GOLDEN
from tests.timeline.storage.s3.test_on_s3 import no_local_disk as no_local_disk

pytestmark = pytest.mark.deep


@pytest.mark.parametrize("server", ["versity", pytest.param("minio", marks=pytest.mark.minio)])
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tables_are_read_and_compacted(
    name: str, server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The same rows as on disk, before and after, and as Hudi read them."""
    on_s3.test_golden_tables_are_read_and_compacted(name, request.getfixturevalue(server), tmp_path)
