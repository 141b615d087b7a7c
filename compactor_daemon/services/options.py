"""Which services a daemon or a writer runs on a table, and with which options (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.errors import UsageError

from ..archiving.choice import ArchiveOptions
from ..cleaning.choice import CleanOptions, Policy
from ..clustering.options import ClusterOptions
from ..metadata_services.due import MetadataOptions


class Service(Enum):
    """The services of a table, in the order in which they run: archiving depends on the others."""

    METADATA = "metadata"
    CLUSTER = "cluster"
    CLEAN = "clean"
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The services to run; None: not this one.

    `counted_commits`: delta commits that the trigger of compactions counts; the archiver keeps as many. `output`,
    `threads`: how files are clustered, and how many at a time.
    """

    metadata: MetadataOptions | None = None
    cluster: ClusterOptions | None = None
    clean: CleanOptions | None = None
    archive: ArchiveOptions | None = None
    counted_commits: int = 0
    output: OutputOptions = field(default_factory=OutputOptions)
    threads: int = 1

    @property
    def services(self) -> tuple[Service, ...]:
        """The services to run, in their order."""
        return tuple(s for s in Service if getattr(self, s.value) is not None)

    @property
    def archiving(self) -> ArchiveOptions:
        """The options of archiving: what the cleaner retains and the trigger counts is kept on the active timeline."""
        own = self.archive or ArchiveOptions()
        cleaned = self.clean.retained if self.clean is not None and self.clean.policy is Policy.COMMITS else 0
        counted = replace(own, compaction_commits=max(own.compaction_commits, self.counted_commits))
        return counted.beside_cleaner(cleaned)


def parse_services(text: str) -> frozenset[Service]:
    """The services of a list such as `clean,archive`. UsageError: not a service."""
    known = {service.value: service for service in Service}
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise UsageError("not a service", expected=", ".join(known), found=", ".join(unknown) or repr(text))
    return frozenset(known[name] for name in names)
