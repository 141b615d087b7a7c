#!/usr/bin/env bash
# Sets everything up, and compacts a table that real Apache Hudi wrote. Arguments go to `compactor-daemon demo`.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" ""  # not the arguments of this script
exec .venv/bin/compactor-daemon demo "$@"
