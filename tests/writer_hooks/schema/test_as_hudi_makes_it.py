"""The golden tables are real Hudi's answers: of the same description we make the same table, keys, paths and schema.

`tests/hudi/cases/test_new_tables.py` asks Hudi itself, about kinds of keys and partitions that golden tables have not.
"""

from __future__ import annotations

from pathlib import Path

import javaproperties
import pytest

from phantombase.timeline.format.merge_settings import KEY_GENERATOR_CLASSES
from phantombase.timeline.format.record_key import KeySplit, bucket_of, bucket_of_file_id
from phantombase.timeline.format.table_config import MergeMode
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.schema.key_encoding import one_field_prefixed
from phantombase.writer_hooks.schema.key_generator import KeyGenerator
from phantombase.writer_hooks.schema.new_table import NewTable, create_table
from phantombase.writer_hooks.schema.table_schema import new_schema
from tests.support.golden_tables import GOLDEN, golden_case, unzip_golden
from tests.support.selection import deep

_OTHERWISE = {"v6_compacted_cleaned", "v6_rolled_back", "v6_savepointed", "v8_rolled_back", "v9_rolled_back"} | {
    name for name in GOLDEN if golden_case(name) in ("with_metadata_table", "upgraded")
}
"""Made by SQL, by Hudi 1.0, or changed since: their settings say more, or other things."""
_USUAL = ("plain", "complex_key", "commit_time", "bucket_nonpart", "virtual_keys", "multi_ordering")
_SAID_BY_WRITERS = ("hoodie.table.legacy.payload.class", "hoodie.table.partition_extractor_class")
_MODES = {"DefaultHoodieRecordPayload": MergeMode.EVENT_TIME, "OverwriteWithLatestAvroPayload": MergeMode.COMMIT_TIME}
_BUCKETS = 4


def settings(path: Path) -> dict[str, str]:
    """hoodie.properties without what a writer's way of asking adds."""
    read = javaproperties.loads((path / ".hoodie/hoodie.properties").read_text())
    return {name: value for name, value in read.items() if name not in _SAID_BY_WRITERS}


def folders(path: Path) -> set[str]:
    """The folders of Hudi's metadata."""
    found = (str(p.relative_to(path)) for p in (path / ".hoodie").rglob("*") if p.is_dir())
    return {name for name in found if "phantombase" not in name}


def description(said: dict[str, str]) -> NewTable:
    """What the settings of a table were asked for by."""

    def fields(*names: str) -> tuple[str, ...]:
        return tuple(filter(None, ",".join(said.get(f"hoodie.table.{name}", "") for name in names).split(",")))

    mode, write = said.get("hoodie.record.merge.mode"), "hoodie.datasource.write."
    return NewTable(
        name=said["hoodie.table.name"],
        version=int(said["hoodie.table.version"]),
        key_fields=fields("recordkey.fields"),
        partition_fields=fields("partition.fields"),
        ordering_fields=fields("precombine.field", "ordering.fields"),
        key_generator=said.get("hoodie.table.keygenerator.type")
        or KEY_GENERATOR_CLASSES[said["hoodie.table.keygenerator.class"]],
        merge_mode=MergeMode(mode) if mode else _MODES[said["hoodie.compaction.payload.class"].rpartition(".")[2]],
        hive_style=said[f"{write}hive_style_partitioning"] == "true",
        url_encode=said[f"{write}partitionpath.urlencode"] == "true",
        meta_columns=said["hoodie.populate.meta.fields"] == "true",
    )


def is_usual(name: str) -> bool:
    return golden_case(name) in _USUAL and not (name.startswith("v8_") and golden_case(name) != "plain")


@pytest.mark.parametrize("name", [n if is_usual(n) else deep(n) for n in GOLDEN if n not in _OTHERWISE])
def test_the_same_table(name: str, tmp_path: Path) -> None:
    """Settings, folders, the text of each key, each partition's folder, and the schema in the commit."""
    hudis, ours = unzip_golden(name, tmp_path), tmp_path / "ours"
    said = settings(hudis)
    spec = description(said)
    create_table(LocalStorage(str(ours)), spec)
    assert settings(ours) == said
    assert folders(ours) == folders(hudis)
    table = Table.open(str(hudis))
    rows = read_table(table)
    data = rows.select([name for name in rows.column_names if not name.startswith("_hoodie_")])
    assert new_schema(spec.name, data.schema) == table.snapshot().newest_schema().commit_text
    if spec.meta_columns:
        generator = KeyGenerator.of(table.config, one_field_prefixed=one_field_prefixed(table), writer={})
        assert generator.keys(data).to_pylist() == rows["_hoodie_record_key"].to_pylist()
        assert generator.partition_paths(data).to_pylist() == rows["_hoodie_partition_path"].to_pylist()
    if golden_case(name) == "bucket_nonpart":
        keys = rows["_hoodie_record_key"].combine_chunks()
        files = [bucket_of_file_id(file) for file in rows["_hoodie_file_name"].to_pylist()]
        assert bucket_of(keys, ("id",), _BUCKETS, KeySplit.of(table.layout)).tolist() == files
