"""Tables whose data are not what their settings say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow.compute as pc

from phantombase.timeline.read.table_read import ReadOptions, read_table
from phantombase.timeline.table.table import Table
from tests.support.compare_rows import assert_same_rows

HIVE = "hoodie.datasource.write.hive_style_partitioning"
URL = "hoodie.datasource.write.partitionpath.urlencode"
KIND = "hoodie.table.keygenerator.type"


def changed(table: Path, settings: Mapping[str, str | None]) -> None:
    """Gives hoodie.properties other settings; None: the setting is taken out."""
    file = table / ".hoodie" / "hoodie.properties"
    text = file.read_text()
    for name, value in settings.items():
        text = re.sub(rf"(?m)^{re.escape(name)}=.*\n", "", text) + (f"{name}={value}\n" if value is not None else "")
    file.write_text(text)


def check_filters(path: Path, columns: tuple[str, ...]) -> None:
    """Filters by each value of these columns."""
    table = Table.open(str(path), reading=True)
    everything = read_table(table)
    for column in columns:
        for value in everything[column].unique().to_pylist():
            same = pc.fill_null(pc.equal(everything[column], value), False)
            asked = {f"{column} = '{value}'": same, f"{column} like '{str(value)[:1]}%'": None}
            if value is None:
                asked = {f"{column} is null": pc.is_null(everything[column])}
            for text, mask in asked.items():
                if mask is None:
                    mask = pc.fill_null(pc.starts_with(everything[column], str(value)[:1]), False)
                assert_same_rows(read_table(table, ReadOptions(filter=text)), everything.filter(mask))
