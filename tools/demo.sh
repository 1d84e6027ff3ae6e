#!/bin/sh
# Shows prefix sharing in one minute: two engines over one pool, the demo model, a prompt on engine 0 and another with the same
# long beginning on engine 1. Leaves no process, file or shared memory.
set -eu
bin=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
export KVHIVE_SOCKET="$work/kvhived.sock"

cleanup() {
  "$bin/kvhive" stop >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap cleanup EXIT INT TERM

# Bold and faint text on a terminal that has them, unless NO_COLOR is set.
bold='' faint='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
  bold=$(printf '\033[1m') faint=$(printf '\033[2m') plain=$(printf '\033[0m')
fi
say() { printf '\n%s\n' "$bold$*$plain"; }

say "1. The daemon starts two engines over one pool of 64 MiB"
"$bin/kvhived" --model "$here/models/demo" --engines 2 --kv-cache-memory-bytes 64M --log-level warn --detach

speech="--max-tokens 48 --ignore-eos --temperature 0.7 --seed 3"
passage="$here/models/demo/passage.txt"
{ cat "$passage"; printf 'And it came to pass'; } >"$work/first"
{ cat "$passage"; printf 'And the LORD said'; } >"$work/second"

say "2. Engine 0 reads a long passage and goes on"
printf '%s... %s%s' "$faint" "$(tail -c 160 "$work/first" | tr '\n' ' ')" "$plain"
"$bin/kvhive" generate --engine 0 --prompt-file "$work/first" $speech

say "3. Engine 1 gets the same passage with another end: its prefix is in engine 0's blocks"
printf '%s... %s%s' "$faint" "$(tail -c 160 "$work/second" | tr '\n' ' ')" "$plain"
"$bin/kvhive" generate --engine 1 --prompt-file "$work/second" $speech

say "4. The same request as JSON, on both engines: equal tokens, and what it cost"
for engine in 0 1; do
  "$bin/kvhive" generate --engine $engine --prompt-file "$work/second" --max-tokens 16 --format json >"$work/$engine.json"
done
python3 - "$work" <<'END'
import json, sys
a, b = (json.load(open(f"{sys.argv[1]}/{i}.json")) for i in "01")
for r in a, b:
    print(f"engine {r['engine']}: {r['cached_tokens']} of {r['prompt_tokens']} prompt tokens cached, ttft {r['ttft_ms']:.1f} ms")
print("tokens equal:", a["token_ids"] == b["token_ids"])
END

say "5. kvhive pool stat"
"$bin/kvhive" pool stat
say "6. kvhive pool procs"
"$bin/kvhive" pool procs
say "7. kvhive pool fsck --privileged"
"$bin/kvhive" pool fsck --privileged

say "8. Stop: nothing is left"
"$bin/kvhive" stop
rm -f "$work/first" "$work/second" "$work"/*.json
[ -z "$(ls -A "$work")" ] || { echo "left behind in $work: $(ls -A "$work")"; exit 1; }
for process in /proc/[0-9]*; do
  ! grep -qs "$work/kvhived.sock" "$process/cmdline" || { echo "left behind: process ${process#/proc/}"; exit 1; }
done
echo "no process, no file, no shared memory"
