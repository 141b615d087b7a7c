"""Tables with Hudi's change data capture are read: its `.cdc` log files hold no rows of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase import UnsupportedError
from phantombase.timeline.format.file_name import LogFileName, parse_data_file
from phantombase.timeline.table.table import Table
from tests.interop.shared_table import HUDI
from tests.judge.client import BRIEF, Judge
from tests.stock.cases import CASES
from tests.stock.verdict import agree
from tests.support.selection import deep


@pytest.mark.parametrize("version", [deep(6), deep(9)])
def test_reads_as_hudi_does(version: int, tmp_path: Path) -> None:
    path = tmp_path / "t"
    with Judge(HUDI[version], java_options=BRIEF) as judge:
        CASES["cdc"].make(judge, path, version)
        names = [parse_data_file(file.name) for file in path.glob("*/.*.cdc")]
        assert names
        assert all(isinstance(name, LogFileName) and name.is_cdc for name in names)
        agree(judge, path)
        agree(judge, path, "read_optimized")
    with pytest.raises(UnsupportedError, match="change data capture"):
        Table.open(str(path))
