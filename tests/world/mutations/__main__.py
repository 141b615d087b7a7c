"""Breaks one rule of the product at a time and runs the tests of that rule: a mutant that lives is a rule untested.

    python -m tests.world.mutations [WORD ...]              only mutants whose file or text holds one of the words
    python -m tests.world.mutations --sample N --turn K     N of all mutants by turns: the next number has the next ones
    python -m tests.world.mutations --minutes M             takes no longer than that; says what was not reached
    python -m tests.world.mutations --usual                 only with the tests of the usual run
    python -m tests.world.mutations --survivors N           so many may survive

Works on the checkout as it is, which must not change meanwhile, in forks of one process. The usual tests run first;
what survives them runs with all tests, except those beside real Hudi. A line a mutant:

    killed      by the test of that name, which passes without the mutant
    only --all  a usual run does not notice, or has none of its tests; a run of all tests does
    SURVIVED    no test notices
    stale       the text is no longer in the code, or is there more than once
    broken      the tests cannot be run, or fail without the mutant
    unreached   the time was up

Ends with 1 if a mutant survived, beyond `--survivors`, is stale or broken."""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path

from tests.support.places import ROOT
from tests.support.selection import is_usual
from tests.world.mutations import forks
from tests.world.mutations.mutants import MUTANTS
from tests.world.mutations.mutants.mutant import Mutant

WORKERS = 2
GOOD = {"killed", "only --all", "unreached"}


def source_path(module: str) -> str:
    """The file of a mutant's module, relative to the root."""
    return f"{module}.py"


def dotted(module: str) -> str:
    """The name by which a mutant's module is imported."""
    name = module.replace("/", ".").removesuffix(".__init__")
    return name if name.startswith(("phantombase", "pyspark_phantombase")) else f"phantombase.{name}"


def modules_of(folder: Path, tests: str) -> list[str]:
    """The files of test modules, relative to the folder."""
    names = ["/".join((*name.split("/")[:-1], f"test_{name.split('/')[-1]}.py")) for name in tests.split()]
    return [path for name in names for path in _test_modules(folder) if path.endswith(f"/{name}")]


@cache
def _test_modules(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in (folder / "tests").rglob("test_*.py")]


def by_turns(mutants: Sequence[Mutant], sample: int, turn: int) -> Sequence[Mutant]:
    """About `sample` of the mutants; numbers of turns that follow each other come to all of them."""
    turns = math.ceil(len(mutants) / sample)
    return mutants[turn % turns :: turns]


def outcome(mutant: Mutant, usual: bool, until: float) -> tuple[str, str, float]:
    """What became of a mutant, the test or the output that says so, and seconds."""
    module, old, new, names = mutant
    if time.monotonic() > until:
        return "unreached", "", 0.0
    source = (ROOT / source_path(module)).read_text()
    if source.count(old) != 1:
        return "stale", "", 0.0
    if usual and not any(is_usual(path) for path in modules_of(ROOT, names)):
        return "only --all", names, 0.0
    seconds = 0.0
    for everything in (False,) if usual else (False, True):
        made = forks.run(modules_of(ROOT, names), (dotted(module), source.replace(old, new)), everything, until)
        seconds += made.seconds
        if not made.in_time:
            return "unreached", "", seconds
        if made.passed is None:
            return "broken", made.output[-2000:], seconds
        if not made.passed:
            alone = _alone(made.last, everything, until)
            if not alone.in_time:
                return "unreached", "", seconds
            if not alone.passed:
                return "broken", f"{made.last} fails without the mutant\n{alone.output[-2000:]}", seconds
            return "only --all" if everything else "killed", made.last, seconds
    return "SURVIVED", names, seconds


@cache
def _alone(test: str, everything: bool, until: float) -> forks.Run:
    """A test without a mutant."""
    return forks.run([test], None, everything, until)


def main(arguments: Sequence[str]) -> int:
    """Runs the chosen mutants, two at a time; 1 unless all, or all but a few, are killed or were not reached."""
    parser = argparse.ArgumentParser(prog="python -m tests.world.mutations", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--sample", type=int, default=len(MUTANTS))
    parser.add_argument("--turn", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--usual", action="store_true")
    parser.add_argument("--survivors", type=int, default=0)
    options = parser.parse_args(arguments)
    start = time.monotonic()
    until = start + 60 * options.minutes
    named = [m for m in MUTANTS if not options.words or any(w in m[0] or w in m[1] for w in options.words)]
    chosen = by_turns(named, options.sample, options.turn) if named else []
    forks.warm_up()
    count: Counter[str] = Counter()
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("fork")) as pool:
        made = {pool.submit(outcome, mutant, options.usual, until): mutant for mutant in chosen}
        for future in as_completed(made):
            module, old, new, _ = made[future]
            result, why, seconds = future.result()
            count[result] += 1
            if result != "unreached":
                print(f"{result:10} {seconds:5.1f} s {module}: {old.strip()!r} -> {new.strip()!r}: {why}", flush=True)
    said = ", ".join(f"{number} {result}" for result, number in count.most_common())
    print(f"{len(chosen)} of {len(MUTANTS)} mutants in {time.monotonic() - start:.0f} s: {said or 'none'}")
    return 1 if count["SURVIVED"] > options.survivors or count.keys() - GOOD - {"SURVIVED"} else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
