#!/bin/sh
# Measures engines on a GPU: first_engine_run.sh OUT [BIN [MODEL]]
#
#   OUT    folder for engine_run.json, its table and the logs
#   BIN    the programs, built with nvcc (build/bin)
#   MODEL  a model directory (models/demo)
#
# Two engines share a prefix; tokens are compared with the CPU's; engines are killed in the middle of swaps; the arena outlives
# all engines; time to first token and tokens per second. Exit code 1 if any check failed. Needs only python3.
set -eu
mkdir -p "$1"
out=$(realpath "$1")
here=$(realpath "$(dirname "$0")/../..")
exec python3 "$here/tools/gpu/engine_run.py" "$out" "$(realpath "${2:-$here/build/bin}")" "$(realpath "${3:-$here/models/demo}")"
