#!/usr/bin/env bash
# Makes the virtual environment .venv beside the sources. demo.sh and test.sh source this file.
#   setup.sh [EXTRA]    EXTRA: "spark" also installs Spark, which needs Java; "dev" that and what the tests need
# Where cargo is, it builds the native decoder too (about a minute), unless PHANTOMBASE_NATIVE=0.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extra="${1:-}"
need="phantombase needs Python >= 3.11${extra:+, and Spark Java 17 or newer}"

python=""
for candidate in "${PYTHON:-}" python3.11 python3 python3.12 python3.13 python3.14; do
  if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 &&
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    python="$candidate"
    break
  fi
done
[ -n "$python" ] || { echo "error: $need: no Python >= 3.11 was found." >&2; exit 1; }

if [ -n "$extra" ]; then
  java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
  version="$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)" || true
  [ "${version:-0}" -ge 17 ] || { echo "error: $need: no Java 17 was found (found: ${version:-none})." >&2; exit 1; }
fi

wanted="$(cat pyproject.toml constraints.txt | cksum)"
ready=.venv/.ready
# The packages for the tests include all packages for the commands.
if [ "$(cat "$ready${extra:+-$extra}" 2>/dev/null)" != "$wanted" ] &&
  { [ -n "$extra" ] || [ "$(cat "$ready-dev" 2>/dev/null)" != "$wanted" ]; }; then
  size="$([ -n "$extra" ] && echo "1.1 GB" || echo "400 MB")"
  echo "setting up .venv with $("$python" --version)${version:+ and Java $version}: about $size, a minute or more ..." >&2
  [ -x .venv/bin/python ] || "$python" -m venv .venv ||
    { echo "error: $need: this Python cannot make virtual environments (install its venv package)." >&2; exit 1; }
  packages=".$([ -n "$extra" ] && echo "[spark,$extra]" || true)"
  .venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e "$packages" >&2
  echo "$wanted" > "$ready${extra:+-$extra}"
fi

sources="$(cat native/Cargo.toml native/pyproject.toml native/src/*.rs | cksum)"
if [ "${PHANTOMBASE_NATIVE:-1}" != 0 ] && [ "$(cat "$ready-native" 2>/dev/null)" != "$sources" ] &&
  command -v cargo >/dev/null 2>&1; then
  echo "building the native decoder with $(cargo --version): a minute or so (PHANTOMBASE_NATIVE=0 leaves it out) ..." >&2
  if CARGO_TARGET_DIR="$PWD/.venv/native" .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --force-reinstall --no-deps ./native >.venv/native.log 2>&1; then
    echo "native decoder: built" >&2
  else
    echo "native decoder: not built, so Avro is decoded by numpy; see .venv/native.log" >&2
  fi
  echo "$sources" > "$ready-native"  # what failed is not tried at each start
fi
