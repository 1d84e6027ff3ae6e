#!/bin/sh
# Runs on a GPU the tests that otherwise run on a fake one: device_tests.sh OUT [BIN]
#
#   OUT  folder for the logs
#   BIN  the programs (build/bin): kvhive_device_test, the contract of device/device.hpp; kvhive_gpu_models_on_gpu, small
#        models beside float64 and the CPU. `ninja -C build kvhive_device_test kvhive_gpu_models_on_gpu` makes them.
#
# Not run: tests in which the device fails when asked. Exit code 1 if a test failed.
set -u
mkdir -p "$1"
out=$(realpath "$1")
bin=$(realpath "${2:-$(dirname "$0")/../../build/bin}")
status=0

# A process each, since a CUDA context does not survive a fork. In parallel; what fails then is tried again alone.
one() { timeout 60 "$bin/kvhive_device_test" --gtest_filter="$1" >"$out/device.$(echo "$1" | tr /. __).txt" 2>&1; }
tests=$("$bin/kvhive_device_test" --gtest_list_tests --gtest_filter='*/Cuda*:CudaDevice.*' |
  awk '/^[^ ].*\.$/ { suite = $1 } /^  / { print suite $1 }')
for test in $tests; do
  (one "$test" || echo "$test" >>"$out/device.again") &
  [ "$(jobs -p | wc -l)" -lt 6 ] || wait
done
wait
passed=$(echo "$tests" | wc -l) skipped=$(grep -l SKIPPED "$out"/device.*.txt | wc -l)
if [ -f "$out/device.again" ]; then
  while read -r test; do
    one "$test" && continue
    passed=$((passed - 1)) status=1
    echo "FAILED: $test"
    grep -m 3 'Failure\|expected\|error\|terminate' "$out/device.$(echo "$test" | tr /. __).txt"
  done <"$out/device.again"
  rm "$out/device.again"
fi
echo "device: $passed of $(echo "$tests" | wc -l) tests passed, $skipped of them skipped"

# First with the device's own products, whose bits depend on the batch; then with batch-invariant products, where all bits must be
# equal.
faults='*ReportsAFailedStep*:*LostDevice*:*FreesAll*:*CannotRecord*:*ReportsUnsupported*'
models() { # models NAME FILTER
  timeout 120 "$bin/kvhive_gpu_models_on_gpu" --gtest_brief=1 --gtest_filter="$2" >"$out/models.$1.txt" 2>&1 || status=1
  echo "models, $1 products: $(grep -h '^\[  PASSED\|^\[  FAILED\|^\[  SKIPPED\|terminate' "$out/models.$1.txt" | tr '\n' ' ')"
}
models own "GpuAdapters.*:*MatchesFloat64*:*StaysNear*:*AttentionInMany*:GpuTransformer.*-*TablesOfTheirOwn*:$faults"
export KVHIVE_BATCH_INVARIANT=1
models batch_invariant "*-*AStepAllocates*:$faults"
exit $status
