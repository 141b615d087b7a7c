"""A state file as a record of the archive of version 6, `HoodieArchivedMetaEntry` (pure).

`archived_entry.avsc` is the schema that Hudi 0.15 puts into its archives, without descriptions.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import fastavro

from ..avro.container import any_record
from ..errors import MalformedError
from ..format.commit_metadata import as_record, decode
from ..format.instant import Instant, State

_SCHEMA = json.loads(files(__package__).joinpath("archived_entry.avsc").read_text())
SCHEMA_TEXT = json.dumps(_SCHEMA, separators=(",", ":"))
_PARSED = fastavro.parse_schema(_SCHEMA)
_COMMITS = frozenset({"commit", "deltacommit"})


def encode_entry(instant: Instant, content: bytes, where: str, written: str) -> bytes:
    """The record of one state file in Avro. `written`: when the file was written, as an instant time.

    MalformedError: the content is not that of the action.
    """
    record: dict[str, Any] = {field["name"]: None for field in _SCHEMA["fields"]}
    record |= {
        "commitTime": instant.requested_time,
        "actionType": instant.action,
        "actionState": instant.state.name,
        "stateTransitionTime": written,
        **_content(instant, content, where),
    }
    out = io.BytesIO()
    try:
        fastavro.schemaless_writer(out, _PARSED, record)
    except (ValueError, TypeError, KeyError) as error:
        raise MalformedError(
            "a state file that the archive's schema cannot hold", path=where, found=f"{type(error).__name__}: {error}"
        ) from error
    return out.getvalue()


def _content(instant: Instant, content: bytes, where: str) -> Mapping[str, Any]:
    """The field that Hudi sets for this action and state, if the file has content."""
    action, done = instant.action, instant.completed
    if action in _COMMITS and (done or content):
        return {"hoodieCommitMetadata": as_record(decode(content, where))}
    if action == "replacecommit" and done:
        return {"hoodieReplaceCommitMetadata": as_record(decode(content, where))}
    if not content:
        return {}
    if action == "replacecommit" and instant.state is State.INFLIGHT:
        return {"HoodieInflightReplaceMetadata": as_record(decode(content, where))}
    field = _FIELDS.get((action, done)) if done or instant.state is State.REQUESTED or action == "clean" else None
    return {field: any_record(content, where)} if field else {}


_FIELDS = {
    ("clean", False): "hoodieCleanerPlan",
    ("clean", True): "hoodieCleanMetadata",
    ("compaction", False): "hoodieCompactionPlan",
    ("logcompaction", False): "hoodieCompactionPlan",
    ("replacecommit", False): "hoodieRequestedReplaceMetadata",
    ("rollback", True): "hoodieRollbackMetadata",
}
