"""What a job says by methods and options beside Hudi's names: neither undoes the other silently (pure)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from phantombase.compactor_daemon.hudi_names import contradiction

from ..options import WriteOptions

SERVICES = "hoodie.table.services.enabled"
"""Turns every service after a write off, whatever the names of the services say."""
_INDEX = "hoodie.index.type"


def check_said(
    found: Mapping[str, Any],
    options: WriteOptions,
    said: Collection[str],
    conf: Mapping[str, str],
    option_of: Callable[[str], str | None],
) -> None:
    """UsageError: a name of `conf` says something else than an option of the write that the job has set itself.

    `found`: the fields that `conf` sets, `said`: those that the job has set. Of options that are groups of others,
    such as `clean`, those count that differ from their defaults. `option_of`: the field that a name sets.
    """

    def refuse(field: str, mine: Any, now: Any) -> None:
        top = field.partition(".")[0]
        own = [name for name in conf if (option_of(name) or "").startswith(top)]
        other = next((name for name in (*own, SERVICES) if name in conf), _INDEX)
        raise contradiction(f"option {field}", _plain(mine), other, conf.get(other, _plain(now)))

    for field in sorted(found.keys() & set(said)):
        for path, mine, now in _differing(field, getattr(options, field), found[field]):
            refuse(path, mine, now)
    for field in ("combine_upserts", "combine_inserts"):
        if "combine" in said and options.combine not in (None, found.get(field, options.combine)):
            refuse("combine", options.combine, found[field])
    if "buckets" in said and options.buckets is not None and conf.get(_INDEX, "BUCKET").strip().upper() != "BUCKET":
        refuse("buckets", options.buckets, conf[_INDEX])


def _differing(path: str, mine: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Each option of `mine`, by its path, that `now` says otherwise."""
    if is_dataclass(mine) and now is not None:
        usual: Any = type(mine)()  # type: ignore[misc]
        for one in fields(mine):
            own = getattr(mine, one.name)
            if own != getattr(usual, one.name) and own != getattr(now, one.name):
                yield from _differing(f"{path}.{one.name}", own, getattr(now, one.name))
    elif mine != now and not (mine is None and is_dataclass(now)):
        yield path, mine, now


def _plain(value: Any) -> str:
    return "on" if is_dataclass(value) else str(getattr(value, "value", value))
