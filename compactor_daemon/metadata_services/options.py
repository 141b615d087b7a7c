"""The option of the metadata table's services."""

from __future__ import annotations

from dataclasses import dataclass

from phantombase.timeline.option import check_least, least_of, option


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataOptions:
    """When the metadata table is compacted; the default is Hudi's (`hoodie.metadata.compact.max.delta.commits`)."""

    max_delta_commits: int = option(
        10, "delta commits of the metadata table since its last compaction that make the next one due", least=1
    )

    def __post_init__(self) -> None:
        check_least(self, least_of(MetadataOptions))


METADATA = MetadataOptions()
"""The defaults."""
