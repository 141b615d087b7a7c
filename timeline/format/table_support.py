"""Decides by their properties alone which tables are supported (pure): table types, key generators, refusals.

`properties` is hoodie.properties as a mapping; callers use `TableConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping

from .layout import Layout
from .merge_settings import USE_HUDI as _USE_HUDI
from .merge_settings import merge_settings
from .merge_settings import refusal as _refusal

_KEY_GENERATOR_CLASS = "hoodie.table.keygenerator.class"
_KEY_GENERATOR_TYPE = "hoodie.table.keygenerator.type"
KEY_GENERATOR_CLASSES = {
    "org.apache.hudi.keygen.SimpleKeyGenerator": "SIMPLE",
    "org.apache.hudi.keygen.ComplexKeyGenerator": "COMPLEX",
    "org.apache.hudi.keygen.NonpartitionedKeyGenerator": "NON_PARTITION",
    "org.apache.hudi.keygen.TimestampBasedKeyGenerator": "TIMESTAMP",
    "org.apache.hudi.keygen.CustomKeyGenerator": "CUSTOM",
    "org.apache.hudi.keygen.GlobalDeleteKeyGenerator": "GLOBAL_DELETE",
}
"""Hudi's own key generators and their types; the `Avro` twins are left out."""


def key_generator_of(properties: Mapping[str, str]) -> str | None:
    """SIMPLE, COMPLEX, NON_PARTITION, ... by class, else by type; None if neither is set.

    Hudi's `Avro` twins make the same keys and get the same name; classes of others are USER_PROVIDED.
    """
    class_name = properties.get(_KEY_GENERATOR_CLASS)
    if class_name:
        return KEY_GENERATOR_CLASSES.get(class_name.replace("Avro", ""), "USER_PROVIDED")
    return properties.get(_KEY_GENERATOR_TYPE, "").removesuffix("_AVRO") or None


TABLE_TYPE = "hoodie.table.type"
COPY_ON_WRITE, MERGE_ON_READ = "COPY_ON_WRITE", "MERGE_ON_READ"

# What is refused, its property, Hudi's default, the one supported value, what to do.
_SETTINGS = (
    ("this base file format", "hoodie.table.base.file.format", "PARQUET", "PARQUET", _USE_HUDI),
    (
        "several base file formats",
        "hoodie.table.multiple.base.file.formats.enable",
        "false",
        "false",
        _USE_HUDI,
    ),
    (
        "dropped partition columns",
        "hoodie.datasource.write.drop.partition.columns",
        "false",
        "false",
        _USE_HUDI,
    ),
    ("bootstrapped tables", "hoodie.bootstrap.base.path", "", "", "Rewrite the table with Hudi first."),
    ("this table format", "hoodie.table.format", "native", "native", _USE_HUDI),
)
_LAYOUT_VERSION = "hoodie.timeline.layout.version"
_POPULATE_META_FIELDS = "hoodie.populate.meta.fields"
_VIRTUAL_KEY_GENERATORS = ("SIMPLE", "COMPLEX", "NON_PARTITION")


def check_readable(properties: Mapping[str, str], version: int) -> None:
    """UnsupportedError for the first setting with which reading base files would go wrong; it names the setting."""
    layout = Layout.of(version)
    for what, key, default, supported, todo in _SETTINGS:
        found = properties.get(key) or default
        if found.upper() != supported.upper():
            raise _refusal(what, key, supported or "none", found, todo)
    timeline_layout = "2" if layout.has_completion_times else "1"
    found = properties.get(_LAYOUT_VERSION) or timeline_layout
    if found != timeline_layout:
        raise _refusal("this timeline layout", _LAYOUT_VERSION, timeline_layout, found)


def check_mergeable(properties: Mapping[str, str], version: int) -> None:
    """UnsupportedError for the first setting with which log files would be merged wrongly; it names the setting."""
    merge_settings(properties, version)
    generator = key_generator_of(properties) or "none"
    if properties.get(_POPULATE_META_FIELDS, "").lower() == "false" and generator not in _VIRTUAL_KEY_GENERATORS:
        what = "virtual keys of this key generator"
        raise _refusal(what, _KEY_GENERATOR_TYPE, " or ".join(_VIRTUAL_KEY_GENERATORS), generator)


def check_changeable(properties: Mapping[str, str], version: int) -> None:
    """UnsupportedError for the first setting with which this table would be changed wrongly; it names the setting."""
    check_readable(properties, version)
    found = (properties.get(TABLE_TYPE) or COPY_ON_WRITE).upper()
    if found != MERGE_ON_READ:
        todo = "It has no log files, so there is nothing to compact; `read` reads it."
        raise _refusal("compactions and services of tables of this type", TABLE_TYPE, MERGE_ON_READ, found, todo)
    check_mergeable(properties, version)
