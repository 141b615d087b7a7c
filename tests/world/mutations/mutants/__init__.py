"""Mutants of the product, a file of them a subject; `python -m tests.world.mutations.__main__` runs them."""

from tests.world.mutations.mutants.daemon import CLOCKS, DAEMON, FRONT_DOOR, SERVING
from tests.world.mutations.mutants.formats import EDGES, FORMATS, METADATA
from tests.world.mutations.mutants.ground import GROUND, WRITERS
from tests.world.mutations.mutants.mutant import Mutant
from tests.world.mutations.mutants.protocol import PROTOCOL
from tests.world.mutations.mutants.reading import FILTERS, MERGING, QUERY_TYPES, SLICES, VIEW
from tests.world.mutations.mutants.services import (
    ARCHIVING,
    CLEANING,
    CLUSTERING,
    COPYING,
    ORPHANS,
    RESTORING,
    SERVICES,
    UNSCHEDULING,
)

MUTANTS: tuple[Mutant, ...] = (
    *MERGING,
    *SLICES,
    *VIEW,
    *FILTERS,
    *QUERY_TYPES,
    *FORMATS,
    *EDGES,
    *METADATA,
    *SERVICES,
    *ARCHIVING,
    *CLEANING,
    *ORPHANS,
    *CLUSTERING,
    *COPYING,
    *RESTORING,
    *UNSCHEDULING,
    *DAEMON,
    *SERVING,
    *FRONT_DOOR,
    *CLOCKS,
    *GROUND,
    *WRITERS,
    *PROTOCOL,
)
