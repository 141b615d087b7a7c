"""Hudi's configuration names for options of phantombase: `--conf hoodie.parquet.compression.codec=gzip` (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from phantombase.timeline.errors import UsageError
from phantombase.timeline.parquet.output_options import Bloom, Codec
from phantombase.timeline.planning.strategies import STRATEGY_CONF, Strategy
from phantombase.timeline.planning.triggers import TriggerStrategy

from .hudi_names import Kind, contradiction, hudi_names, nearest, put_once


def _codec(text: str) -> Codec:
    return Codec({"uncompressed": "none", "lz4_raw": "lz4"}.get(text.lower(), text.lower()))


def _bloom(text: str) -> Bloom:
    return {"true": Bloom.ON, "false": Bloom.OFF}[text.lower()]


def _strategy(text: str) -> TriggerStrategy:
    return _STRATEGIES[text.upper()]


_STRATEGIES = {s.name: s for s in TriggerStrategy if s is not TriggerStrategy.ALWAYS}
"""By Hudi's names; ALWAYS is not one of them."""

_Known: TypeAlias = Mapping[str, tuple[str, Callable[[str], Any]]]
"""By Hudi's name: the name of the field here, and the function that makes its value of text."""

_KNOWN: _Known = {
    "hoodie.parquet.compression.codec": ("codec", _codec),
    "hoodie.parquet.bloom.filter.enabled": ("bloom", _bloom),
    "hoodie.memory.compaction.max.size": ("memory_limit", int),
    "hoodie.memory.spillable.map.path": ("spill_dir", str),
}

SCHEDULE_CONF: _Known = {
    "hoodie.compact.inline.trigger.strategy": ("strategy", _strategy),
    "hoodie.compact.inline.max.delta.commits": ("max_delta_commits", int),
    "hoodie.compact.inline.max.delta.seconds": ("max_delta_seconds", int),
    **STRATEGY_CONF,
}

HUDI_NAMES = frozenset(_KNOWN)
"""The names `parse_hudi_conf` knows."""


def parse_hudi_conf(pairs: Iterable[str]) -> dict[str, Any]:
    """`name=value` pairs as fields of OutputOptions; UsageError for other names that are not at a default."""
    return _parsed(pairs, _KNOWN)


def parse_schedule_conf(pairs: Iterable[str], strategies: tuple[Strategy, ...] = ()) -> dict[str, Any]:
    """`name=value` pairs as fields of ScheduleOptions; UsageError for names without a meaning here.

    `strategies`: those chosen by other options; without any, settings of strategies belong to Hudi's default strategy.
    """
    found = _parsed(pairs, SCHEDULE_CONF)
    if not strategies and "strategies" not in found and any(field in found for field, _ in STRATEGY_CONF.values()):
        found["strategies"] = (Strategy.LOG_FILE_SIZE,)  # Hudi's default, to which these settings belong
    return found


def _parsed(pairs: Iterable[str], known: _Known) -> dict[str, Any]:
    options: dict[str, Any] = {}
    said: dict[str, str] = {}
    conf: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in known and (one := hudi_names().get(name)) is not None and one.agrees(value):
            continue  # Hudi's default, spelled out
        if name not in known:
            raise UsageError(
                "not a known Hudi configuration", expected=", ".join(known), found=pair, todo=_todo(name, known)
            )
        field, convert = known[name]
        try:
            converted = convert(value)
        except (KeyError, ValueError) as error:
            raise UsageError(f"not a value of {name}", found=value) from error
        if name in conf and options[field] != converted:
            raise contradiction(name, conf[name], name, value)
        put_once(options, field, converted, name, conf | {name: value}, said)
        conf[name] = value
    return options


def _todo(name: str, known: Iterable[str]) -> str | None:
    """What to do about a name that a command does not take."""
    one = hudi_names().get(name)
    if one is None:
        near = nearest(name, [*known, *hudi_names()])
        return f"Did you mean {near}?" if near else None
    if one.kind is Kind.SET:
        return "Leave it out here: writes take it, and commands have options."
    return f"Leave it out: {one.why}."
