#!/usr/bin/env bash
# Sets everything up and runs linters, type checker and tests. With --all as the first argument it runs all tests
# (tests/support/selection.py), and all unit tests on the lowest versions; without arguments some of these. Other
# arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" dev
if [ "${1:-}" = "--all" ]; then
  export PHANTOMBASE_ALL=1
  shift
fi
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
if [ -n "${PHANTOMBASE_ALL:-}" ]; then
  bash deploy/lowest.sh
elif [ $# -eq 0 ]; then
  bash deploy/lowest.sh -q tests/unit/timeline/{arrow,avro,cli,format,parquet,storage}
fi
# Three at a time on two cores: many tests wait for a process, a session or a lock half of their time.
exec .venv/bin/python -m pytest -n 3 "$@"
