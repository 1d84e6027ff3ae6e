#!/bin/sh
# make bench: every benchmark once, one after another, with the machine named.
set -eu
bin=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")/../.." && pwd)
brief=${2:-}

echo "$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -1), $(nproc) cores, $(g++ --version | head -1)"
echo
"$bin/bench_pool" $brief
"$bin/bench_attach" $brief
"$bin/bench_reap" $brief
"$bin/bench_stop" $brief
echo
"$bin/bench_policies" $brief
"$bin/bench_step" $brief
echo
"$bin/bench_rules" $brief
echo
[ -n "$brief" ] || "$bin/bench_attention"
"$bin/bench_model" $brief
"$bin/bench_weights" $brief
echo
work=$(mktemp -d)
export KVHIVE_SOCKET="$work/kvhived.sock"
trap 'for s in kvhived a b; do "$bin/kvhive" stop --socket "$work/$s.sock" >/dev/null 2>&1 || true; done; rm -rf "$work"' EXIT INT TERM
"$bin/kvhived" --model "$here/models/demo" --engines 2 --kv-cache-memory-bytes 256M --log-level warn --detach >/dev/null
"$bin/bench_generate" $brief
"$bin/kvhive" stop >/dev/null
echo
"$bin/kvhived" --model "$here/models/demo" --engines 4 --threads 1 --kv-cache-memory-bytes 256M --log-level warn --detach >/dev/null
"$bin/bench_hive" $brief
echo
"$bin/bench_changes" $brief
"$bin/kvhive" stop >/dev/null
echo
for half in a b; do
  "$bin/kvhived" --model "$here/models/demo" --socket "$work/$half.sock" --num-gpu-blocks-override 513 --threads 1 --log-level warn --detach >/dev/null
done
"$bin/kvhived" --model a="$here/models/demo" --model b="$here/models/demo" --num-gpu-blocks-override 1025 --threads 1 --log-level warn --detach >/dev/null
"$bin/bench_models" "$KVHIVE_SOCKET" "$work/a.sock" "$work/b.sock" $brief
"$bin/kvhive" stop >/dev/null
for half in a b; do "$bin/kvhive" stop --socket "$work/$half.sock" >/dev/null; done
echo
with_and_without() {  # NAME, options of one, of the other
  for half in a b; do
    "$bin/kvhived" --model "$here/models/demo" --socket "$work/$half.sock" --kv-cache-memory-bytes 256M --threads 1 --log-level warn --detach \
      $([ $half = a ] && echo "$2" || echo "$3") >/dev/null
  done
  "$bin/bench_option" "$1" "$here/models/demo/passage.txt" "$work/a.sock" "$work/b.sock" $brief
  for half in a b; do "$bin/kvhive" stop --socket "$work/$half.sock" >/dev/null; done
  echo
}
with_and_without "Guesses ahead" "" "--num-speculative-tokens 4"
with_and_without "A step ahead" "--async-scheduling false" "--async-scheduling true"
with_and_without "Engines on cores of their own" "--engines 2 --cpu-bind none" "--engines 2 --cpu-bind auto"
chmod 711 "$work"  # bench_overload connects as several users
"$bin/kvhived" --model "$here/models/demo" --engines 2 --threads 1 --max-num-seqs 8 --kv-cache-memory-bytes 256M --log-level error \
  --socket-access everybody --max-queued-tokens 4000 --shares "uid-60001=weight:1;uid-60002=weight:2;uid-60003=weight:4" --detach >/dev/null
"$bin/bench_overload" $brief
"$bin/kvhive" stop >/dev/null
echo
"$bin/kvhived" --model "$here/models/demo" --engines 1 --threads 1 --kv-cache-memory-bytes 256M --max-num-seqs 256 --log-level error --detach >/dev/null
"$bin/kvhive" serve --port 0 --max-connections 12000 >"$work/serve" &
serve=$!
until grep -q ready "$work/serve" 2>/dev/null; do sleep 0.05; done
"$bin/bench_serve" "$(sed 's/.*://' "$work/serve")" "$serve" $brief
kill "$serve"
