#!/bin/sh
# Engines on a GPU in its first minutes: first_engine_run.sh OUT [BIN [MODEL]]
#
#   OUT    folder for engine_run.json, its table and the logs
#   BIN    the programs, built with nvcc (build/bin)
#   MODEL  a model directory (models/demo)
#
# Two engines share a prefix; tokens beside the CPU's; engines killed in the middle of swaps; the arena outlives them all;
# time to first token and tokens per second. Exit code 1 if anything was wrong. Needs python3 and nothing else.
set -eu
mkdir -p "$1"
out=$(realpath "$1")
here=$(realpath "$(dirname "$0")/../..")
exec python3 "$here/tools/gpu/engine_run.py" "$out" "$(realpath "${2:-$here/build/bin}")" "$(realpath "${3:-$here/models/demo}")"
