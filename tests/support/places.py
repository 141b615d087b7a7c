"""Where things lie in a checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The project: packages, deploy, docs, README.md."""

GOLDEN_FOLDER = ROOT / "tests" / "golden"
"""Tables that real Hudi wrote, one zip file each."""
