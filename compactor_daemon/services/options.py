"""The services of a table, each in one line, and which of them a daemon or a writer runs, with which options.

A service is a folder of this package with an option dataclass and a module with `run_service`, see `RunService`. All
that runs services, or shows them, goes by the members of `Service`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib import import_module
from typing import Any

from phantombase.timeline.errors import UsageError

from ..archiving.choice import ArchiveOptions
from ..catalogs.options import SyncOptions
from ..cleaning.choice import CleanOptions, Policy
from ..cleaning.orphan_choice import OrphanOptions
from ..clustering.options import ClusterOptions
from ..metadata_services.due import MetadataOptions
from ..service_run import RunService

_DAY_S = 86_400.0


class Service(Enum):
    """The services of a table, in the order in which they run: archiving depends on the others. `kind`: its option
    dataclass. `module`: has `run_service`, and is imported when it runs. `least_s`: the least interval between two runs
    of a daemon that goes on."""

    METADATA = "metadata", MetadataOptions, "metadata_services.serve"
    CLUSTER = "cluster", ClusterOptions, "clustering.cluster"
    CLEAN = "clean", CleanOptions, "cleaning.clean"
    ORPHANS = "orphans", OrphanOptions, "cleaning.orphans", _DAY_S
    SYNC = "sync", SyncOptions, "catalogs.sync"
    ARCHIVE = "archive", ArchiveOptions, "archiving.archive"

    kind: type[Any]
    module: str
    least_s: float

    def __new__(cls, name: str, kind: type[Any], module: str, least_s: float = 0.0) -> Service:
        one = object.__new__(cls)
        one._value_ = name
        one.kind, one.module, one.least_s = kind, module, least_s
        return one

    @property
    def run(self) -> RunService:
        found: RunService = import_module(f"phantombase.compactor_daemon.{self.module}").run_service
        return found


_BY_NAME: Mapping[str, Service] = {str(service.value): service for service in Service}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """The services to run, with their options. `counted_commits`: delta commits that the
    trigger of compactions counts; the archiver keeps as many."""

    chosen: Mapping[Service, Any] = field(default_factory=dict)
    counted_commits: int = 0

    @staticmethod
    def of(counted_commits: int = 0, **options: Any) -> ServiceOptions:
        """`options`: by the name of the service; None: not this one."""
        chosen = {_BY_NAME[name]: given for name, given in options.items() if given is not None}
        return ServiceOptions(chosen=chosen, counted_commits=counted_commits)

    @property
    def services(self) -> tuple[Service, ...]:
        return tuple(s for s in Service if s in self.chosen)

    def options_of(self, service: Service) -> Any:
        return self.archiving if service is Service.ARCHIVE else self.chosen[service]

    @property
    def archiving(self) -> ArchiveOptions:
        """The options of archiving: what the cleaner retains and the trigger counts is kept on the active timeline."""
        own = self.chosen.get(Service.ARCHIVE) or ArchiveOptions()
        clean = self.chosen.get(Service.CLEAN)
        cleaned = clean.retained if clean is not None and clean.policy is Policy.COMMITS else 0
        counted = replace(own, compaction_commits=max(own.compaction_commits, self.counted_commits))
        return counted.beside_cleaner(cleaned)


def parse_services(text: str) -> frozenset[Service]:
    """The services of a list such as `clean,archive`. UsageError: not a service."""
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in _BY_NAME]:
        raise UsageError("not a service", expected=", ".join(_BY_NAME), found=", ".join(unknown) or repr(text))
    return frozenset(_BY_NAME[name] for name in names)


def usual_services(sync_to: str | None = None) -> frozenset[Service]:
    """Those that run where none is named: all but the removal of orphan files; a sync needs a catalog."""
    return frozenset(Service) - {Service.ORPHANS, *([Service.SYNC] if sync_to is None else [])}
