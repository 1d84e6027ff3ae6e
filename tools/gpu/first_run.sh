#!/bin/sh
# Tests and measures the CUDA kernels on a GPU, in a few minutes: first_run.sh OUT [BIN]
#
#   OUT  folder for first_run.json, its table and the logs
#   BIN  the programs, made by build.sh on this or another machine; without it they are built first, for this GPU
#
# PyTorch and Triton are needed for the peers, compute-sanitizer for the sanitizer runs. What is missing or fails is named,
# and the rest runs. KVHIVE_PARTS: only these of "matrix memcheck racecheck synccheck yardsticks kernels peers".
# KVHIVE_SHAPES: sequences x tokens of each. KVHIVE_STEP_SECONDS: the most a step may take (240).
set -u
mkdir -p "$1"
out=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
steps=${KVHIVE_PARTS:-matrix memcheck racecheck synccheck yardsticks kernels peers}
shapes=${KVHIVE_SHAPES:-1x1024 4x1024 1x16384 16x1024 1x65536 8x8192 64x1024 1x131072 32x4096 256x512 256x1024 32x32768}
PATH=$PATH:/usr/local/cuda/bin
if [ $# -gt 1 ]; then
  bin=$(realpath "$2")
else
  bin=$(mktemp -d)
  trap 'rm -rf "$bin"' EXIT
  arch=sm_$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
  echo "== build for $arch"
  "$here/build.sh" "$arch" "$bin"
  cp "$bin/build.log" "$out"
fi

step() { # step NAME FILE COMMAND...: its output goes to OUT/FILE, a failure does not end the run
  name=$1 file=$2
  shift 2
  case " $steps " in *" $name "*) ;; *) return ;; esac
  echo "== $name"
  timeout "${KVHIVE_STEP_SECONDS:-240}" "$@" >"$out/$file" 2>"$out/$file.log" || echo "$name failed, $?: $(tail -1 "$out/$file.log")"
}

matrix() { # all tests, in some processes at a time
  shards=$(($(nproc) < 8 ? $(nproc) : 8))
  for shard in $(seq 0 $((shards - 1))); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard timeout "${KVHIVE_STEP_SECONDS:-240}" \
      "$bin/matrix" --gtest_brief=1 >"$out/matrix.$shard.txt" 2>&1 || echo "failed, $?: shard $shard of $shards" >>"$out/matrix.$shard.txt" &
  done
  wait
  grep -h 'FAILED\|failed' "$out"/matrix.[0-9]*.txt | sort -u | head -20
  cat "$out"/matrix.[0-9]*.txt | awk '/PASSED/ { passed += $4 } /^\[  FAILED  \] [0-9]+ test/ { failed += $4 } END { print passed + 0, "passed,", failed + 0, "failed" }'
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit --format=csv >"$out/gpu.csv"
case " $steps " in *" matrix "*) echo "== matrix"; matrix | tee "$out/matrix.txt" ;; esac
few='*.TakesDecodes*/Cuda*:*BlockCopy.Copies*/Cuda:*MergeStates.WorksInPlace*/Cuda:*CacheWrite.Rounds*/Cuda:RotateCuda.Norms*:RowProductCuda.*:SampleCuda.Reports*'
for tool in memcheck racecheck synccheck; do
  step "$tool" "$tool.txt" compute-sanitizer --tool "$tool" "$bin/matrix" --gtest_brief=1 --gtest_filter="$few"
done
step yardsticks yardsticks.json "$bin/yardsticks"
# shellcheck disable=SC2086
step kernels kernels.json "$bin/bench_kernels" $shapes
# shellcheck disable=SC2086
step peers peers.json python3 "$here/peers.py" $shapes
python3 "$here/report.py" "$out" | tee "$out/table.txt"
