"""Tables on real S3 servers: what is tested on an S3 server for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.golden_tables import GOLDEN
from tests.support.s3_table import check_read_and_compacted
from tests.support.s3_table import no_local_disk as no_local_disk
from tests.support.servers.real_s3_server import REAL

pytestmark = pytest.mark.deep


@pytest.mark.parametrize("server", REAL)
@pytest.mark.parametrize("name", GOLDEN)
def test_golden_tables_are_read_and_compacted(
    name: str, server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    check_read_and_compacted(name, request.getfixturevalue(server), tmp_path)
