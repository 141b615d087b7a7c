"""Hudi's own configuration names for options of ours: `--conf hoodie.parquet.compression.codec=gzip`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from compactor_daemon.options import Bloom, Codec
from timeline.errors import UsageError


def _codec(text: str) -> Codec:
    return Codec({"uncompressed": "none", "lz4_raw": "lz4"}.get(text.lower(), text.lower()))


def _bloom(text: str) -> Bloom:
    return {"true": Bloom.ON, "false": Bloom.OFF}[text.lower()]


_KNOWN: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "hoodie.parquet.compression.codec": ("codec", _codec),
    "hoodie.parquet.bloom.filter.enabled": ("bloom", _bloom),
    "hoodie.memory.compaction.max.size": ("memory_limit", int),
    "hoodie.memory.spillable.map.path": ("spill_dir", str),
}

HUDI_NAMES = frozenset(_KNOWN)
"""The names `parse_hudi_conf` knows."""


def parse_hudi_conf(pairs: Iterable[str]) -> dict[str, Any]:
    """`name=value` pairs as fields of OutputOptions; UsageError for names without a meaning here."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in _KNOWN:
            raise UsageError("not a configuration that has a meaning here", expected=", ".join(_KNOWN), found=pair)
        field, convert = _KNOWN[name]
        try:
            options[field] = convert(value)
        except (KeyError, ValueError) as error:
            raise UsageError(f"not a value of {name}", found=value) from error
    return options
