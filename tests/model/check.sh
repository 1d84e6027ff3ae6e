#!/bin/sh
# check.sh MODEL: checks that the model holds and that each of its mutants fails. Exit code 77 = Spin is not installed.
set -eu
model=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
command -v spin >/dev/null || { echo "spin is not installed: skipped"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

# holds OPTIMIZATION [FLAG]: true if the verifier found no error.
holds() {
  optimization=$1
  shift
  spin -a "$@" "$model" >spin.log || { cat spin.log; exit 2; }
  cc "$optimization" -w -DSAFETY -DCOLLAPSE -DMEMLIM=4000 -o verifier pan.c
  ./verifier -m200000 >verifier.log 2>&1
  if grep -qE "max search depth too small|out of memory|Search not completed" verifier.log &&
     grep -q "errors: 0" verifier.log; then
    echo "$* was not searched to the end"; cat verifier.log; exit 2
  fi
  grep -q "errors: 0" verifier.log
}

states() { sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' verifier.log; }

holds -O2 || { echo "$(basename "$model") FAILS"; cat verifier.log; spin -t -p "$model" | tail -60; exit 1; }
echo "$(basename "$model") holds: $(states) states"
for mutant in $(sed -n 's/^#ifn*def \(MUTANT_[A-Z_]*\).*/\1/p' "$model" | sort -u); do
  # Found early, mostly: the compiler would take longer than the search.
  if holds -O0 "-D$mutant"; then echo "$mutant was not caught"; exit 1; fi
  echo "  $mutant caught"
done
