#!/bin/sh
# Tests and measures the CUDA kernels on a GPU, in about ten minutes: first_run.sh OUT [GTEST]
#
#   OUT    folder for first_run.json, its table and the logs
#   GTEST  GoogleTest's sources, for the test matrix (Debian: /usr/src/googletest, package googletest)
#
# Needs nvcc, g++ and tl/expected.hpp (Debian: libexpected-dev). PyTorch and Triton are needed for the
# peers, compute-sanitizer for the sanitizer runs; the report names what is missing, and the rest runs.
set -u
mkdir -p "$1"
out=$(realpath "$1")
gtest=$(realpath -m "${2:-/usr/src/googletest}")
cd "$(dirname "$0")/../.."
echo '#include <tl/expected.hpp>' | g++ -std=c++20 -fsyntax-only -x c++ - || exit 1
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
PATH=$PATH:/usr/local/cuda/bin
arch=sm_$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
nvcc="nvcc -std=c++20 -O3 --expt-relaxed-constexpr -arch=$arch -I."
shapes="1x1024 4x1024 1x16384 16x1024 1x65536 8x8192 64x1024 1x131072 32x4096 256x512 256x1024 32x32768"

step() { # step NAME COMMAND...: its output goes to OUT/NAME, a failure does not end the run
  name=$1
  shift
  echo "== $name"
  timeout 240 "$@" >"$out/$name" 2>"$out/$name.log" || echo "$name failed, $?: $(tail -1 "$out/$name.log")"
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit --format=csv >"$out/gpu.csv"

echo "== build for $arch"
for instance in mma:bf16 mma:e4m3 mma:e5m2 mma:f16 mma:int8 simt:bf16 simt:e4m3 simt:e5m2 simt:f16 simt:f32 simt:int8; do
  kernel=${instance%:*} dtype=${instance#*:}
  sed "s/@KERNEL@/$kernel/g; s/@DTYPE@/$dtype/g" kernels/cuda/attention_instance.cu.in >"$build/${kernel}_attention_$dtype.cu"
done
(
  for source in kernels/cuda/*.cu "$build"/*_attention_*.cu; do
    echo "$nvcc -c $source -o $build/$(basename "$source").o"
  done
  echo "$nvcc tools/gpu/yardsticks.cu -o $build/yardsticks"
  echo "$nvcc -c tools/gpu/bench_kernels.cu -o $build/bench_kernels.o"
  echo "g++ -std=c++20 -O2 -I. -c kernels/cuda/split_plan.cpp -o $build/split_plan.o"
  echo "g++ -std=c++20 -O2 -I. -c base/expected.cpp -o $build/expected.o"
) | xargs -P "$(nproc)" -I{} sh -c '{} || echo "FAILED: {}" >&2' 2>"$out/build.log"
objects="$build/*.cu.o $build/split_plan.o $build/expected.o"
$nvcc "$build/bench_kernels.o" $objects -o "$build/bench_kernels" 2>>"$out/build.log"

if [ -d "$gtest" ]; then
  # Only the suites that run over every backend; the others test internals of the CPU backend.
  tests=$(grep -l 'backends.hpp\|pairwise.hpp' tests/kernels/*_test.cpp | grep -v 'arguments\|far_blocks')
  tests="$tests tests/kernels/cuda/row_kernels_test.cpp tests/kernels/cuda/row_product_test.cpp tests/kernels/cuda/sampling_test.cpp"
  tests="$tests $(ls tests/kernels/*.cpp | grep -v _test) kernels/arguments.cpp kernels/reference/*.cpp tools/gpu/pinned_new.cpp"
  for source in $tests "$gtest/googletest/src/gtest-all.cc" "$gtest/googlemock/src/gmock-all.cc" "$gtest/googlemock/src/gmock_main.cc"; do
    echo "g++ -std=c++20 -O2 -DKVHIVE_GPU_TESTS -I. -I$gtest/googletest -I$gtest/googletest/include -I$gtest/googlemock -I$gtest/googlemock/include -I/usr/local/cuda/include -c $source -o $build/$(basename "$source").t.o"
  done | xargs -P "$(nproc)" -I{} sh -c '{} || echo "FAILED: {}" >&2' 2>>"$out/build.log"
  $nvcc $build/*.t.o $objects -o "$build/matrix" 2>>"$out/build.log"
  few='*.TakesDecodes*/Cuda*:*BlockCopy.Copies*/Cuda:*MergeStates.WorksInPlace*/Cuda:*CacheWrite.Rounds*/Cuda:RotateCuda.Norms*:RowProductCuda.*:SampleCuda.Reports*'
  step matrix.txt "$build/matrix" --gtest_brief=1
  for tool in memcheck racecheck synccheck; do
    command -v compute-sanitizer >/dev/null &&
      step "$tool.txt" compute-sanitizer --tool "$tool" "$build/matrix" --gtest_brief=1 --gtest_filter="$few"
  done
else
  echo "no $gtest: no test matrix" >"$out/matrix.txt"
fi

grep FAILED "$out/build.log"
step yardsticks.json "$build/yardsticks"
step kernels.json "$build/bench_kernels" $shapes
step peers.json python3 tools/gpu/peers.py $shapes
python3 tools/gpu/report.py "$out" | tee "$out/table.txt"
