"""The Hadoop configuration of a running Spark: where the JVM's own readers and writers find an object store."""

from __future__ import annotations

from typing import Any

from phantombase.timeline.storage.hadoop_options import names_at

_DEFAULTS = {"core-default.xml"}


def hadoop_conf(context: Any, path: str) -> dict[str, str]:
    """What is set there of the store of an URL: Hadoop's own defaults are not. Empty for a path."""
    if not (names := names_at(path)):
        return {}
    conf = context._jsc.hadoopConfiguration()
    found = {name: conf.get(name) for name in names}
    return {name: str(value) for name, value in found.items() if value is not None and not _is_default(conf, name)}


def _is_default(conf: Any, name: str) -> bool:
    return set(conf.getPropertySources(name) or ()) <= _DEFAULTS
