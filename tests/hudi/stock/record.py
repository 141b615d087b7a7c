"""Makes stock tables and records what became of them: `python -m tests.hudi.stock.record 9 6 8 [CASE ...]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.hudi.cases.indexed_table import HUDI
from tests.hudi.judge.client import BRIEF, Judge
from tests.hudi.stock.cases import CASES
from tests.hudi.stock.verdict import judged, load_results, save_results


def main() -> None:
    """Records the versions and cases that are named, by default all; each as soon as it is known."""
    versions = [int(text) for text in sys.argv[1:] if text.isdecimal()] or sorted(HUDI, reverse=True)
    chosen = [text for text in sys.argv[1:] if not text.isdecimal()] or list(CASES)
    for version in versions:
        with tempfile.TemporaryDirectory() as folder, Judge(HUDI[version], java_options=BRIEF) as judge:
            for name in chosen:
                if version not in CASES[name].versions:
                    continue
                found = judged(CASES[name], judge, Path(folder, name), version)
                results = load_results()
                save_results({**results, f"v{version}": {**results.get(f"v{version}", {}), name: found}})
                print(f"v{version} {name}: {found.outcome.value} {found.why}", flush=True)


if __name__ == "__main__":
    main()
