#!/bin/sh
# Builds the programs that first_run.sh runs, also on a machine without a GPU: build.sh ARCH DIR [GTEST]
#
#   ARCH   the GPU to build for: sm_90
#   DIR    folder for bench_kernels, yardsticks, matrix (the kernels' tests), and build.log
#   GTEST  GoogleTest's sources, for the tests (Debian: /usr/src/googletest, package googletest)
#
# KVHIVE_KERNELS: a library with the kernels, libkvhive_cuda.a of a CMake build, instead of compiling them once more.
# KVHIVE_JOBS: compilers at a time (as many as there are cores). Needs nvcc, g++ and tl/expected.hpp (Debian: libexpected-dev).
set -u
arch=$1
mkdir -p "$2"
bin=$(realpath "$2")
gtest=$(realpath -m "${3:-/usr/src/googletest}")
kernels=${KVHIVE_KERNELS:+$(realpath "$KVHIVE_KERNELS")}
jobs=${KVHIVE_JOBS:-$(nproc)}
cd "$(dirname "$0")/../.."
echo '#include <tl/expected.hpp>' | g++ -std=c++20 -fsyntax-only -x c++ - || exit 1
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
PATH=$PATH:/usr/local/cuda/bin
nvcc="nvcc -std=c++20 -O3 --expt-relaxed-constexpr -arch=$arch -I."
: >"$bin/build.log"

compile() { # runs the commands of its input, some at a time
  xargs -P "$jobs" -I{} sh -c '{} || echo "FAILED: {}" >&2' 2>>"$bin/build.log"
}

{
  if [ -z "$kernels" ]; then
    for instance in mma:bf16 mma:e4m3 mma:e5m2 mma:f16 mma:int8 simt:bf16 simt:e4m3 simt:e5m2 simt:f16 simt:f32 simt:int8; do
      kernel=${instance%:*} dtype=${instance#*:}
      sed "s/@KERNEL@/$kernel/g; s/@DTYPE@/$dtype/g" kernels/cuda/attention_instance.cu.in >"$build/${kernel}_attention_$dtype.cu"
    done
    for source in kernels/cuda/*.cu "$build"/*_attention_*.cu; do
      echo "$nvcc -c $source -o $build/$(basename "$source").o"
    done
  fi
  echo "$nvcc tools/gpu/yardsticks.cu -o $bin/yardsticks"
  echo "$nvcc -c tools/gpu/bench_kernels.cu -o $build/bench_kernels.o"
  for source in kernels/cuda/split_plan.cpp base/expected.cpp; do
    echo "g++ -std=c++20 -O2 -I. -c $source -o $build/$(basename "$source").o"
  done
} | compile
objects="${kernels:-$build/*.cu.o} $build/split_plan.cpp.o $build/expected.cpp.o"
# shellcheck disable=SC2086
$nvcc "$build/bench_kernels.o" $objects -o "$bin/bench_kernels" 2>>"$bin/build.log"

if [ -d "$gtest" ]; then
  # Only the suites that run over every backend; the others test internals of the CPU backend.
  tests=$(grep -l 'backends.hpp\|pairwise.hpp' tests/kernels/*_test.cpp | grep -v 'arguments\|far_blocks')
  tests="$tests tests/kernels/cuda/adapter_product_test.cpp tests/kernels/cuda/expert_kernels_test.cpp tests/kernels/cuda/row_kernels_test.cpp tests/kernels/cuda/row_product_test.cpp tests/kernels/cuda/sampling_test.cpp"
  tests="$tests $(ls tests/kernels/*.cpp | grep -v _test) kernels/arguments.cpp kernels/reference/*.cpp tools/gpu/pinned_new.cpp"
  for source in $tests "$gtest/googletest/src/gtest-all.cc" "$gtest/googlemock/src/gmock-all.cc" "$gtest/googlemock/src/gmock_main.cc"; do
    echo "g++ -std=c++20 -O2 -DKVHIVE_GPU_TESTS -I. -I$gtest/googletest -I$gtest/googletest/include -I$gtest/googlemock -I$gtest/googlemock/include -I/usr/local/cuda/include -c $source -o $build/$(basename "$source").t.o"
  done | compile
  # shellcheck disable=SC2086
  $nvcc "$build"/*.t.o $objects -o "$bin/matrix" 2>>"$bin/build.log"
else
  echo "no $gtest: no test matrix" >>"$bin/build.log"
fi
for program in bench_kernels yardsticks matrix; do
  [ -x "$bin/$program" ] || echo "no $program, see $bin/build.log" >&2
done
grep FAILED "$bin/build.log" >&2
[ -x "$bin/bench_kernels" ]
