"""The definitions of a metadata table's indexes, which Hudi 1.x records (pure).

What needs no values of columns is here: commands that show a table start without pyarrow.
"""

from __future__ import annotations

import json
from typing import Any

from ...errors import MalformedError

INDEX_DEFINITIONS = ".hoodie/.index_defs/index.json"


def record_index_is_partitioned(index_defs: bytes | None) -> bool:
    """Whether the record index separates keys by partition (possible since 1.1); without a definition it does not.

    MalformedError: damaged definitions.
    """
    options = definitions_in(index_defs).get("record_index", {}).get("indexOptions", {})
    return isinstance(options, dict) and str(options.get("isPartitioned", "")).lower() == "true"


def definitions_in(content: bytes | None) -> dict[str, Any]:
    """Definitions by the name of the index; none without a file. MalformedError: damaged."""
    if content is None:
        return {}
    try:
        definitions = json.loads(content)["indexDefinitions"]
        if not all(isinstance(d, dict) for d in definitions.values()):
            raise TypeError("an index definition is not an object")
        return dict(definitions)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedError("damaged index definitions", path=INDEX_DEFINITIONS, found=str(error)) from error
