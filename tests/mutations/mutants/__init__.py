"""Mutants of the product, a file of them a subject; `python -m tests.mutations.__main__` runs them."""

from tests.mutations.mutants import (
    archiving,
    cleaning,
    clocks,
    daemon,
    filters,
    formats,
    ground,
    merging,
    metadata,
    protocol,
    query_types,
    restoring,
    services,
    serving,
    slices,
    unscheduling,
    view,
    writers,
)
from tests.mutations.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *merging.MUTANTS,
    *view.MUTANTS,
    *query_types.MUTANTS,
    *formats.MUTANTS,
    *ground.MUTANTS,
    *clocks.MUTANTS,
    *restoring.MUTANTS,
    *services.MUTANTS,
    *slices.MUTANTS,
    *protocol.MUTANTS,
    *unscheduling.MUTANTS,
    *daemon.MUTANTS,
    *filters.MUTANTS,
    *metadata.MUTANTS,
    *writers.MUTANTS,
    *archiving.MUTANTS,
    *cleaning.MUTANTS,
    *serving.MUTANTS,
)
