#!/usr/bin/env bash
# Sets everything up and runs linters, type checker and all tests. Arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" dev
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
# Two at a time: most tests keep one core busy.
exec .venv/bin/python -m pytest -n 2 "$@"
