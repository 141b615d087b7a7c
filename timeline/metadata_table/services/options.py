"""The option of the metadata table's services."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataOptions:
    """`max_delta_commits`: so many delta commits of the metadata table make its compaction due, as Hudi's
    `hoodie.metadata.compact.max.delta.commits`, whose default it has. UsageError: less than 1.
    """

    max_delta_commits: int = 10

    def __post_init__(self) -> None:
        if self.max_delta_commits < 1:
            raise UsageError(
                "a compaction of the metadata table needs a delta commit",
                expected="max_delta_commits of at least 1",
                found=str(self.max_delta_commits),
            )
