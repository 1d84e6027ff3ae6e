#!/bin/bash
# Loads the bash completions and checks what they offer. usage: completion_test.sh DIRECTORY_OF_COMPLETIONS
set -u
directory=$1
source "$directory/kvhived"
source "$directory/kvhive"
failed=0

# complete_words FUNCTION WORD...: COMPREPLY for a line of these words, the last of which is to be completed.
complete_words() {
  local function=$1
  shift
  COMP_WORDS=("$@")
  COMP_CWORD=$(($# - 1))
  "$function"
}

# expect FUNCTION EXPECTED WORD...
expect() {
  local function=$1 expected=$2
  shift 2
  complete_words "$function" "$@"
  if [[ " ${COMPREPLY[*]} " != *" $expected "* ]]; then
    echo "'$*' offers '${COMPREPLY[*]}', not '$expected'"
    failed=1
  fi
}

# expect_only FUNCTION EXPECTED WORD...: nothing but EXPECTED is offered.
expect_only() {
  local function=$1 expected=$2
  shift 2
  complete_words "$function" "$@"
  if [[ "${COMPREPLY[*]}" != "$expected" ]]; then
    echo "'$*' offers '${COMPREPLY[*]}', not only '$expected'"
    failed=1
  fi
}

expect_only _kvhived "auto cpu cuda" kvhived --device ""
expect_only _kvhived "cuda" kvhived --device cu
expect_only _kvhived "priority" kvhived --scheduling-policy = p
expect_only _kvhived "--kv-cache-memory-bytes --kv-cache-dtype --kv-cache-metrics-sample" kvhived --kv-cache-
expect_only _kvhived "" kvhived --engines ""
expect_only _kvhive "generate pool top watch events replay serve layout stop engine reload doctor" kvhive ""
expect_only _kvhive "pool" kvhive po
expect _kvhive "fsck" kvhive pool ""
expect _kvhive "map" kvhive pool ""
expect_only _kvhive "state owner domain age sharing tier" kvhive pool map --by ""
expect _kvhive "fsck" kvhive --format json pool f
expect_only _kvhive "human json" kvhive pool stat --format ""
expect _kvhive "--max-tokens" kvhive generate --m
expect_only _kvhive "maps arrays" kvhive events --events ""
expect _kvhive "--blocks" kvhive watch --b
expect_only _kvhive "fp8 fp8_e4m3 fp8_e5m2" kvhive layout --kv-cache-dtype fp8

scratch=$(mktemp -d)
mkdir "$scratch/model" && touch "$scratch/prompt.txt"
expect_only _kvhived "$scratch/model" kvhived --model "$scratch/"
expect _kvhive "$scratch/prompt.txt" kvhive generate --prompt-file "$scratch/p"
expect _kvhive "$scratch/prompt.txt" kvhive replay "$scratch/p"
rm -r "$scratch"
exit $failed
