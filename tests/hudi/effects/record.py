"""Records what real Hudi makes of the cases: `python -m tests.hudi.effects.record [PART OF A NAME ...]`.

Without a part: those that are not recorded, or were changed since."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.hudi.judge.client import BRIEF, Judge

from .case import HUDI, RECORDED, Case, recorded
from .cases import all_cases


def main() -> None:
    """Records version by version, one JVM each, and saves after each case."""
    parts = sys.argv[1:]
    known = recorded()
    cases = all_cases()
    known = {case.id: known[case.id] for case in cases if case.id in known}
    asked = [case for case in cases if (any(p in case.id for p in parts) if parts else _is_stale(case, known))]
    for version in sorted({case.version for case in asked}, reverse=True):
        with tempfile.TemporaryDirectory() as folder, Judge(HUDI[version], java_options=BRIEF) as judge:
            for case in (one for one in asked if one.version == version):
                known[case.id] = {"digest": case.digest, **case.by_hudi(judge, Path(folder, case.id))}
                text = json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False)
                RECORDED.write_text(f"{text}\n", encoding="utf-8")
                print(case.id, known[case.id].get("refused") or "", flush=True)


def _is_stale(case: Case, known: dict[str, dict[str, object]]) -> bool:
    return known.get(case.id, {}).get("digest") != case.digest


if __name__ == "__main__":
    main()
