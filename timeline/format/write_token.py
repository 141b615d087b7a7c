"""The write tokens in names of files that phantombase writes (pure).

A token is three numbers: those of Spark's task, stage and attempt in the names of Hudi's files. Here one of them is a
mark instead, far above all numbers that Spark gives to stages and attempts.
"""

from __future__ import annotations

COMPACTOR = 990_000_000
"""The last number of a compactor's token."""
WRITER = 980_000_000
"""The second number of a writer's token."""


def is_of_phantombase(token: str | None) -> bool:
    """Whether a file with this token was written by phantombase."""
    parts = (token or "").split("-")
    return len(parts) == 3 and (parts[2] == str(COMPACTOR) or parts[1] == str(WRITER))
