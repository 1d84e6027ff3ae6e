# What two_nodes.sh's machine runs: processors 0 and 1 are on node 0, 2 and 3 on node 1.
export KVHIVE_SOCKET=/run/kvhived.sock

processes() { grep -lx "$1" /proc/[0-9]*/comm 2>/dev/null | cut -d / -f 3 | sort -n; }
processors() { sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$1/status"; }

# Pages that a process has mapped of a file, on each node: "12 13".
pages() {
  awk -v file="$2" 'index($0, file) { for (i = 1; i <= NF; ++i) if ($i ~ /^N[01]=/) count[substr($i, 2, 1)] += substr($i, 4) }
    END { print count[0] + 0, count[1] + 0 }' "/proc/$1/numa_maps"
}
# Pages of all shared memory on each node; of them, those that are parts of huge ones.
shared_memory() { pages_of Shmem; }
huge_memory() { pages_of ShmemHugePages; }
pages_of() { sed -n "s/.* $1: *\([0-9]*\) kB/\1/p" /sys/devices/system/node/node[01]/meminfo | awk '{ printf "%d ", $1 / 4 }'; }

# lies_on NODES WHAT PAGES PAGES. Not to a tenth: clients' channels, which are shared memory, too, lie where clients run.
lies_on() {
  case $1 in
    both) [ "$3" -gt 0 ] && [ $((4 * $3)) -le $((5 * $4)) ] && [ $((4 * $4)) -le $((5 * $3)) ] ;;
    0) [ "$3" -gt 0 ] && [ $((10 * $4)) -le "$3" ] ;;
    1) [ "$4" -gt 0 ] && [ $((10 * $3)) -le "$4" ] ;;
  esac || failed "$2: $3 pages on node 0, $4 on node 1, expected on $1"
}
# shared_row TRIED NODES: the whole pool and the weights, as the first engine sees them.
shared_row() {
  weights=$(pages "$(processes kvhive-engine | head -n 1)" model.safetensors)
  lies_on "$2" weights $weights
  pool=$(echo "$(shared_memory)" "$shared_before" | awk '{ print $1 - $3, $2 - $4 }')
  lies_on "$2" pool $pool
  huge=$(huge_memory)
  lies_on "$2" "huge pages" $huge
  row "$1" "pages on node 0 and node 1: pool $pool (in huge pages $huge); weights $weights"
}

expected_processors() {
  seen=$(for engine in $(processes kvhive-engine); do processors "$engine"; done | sort | tr '\n' ' ')
  [ "$seen" = "$1 " ] || failed "engines on $seen, expected $1"
}

# A daemon whose weights nobody has read before, and a prompt of each engine.
start() {
  echo 3 >/proc/sys/vm/drop_caches
  shared_before=$(shared_memory)
  "$@" kvhived --model /model --engines 2 --threads 1 --kv-cache-memory-bytes 64M --cpu-bind "$bind" --detach || failed "$@ kvhived"
  ask 0 && ask 1
}
ask() {
  text=$(kvhive generate --engine "$1" --prompt-file /run/prompt --max-tokens 2 2>/dev/null) || failed "generate --engine $1"
  [ "${first:=$text}" = "$text" ] || failed "engine $1 says '$text', not '$first'"
}
stop() { kvhive stop >/dev/null || failed "kvhive stop"; }
# pid_of "engine 0": as the keeper says.
pid_of() { kvhive pool procs 2>/dev/null | awk -v who="$1" 'index($0, who " ") == 1 { print $(split(who, words, " ") + 1) }'; }
# Until both engines serve, and none of them is this process.
until_replaced() {
  for _ in $(seq 600); do
    [ "$(kvhive pool procs 2>/dev/null | grep '^engine .* serving' | grep -cvw "$1")" = 2 ] && return
    sleep 0.1
  done
  failed "no engine in place of process $1"
}

head -c 800 /model/passage.txt >/run/prompt
row tried seen
row --- ---
row "kvhive doctor" "$(kvhive doctor | grep -i node | tr -s ' ' | tr '\n' ' ')"

bind=auto start
expected_processors "0-1 2-3"
row "--cpu-bind auto, two engines" "processors 0-1 and 2-3"
shared_row "the same" both

killed=$(pid_of "engine 0")
kill -9 "$killed"
until_replaced "$killed"
expected_processors "0-1 2-3"
row "kill -9 of an engine" "its successor has the same processors"
kill -9 "$(pid_of keeper)"
killed=$(pid_of "engine 1")
kill -9 "$killed"
until_replaced "$killed"
expected_processors "0-1 2-3"
ask 0 && ask 1
shared_row "kill -9 of the keeper and an engine" both
stop

bind="0|1" start
expected_processors "0 1"
shared_row "--cpu-bind 0|1" 0
stop

bind="3|2" start
shared_row "--cpu-bind 3|2" 1
stop

bind=none start
expected_processors "0-3 0-3"
row "--cpu-bind none" "processors 0-3 and 0-3; memory where the kernel puts it"
stop

bind=auto start numactl --membind=1
expected_processors "0-1 2-3"
shared_row "numactl --membind=1 kvhived" 1
stop

bind=auto start numactl --cpunodebind=0 --membind=0
shared_row "numactl --cpunodebind=0 --membind=0 kvhived" 0
row "the same" "processors $(for engine in $(processes kvhive-engine); do processors "$engine"; done | tr '\n' ' ')"
stop

as_expected
