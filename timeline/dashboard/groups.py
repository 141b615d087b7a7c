"""The file groups of a table, worst first, page by page (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache

from ..errors import UsageError
from ..service.states.debt import GroupDebt
from ..service.states.table_state import TableState
from ..terminal.plain import Row

PAGE = 50

_ORDERS = ("log_bytes", "log_files", "base_bytes", "read_amplification", "partition")


def groups_page(state: TableState, given: Mapping[str, str]) -> Row:
    """One page. `given`: the parameters `sort` (a column, greatest first), `partition`, `page` (from 1).

    UsageError: not such a column, page or partition.
    """
    order, partition = given.get("sort", _ORDERS[0]), given.get("partition") or None
    if order not in _ORDERS:
        raise UsageError("not a column to sort by", expected=", ".join(_ORDERS), found=repr(order))
    if partition is not None and partition not in state.partitions:
        raise UsageError("no such partition", found=repr(partition))
    found = _ordered(_Same(state), order, partition)
    pages = max(1, -(-len(found) // PAGE))
    page = _page(given.get("page", "1"), pages)
    return {
        "sort": order,
        "partition": partition,
        "page": page,
        "pages": pages,
        "count": len(found),
        "groups": [_row(d) for d in found[(page - 1) * PAGE : page * PAGE]],
    }


class _Same:
    """A state as a key: by identity."""

    def __init__(self, state: TableState) -> None:
        self.state = state

    def __hash__(self) -> int:
        return id(self.state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.state is other.state


@lru_cache(maxsize=4)
def _ordered(key: _Same, order: str, partition: str | None) -> list[GroupDebt]:
    """All of them: turning pages sorts once a state."""
    partitions = key.state.partitions
    chosen = partitions.values() if partition is None else [partitions[partition]]
    debts = [d for files in chosen for d in files.debts]
    if order == "partition":
        return sorted(debts, key=lambda d: (d.partition, d.file_id))
    return sorted(debts, key=lambda d: (-_value(d, order), d.partition, d.file_id))


def _value(debt: GroupDebt, order: str) -> float:
    if order == "read_amplification":
        return _amplification(debt) or float("inf")
    return float(getattr(debt, order))


def _amplification(debt: GroupDebt) -> float | None:
    """Bytes read over bytes of the base file; None without one."""
    return (debt.base_bytes + debt.log_bytes) / debt.base_bytes if debt.base_bytes else None


def _row(debt: GroupDebt) -> Row:
    amplification = _amplification(debt)
    return {**asdict(debt), "read_amplification": None if amplification is None else round(amplification, 3)}


def _page(text: str, pages: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= pages):
        raise UsageError("no such page", expected=f"1 to {pages}", found=repr(text))
    return int(text)
