#!/usr/bin/env bash
# Runs tests of single modules on the lowest versions that pyproject.toml declares, in an environment of its own
# (.venv-lowest).
# Arguments go to pytest; without any, those of formats, storage, merge, planning, schemas and commands are run.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" spark  # not the arguments of this script

lowest=.venv-lowest
[ -x "$lowest/bin/python" ] || "$python" -m venv "$lowest"
"$lowest/bin/python" -m pip install --quiet --disable-pip-version-check uv
export VIRTUAL_ENV="$PWD/$lowest"
uv="$lowest/bin/uv"
"$uv" pip compile pyproject.toml --extra spark --extra hive --extra sasl --extra s3 --resolution lowest-direct --quiet \
  --output-file "$lowest/lowest.txt"
# The tests themselves use the newest versions of their tools that go with these.
"$uv" pip install --quiet --constraint "$lowest/lowest.txt" --editable ".[dev]"
if [ $# -eq 0 ]; then
  set -- tests/timeline/{cli,codec,filter,format,instants,locks,merge,metadata_table,pins,planning} \
    tests/timeline/{recovery,table,view} tests/timeline/storage/test_*.py tests/writer_hooks/schema \
    tests/compactor_daemon/cli
fi
exec "$lowest/bin/python" -m pytest -n 2 -p no:cacheprovider "$@"
