#!/usr/bin/env bash
# Sets everything up and runs linters, type checker and tests (tests/support/selection.py).
#   test.sh                    the usual run: every rule once, the same run each time
#   test.sh --all              all tests, and those of single modules on the lowest versions
#   test.sh --part N           one of the six parts of --all, without what the usual run has; 5.2: a piece of part 5
#   test.sh ARGUMENTS          the usual run; the arguments go to pytest
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" dev
# Images of containers often set it: each of hundreds of processes would compile all sources again.
unset PYTHONDONTWRITEBYTECODE
# Three at a time on two cores: many tests wait for a process, a session or a lock half of their time.
tests=(.venv/bin/python -m pytest -n 3)
if [ "${1:-}" = "--part" ]; then
  export PHANTOMBASE_ALL=1 PHANTOMBASE_PART="${2:?a number from 1 to 6, or a piece as in 5.2}"
  shift 2
  exec "${tests[@]}" "$@"
fi
if [ "${1:-}" = "--all" ]; then
  export PHANTOMBASE_ALL=1
  shift
fi
.venv/bin/ruff check .
.venv/bin/ruff format --check .
# What pytest makes of each file of tests is kept: here once, while types are checked, and not by each of the three.
.venv/bin/python -m pytest --collect-only -qq >/dev/null 2>&1 &
.venv/bin/mypy
wait
if [ -n "${PHANTOMBASE_ALL:-}" ]; then
  bash deploy/lowest.sh
elif [ $# -eq 0 ]; then
  bash deploy/lowest.sh -q tests/timeline/{cli,codec,format} tests/timeline/storage/test_*.py
fi
exec "${tests[@]}" "$@"
