"""The ledger of one file group's compaction: its input, its output, and the equations between them (pure).

    base    base_rows = untouched + kept + replaced + deleted
    out     rows_out  = base_rows - deleted + inserts - expired
    log     log_entries >= log_keys; log_keys = update_keys + deletes
            update_keys = update_keys_in_base + inserts; deletes = delete_keys_in_base + deletes_of_absent
    link    kept + replaced + deleted = update_keys_in_base + delete_keys_in_base + duplicate_hits

An equation verifies something only if its terms come from independent sources: `base_rows` is compared with the base
file's footer, `log_entries` with block headers and Parquet footers, `rows_out` with the footer of the written file,
read back. Counts can agree by chance although rows do not, so `Identity` compares the rows themselves, as sums of row
hashes mod 2^64:

    out = base - removed + added

`base`: all rows of the base file; `removed`: replaced, deleted or expired rows; `added`: winning rows that replace a
row or are inserted; `out`: the rows of the written file, read back. A row is hashed by key, commit time and sequence
number, or by all columns if the table has no meta columns. The key of an added row is the key that was looked up, not
the row's own key: so a row that replaces the row of another key is detected."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..errors import LedgerError, decoding
from ..storage.folders import join

MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Sums of row hashes, mod 2^64."""

    base: int
    removed: int
    added: int
    out: int

    def check(self, where: str) -> None:
        """LedgerError if the output rows are not the expected ones."""
        expected = (self.base - self.removed + self.added) & MASK
        if self.out != expected:
            equation = "hash of the rows out = base - removed + added"
            raise _unbalanced(equation, where, f"{expected:016x}", f"{self.out:016x}")

    def to_json(self) -> dict[str, str]:
        """Sixteen hex digits for each sum: many readers of JSON numbers lose bits beyond 2^53."""
        return {name: f"{value:016x}" for name, value in asdict(self).items()}

    @staticmethod
    def from_json(sums: Any) -> Identity:
        """Inverse of `to_json`; KeyError, TypeError or ValueError on other input."""
        return Identity(**{f.name: int(sums[f.name], 16) for f in fields(Identity)})

    @staticmethod
    def total(parts: Iterable[Identity]) -> Identity:
        all_ = list(parts)
        return Identity(**{f.name: sum(getattr(i, f.name) for i in all_) & MASK for f in fields(Identity)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """Merged rows are left out whose date or time in a top-level column is before a moment, in ms since the epoch."""

    column: str
    before_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Counts of one file group: rows, except `log_entries` (entries of blocks) and names with `keys` (keys). `expired`:
    merged rows that were left out by `expiry`; None: none was."""

    base_rows: int
    untouched: int
    kept: int
    replaced: int
    deleted: int
    duplicate_hits: int
    log_entries: int
    log_keys: int
    update_keys: int
    update_keys_in_base: int
    delete_keys_in_base: int
    inserts: int
    deletes_of_absent: int
    rows_out: int
    expired: int = 0
    identity: Identity | None = None
    expiry: Expiry | None = None

    @property
    def superseded(self) -> int:
        """Log entries that lost against another entry of their key."""
        return self.log_entries - self.log_keys

    def check(self, *, footer_rows_in: int, header_entries: int, footer_rows_out: int, where: str) -> None:
        """LedgerError with both sides of the first equation that does not hold."""
        delete_keys = self.log_keys - self.update_keys
        touched = self.kept + self.replaced + self.deleted
        merged = self.base_rows - self.deleted + self.inserts
        equations = (
            ("base rows = footer of the base file", self.base_rows, footer_rows_in),
            ("log entries = block headers", self.log_entries, header_entries),
            ("rows out = footer of the written file", self.rows_out, footer_rows_out),
            ("base rows = untouched + kept + replaced + deleted", self.base_rows, self.untouched + touched),
            ("rows out = base rows - deleted + inserts - expired", self.rows_out, merged - self.expired),
            ("update keys = in base + inserts", self.update_keys, self.update_keys_in_base + self.inserts),
            ("delete keys = in base + absent", delete_keys, self.delete_keys_in_base + self.deletes_of_absent),
            (
                "touched base rows = keys found in base + duplicate hits",
                touched,
                self.update_keys_in_base + self.delete_keys_in_base + self.duplicate_hits,
            ),
        )
        for name, left, right in equations:
            if left != right:
                raise _unbalanced(name, where, str(right), str(left))
        if self.identity is not None:
            self.identity.check(where)
        if self.superseded < 0:
            raise LedgerError("the ledger does not balance: more keys than entries", path=where, found=str(self))

    def check_itself(self, where: str) -> None:
        """LedgerError if the counts contradict each other; no file is read."""
        self.check(
            footer_rows_in=self.base_rows, header_entries=self.log_entries, footer_rows_out=self.rows_out, where=where
        )

    def to_json(self) -> dict[str, Any]:
        """Plain counts, and the sums of `identity` in hex; of expired rows nothing, if there are none."""
        found: dict[str, Any] = {name: getattr(self, name) for name in COUNTS if name != _EXPIRED or self.expired}
        if self.identity is not None:
            found["identity"] = self.identity.to_json()
        if self.expiry is not None:
            found["expiry"] = asdict(self.expiry)
        return found

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Ledger:
        """Inverse of `to_json`; unknown names are ignored. KeyError, TypeError or ValueError on other input."""
        sums, expiry = values.get("identity"), values.get("expiry")
        counts = {name: int(values[name]) for name in COUNTS if name != _EXPIRED or name in values}
        return Ledger(
            **counts,
            identity=Identity.from_json(sums) if sums is not None else None,
            expiry=Expiry(column=expiry["column"], before_ms=int(expiry["before_ms"])) if expiry is not None else None,
        )


def _unbalanced(equation: str, where: str, expected: str, found: str) -> LedgerError:
    what, todo = f"the ledger does not balance: {equation}", "Nothing was published. Keep the files and report this."
    return LedgerError(what, path=where, expected=expected, found=found, todo=todo)


_EXPIRED = "expired"
COUNTS = tuple(f.name for f in fields(Ledger) if f.name not in ("identity", "expiry"))
"""The fields of a ledger that are counts."""


def total(ledgers: Iterable[Ledger]) -> Ledger:
    """The sum of several file groups' ledgers; with `identity` only if all of them have it."""
    parts = list(ledgers)
    sums = [part.identity for part in parts if part.identity is not None]
    return Ledger(
        **{name: sum(getattr(part, name) for part in parts) for name in COUNTS},
        identity=Identity.total(sums) if len(sums) == len(parts) else None,
    )


CLUSTERED = "phantombase.clustered"
"""The key for ledgers of a clustering, by the first new file group; the inputs are files of other groups."""
_COPIED, _MORE, _HASHES = "copied_row_groups", "more_outputs", "more_hashes"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLedger:
    """One compacted file group, or one group of a clustering. `inputs`: names of the merged files, base files first;
    `output`: name of the written file, None if there was nothing to write; `size` in bytes; `more`: names and sizes of
    the other files that a clustering wrote; `more_hashes`: of their rows, in hex, none if unknown; `skipped`: log
    blocks left out, by cause. `copied_row_groups`: those that a clustering copied as bytes."""

    partition: str
    file_id: str
    inputs: tuple[str, ...]
    output: str | None
    size: int
    ledger: Ledger
    skipped: Mapping[str, int]
    copied_row_groups: int = 0
    more: tuple[tuple[str, int], ...] = ()
    more_hashes: tuple[str, ...] = ()

    @property
    def hashes(self) -> tuple[int, ...]:
        """Of the rows of each written file; none if unknown."""
        if self.output is None or self.ledger.identity is None or len(self.more_hashes) != len(self.more):
            return ()
        others = [int(text, 16) for text in self.more_hashes]
        return ((self.ledger.identity.out - sum(others)) & MASK, *others)

    @property
    def outputs(self) -> tuple[tuple[str, int], ...]:
        return () if self.output is None else ((self.output, self.size), *self.more)

    @property
    def key(self) -> tuple[str, str]:
        return (self.partition, self.file_id)

    @property
    def base(self) -> str | None:
        """The base file among the inputs."""
        return next((name for name in self.inputs if not name.startswith(".")), None)

    def path(self, name: str) -> str:
        """Path of one of its files, relative to the table base."""
        return join(self.partition, name)


def encode_ledgers(groups: list[GroupLedger]) -> str:
    """The ledgers as stored."""
    body = {
        "total": total(g.ledger for g in groups).to_json(),
        "file_groups": {
            g.path(g.file_id): {
                **g.ledger.to_json(),
                "skipped": dict(g.skipped),
                "inputs": g.inputs,
                "output": g.output,
                "size": g.size,
                **({_COPIED: g.copied_row_groups} if g.copied_row_groups else {}),
                **({_MORE: g.more, _HASHES: g.more_hashes} if g.more else {}),
            }
            for g in groups
        },
    }
    return json.dumps(body, separators=(",", ":"))


def decode_ledgers(text: str, where: str) -> list[GroupLedger]:
    """Inverse of `encode_ledgers`; MalformedError names the file."""
    with decoding("unreadable ledger", where, ValueError, KeyError, TypeError, AttributeError):
        return [_group(key, values) for key, values in json.loads(text)["file_groups"].items()]


def expired_rows(text: str | None, where: str) -> int:
    """How many rows a commit left out as expired, by its ledgers (as stored; None: it has none). MalformedError."""
    with decoding("unreadable ledger", where, ValueError, KeyError, TypeError, AttributeError):
        return 0 if text is None else int(json.loads(text)["total"].get(_EXPIRED, 0))


def _group(key: str, values: Mapping[str, Any]) -> GroupLedger:
    partition, _, file_id = key.rpartition("/")
    return GroupLedger(
        partition=partition,
        file_id=file_id,
        inputs=tuple(values["inputs"]),
        output=values["output"],
        size=int(values["size"]),
        ledger=Ledger.from_json(values),
        skipped=dict(values["skipped"]),
        copied_row_groups=int(values.get(_COPIED, 0)),
        more=tuple((str(name), int(size)) for name, size in values.get(_MORE, ())),
        more_hashes=tuple(f"{int(text, 16):016x}" for text in values.get(_HASHES, ())),
    )
