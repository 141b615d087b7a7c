"""Records what real Hudi's sync makes of the cases: `python -m tests.hudi.sync.record [--all | PART OF A NAME ...]`.

Without a part: those that are not recorded, or were changed since."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.hudi.judge.client import BRIEF, QUIET, Judge, JudgeError
from tests.support.servers.hive_metastore import running_metastore

from .case import HUDI, RECORDED, Case, everything, recorded
from .cases import all_cases


def main() -> None:
    """Records version by version, one JVM each, and saves after each case."""
    parts = [part for part in sys.argv[1:] if part != "--all"]
    known, cases = recorded(), all_cases()
    known = {case.id: known[case.id] for case in cases if case.id in known}
    asked = [c for c in cases if "--all" in sys.argv or any(p in c.id for p in parts)] or [
        case for case in cases if known.get(case.id, {}).get("digest") != case.digest
    ]
    with tempfile.TemporaryDirectory() as folder, running_metastore(Path(folder, "metastore")) as metastore:
        for version in sorted({case.version for case in asked}, reverse=True):
            with Judge(HUDI[version], java_options=BRIEF) as judge:
                for case in (one for one in asked if one.version == version):
                    found = _by_hudi(case, judge, metastore.port, Path(folder, case.id))
                    known[case.id] = {"digest": case.digest, "after": found}
                    text = json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False)
                    RECORDED.write_text(f"{text}\n", encoding="utf-8")
                    print(case.id, [one.get("refused", "ok") for one in found], flush=True)


def _by_hudi(case: Case, judge: Judge, port: int, path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    version = {} if case.version == 6 else {"hoodie.write.table.version": case.version}
    for batch in case.batches:
        try:
            judge.write(path, batch.rows, {**QUIET, **version, **case.options(batch, port)})
        except JudgeError as error:
            lines = str(error.trace or error).splitlines()
            causes = [line for line in lines if line.startswith("Caused by: ")] or lines
            found.append({"refused": causes[-1][:300]})
        else:
            found.append(everything(port, case.id, path))
    return found


if __name__ == "__main__":
    main()
