"""What needs no merge rules is served for tables whose rules are not known: `show`, and the read-optimized query."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase import UnsupportedError, read
from phantombase.timeline.cli.main import app
from phantombase.timeline.table.table import Table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden
from tests.support.refused_tables import set_property

CUSTOM = {
    "v6_plain": ("hoodie.compaction.payload.class", "com.example.Mine"),
    "v9_plain": ("hoodie.record.merge.mode", "CUSTOM"),
}


@pytest.mark.parametrize("name", CUSTOM)
def test_what_merges_nothing_is_served(name: str, tmp_path: Path) -> None:
    """And the snapshot is refused with the setting."""
    path = unzip_golden(name, tmp_path)
    key, value = CUSTOM[name]
    set_property(key, value)(path)
    shown = CliRunner().invoke(app, ["show", str(path)])
    assert shown.exit_code == 0, shown.output
    assert value in shown.output.replace("\n", "")
    rows = read(path, query="read-optimized").to_arrow()
    assert_same_rows(rows, pq.read_table(path.with_name(f"{path.name}.expected") / "read_optimized.parquet"))
    with pytest.raises(UnsupportedError, match=value):
        read(path).to_arrow()
    with pytest.raises(UnsupportedError, match=value):
        Table.open(str(path))
