#!/usr/bin/env bash
# Sets everything up and runs the main job on a table that real Apache Hudi wrote. Arguments go to the demo.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
exec .venv/bin/compactor-daemon demo "$@"
