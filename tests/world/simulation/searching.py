"""Searches through worlds for one that fails."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.world.simulation.explore import Explorer, Instance, Twist
from tests.world.simulation.played import Stage
from tests.world.simulation.story import Plot, Story


def played(seed: int, stage: Stage, *, trace: bool = False, plot: Plot | None = None) -> Story:
    """A story to its end; AssertionError or an error of the tree with the seed in a note."""
    story = Story(seed, trace=trace, plot=plot)
    try:
        story.play(stage)
    except BaseException as error:
        error.add_note(f"PHANTOMBASE_SEED={seed}, {story.plot}")
        raise
    finally:
        print("\n".join(story.rules.trace or ()))
    return story


Search = Callable[[Stage], None]
"""Plays until a rule is broken, which it raises; returns when none was."""


def seeds(count: int, first: int = 0, **story: Any) -> Search:
    """Stories of so many seeds from a first one, each changed like that."""

    def search(stage: Stage) -> None:
        for seed in range(first, first + count):
            try:
                Story(seed, plot=replace(Plot.of(random.Random(seed)), **{"minor": 0.0, **story})).play(stage)
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise

    return search


def turns(
    people: str,
    *,
    version: int = 9,
    locked: bool = True,
    before: str = "write schedule",
    twists: frozenset[Twist] = frozenset(Twist),
) -> Search:
    """All runs of a small instance with one turn."""
    instance = Instance(version=version, locked=locked, people=tuple(people.split()), before=tuple(before.split()))

    def search(stage: Stage) -> None:
        Explorer(instance, 1, stage, twists).explore()

    return search
