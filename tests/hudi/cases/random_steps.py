"""Random steps of a table that Hudi and phantombase work on: one is chosen, taken if it can be, and looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from tests.hudi.cases.shared_table import SharedTable


class RandomSteps:
    """`said` tells what has happened to the table. A step says whether it could be taken."""

    random: Random
    table: SharedTable
    said: list[str]

    def steps(self) -> Mapping[Callable[[], bool], int]:
        """What may happen next, and how often."""
        raise NotImplementedError

    def look(self, _step: str) -> None:
        """Asks both for all rows behind a step."""
        raise NotImplementedError

    def step(self) -> None:
        """Takes one step that can be taken, then looks."""
        steps = self.steps()
        while True:
            (step,) = self.random.choices(list(steps), list(steps.values()))
            self.said.append(step.__name__)
            if step():
                break
            self.said.pop()
        self.look(step.__name__)

    def we_schedule(self) -> bool:
        return self.table.we_may_schedule() is not None

    def hudi_compacts(self) -> bool:
        pending = self.table.pending()
        if pending:
            self.table.hudi_compacts(self.random.choice(pending))
        return bool(pending)
