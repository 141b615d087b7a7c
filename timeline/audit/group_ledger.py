"""What a compaction records: the ledger of every file group, with the names of the files that it covers.

It is stored twice: in the commit's extraMetadata under `LEDGER`, and in the audit log,
`.hoodie/.phantombase/audit/<instant>.json`, which remains when Hudi archives the commit, and is never deleted
(`audit_log`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import MalformedError
from ..merge.ledger import Ledger, total
from ..storage.contract import Storage
from ..storage.folders import RECORDS
from ..view.view import GroupKey

LEDGER = "phantombase.ledger"
"""Key in a commit's extraMetadata; its value: {"total": counts, "file_groups": {partition/file id: counts}}."""
CLUSTERED = "phantombase.clustered"
"""The same of a clustering, by new file group; its inputs are base files of others."""
_COPIED = "copied_row_groups"
AUDIT_LOG = f"{RECORDS}/audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLedger:
    """One compacted file group. `inputs`: names of the merged files, base file first; `output`: name of the written
    file, None if there was nothing to write; `size` in bytes; `skipped`: log blocks left out, by cause.
    `copied_row_groups`: those that a clustering copied as bytes."""

    partition: str
    file_id: str
    inputs: tuple[str, ...]
    output: str | None
    size: int
    ledger: Ledger
    skipped: Mapping[str, int]
    copied_row_groups: int = 0

    @property
    def key(self) -> GroupKey:
        """Partition and file id."""
        return (self.partition, self.file_id)

    @property
    def base(self) -> str | None:
        """The base file among the inputs."""
        return next((name for name in self.inputs if not name.startswith(".")), None)

    def path(self, name: str) -> str:
        """Path of one of its files, relative to the table base."""
        return f"{self.partition}/{name}" if self.partition else name


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
            }
            for g in groups
        },
    }
    return json.dumps(body, separators=(",", ":"))


def decode_ledgers(text: str, where: str) -> list[GroupLedger]:
    """Inverse of `encode_ledgers`; MalformedError names the file."""
    try:
        return [_group(key, values) for key, values in json.loads(text)["file_groups"].items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedError("unreadable ledger", path=where, found=f"{type(error).__name__}: {error}") from error


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
    )


def audit_path(instant: str, execution: int = 1) -> str:
    """Path of an instant's entry in the audit log. `execution`: 1 for the first that completed, 2 for the second."""
    return f"{AUDIT_LOG}/{instant}{'' if execution == 1 else f'-{execution}'}.json"


def logged_instants(storage: Storage) -> tuple[str, ...]:
    """Instants in the audit log, ascending."""
    if storage.find(AUDIT_LOG) is None:
        return ()
    names = (e.name for e in storage.list(AUDIT_LOG))
    return tuple(sorted({n.removesuffix(".json").partition("-")[0] for n in names if n.endswith(".json")}))
