#!/bin/sh
# run.sh BIN [SECONDS [TARGET...]]: runs every fuzz target, or those that are named, for some seconds. Inputs found stay in CORPUS
# between runs; the seeds are made from files of this tree.
set -eu
bin=$(cd "$1" && pwd)
seconds=${2:-60}
root=$(cd "$(dirname "$0")/../.." && pwd)
corpus=${CORPUS:-$bin/../corpus}

seed() { mkdir -p "$corpus/$1" && cat >"$corpus/$1/seed-$2"; }

seed channel 1 </dev/null
head -c 4096 /dev/zero | tr '\0' '\1' | seed channel 2
head -c 1024 /dev/zero | seed packet 1
version=$(sed -n 's/.*kProtocolVersion = \([0-9]*\);/\1/p' "$root/ipc/control_messages.hpp")
version=$(printf '\\%03o' "$version")
# shellcheck disable=SC2059
for type in 001 002 003 004 010 011 040 044 047; do  # headers of some types, in octal
  printf '\000kvp1'"$version"'\000\000\000'"\\$type"'\000\000\000\000\000\000\000' | seed packet "$type"
done
head -c 200 /dev/zero | seed connections 1
"$root/tests/fuzz/seeds.py" "$root/models/demo" "$corpus"

all="channel connections http packet options model_config safetensors tokenizer torch_tensor"
shift
[ $# -eq 0 ] || shift
targets=${*:-$all}
echo "fuzzing $targets for $seconds s each, as many at once as there are cores"
export bin corpus seconds
# shellcheck disable=SC2016,SC2086
printf '%s\n' $targets | xargs -P "$(nproc)" -I TARGET sh -c '
  "$bin/fuzz_TARGET" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=3000 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="$corpus/TARGET-finding-" "$corpus/TARGET" >"$corpus/TARGET.log" 2>&1 || true'

for target in $targets; do
  echo "$target"
  grep -E "^stat::(number_of_executed|new_units|peak_rss)|ERROR|SUMMARY|Test unit" "$corpus/$target.log" || true
  # A finding always leaves its input behind, whatever the exit code is.
  if ls "$corpus/$target-finding-"* >/dev/null 2>&1; then
    cat "$corpus/$target.log" >&2
    exit 1
  fi
done
echo "fuzzing found nothing"
