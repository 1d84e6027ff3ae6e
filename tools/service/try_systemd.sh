#!/bin/bash
# Runs the unit under a real systemd, in namespaces of its own: start, reload, another program under load, each process killed,
# stop. Prints what was tried and seen, as a table. Needs root, and systemd as a package; it need not be what the system runs.
# usage: tools/service/try_systemd.sh [FOLDER_WITH_PROGRAMS]      default: build/bin
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
bin=$(cd "${1:-$root/build/bin}" && pwd)
if [ "${KVHIVE_TRIES:-}" = "" ]; then
  [ "$(id -u)" = 0 ] && command -v /lib/systemd/systemd >/dev/null || { echo "try_systemd.sh: needs root, and apt-get install systemd" >&2; exit 1; }
  KVHIVE_TRIES=1 exec unshare --mount --pid --fork --kill-child --mount-proc bash "$0" "$bin"
fi

mount -t tmpfs none /run
mkdir -p /run/systemd/system /run/user/0 /run/units /run/kvhive
export XDG_RUNTIME_DIR=/run/user/0 SYSTEMD_UNIT_PATH=/run/units KVHIVE_SOCKET=/run/kvhive/kvhived.sock
printf '[Unit]\nDefaultDependencies=no\n' | tee /run/units/default.target /run/units/exit.target >/dev/null
printf 'model = "%s/models/demo"\nengines = 2\nthreads = 1\nkv-cache-memory-bytes = "32M"\n' "$root" >/run/kvhived.toml
# A user's systemd has no users to change to, and makes no mount namespaces here; the folder is there.
sed -e "s#^Exec\(Start\|Reload\)=#&$bin/#; s|/etc/kvhive/kvhived.toml|/run/kvhived.toml|" \
    -e '/^Protect/d; /^Private/d; /^User=/d; /^RuntimeDirectory=/d; /^WantedBy=/d; s/^\[Unit\]/&\nDefaultDependencies=no/' \
    "$root/tools/service/kvhived.service" >/run/units/kvhived.service
script -qec "/lib/systemd/systemd --user --unit=default.target" /run/systemd.log >/dev/null </dev/null &

show() { systemctl --user show kvhived -p "$1" --value; }
until_is() { for _ in $(seq 600); do [ "$($1)" = "$2" ] && return; sleep 0.1; done; echo "try_systemd.sh: '$1' is '$($1)', not '$2'" >&2; cat /run/systemd.log >&2; exit 1; }
state() { show ActiveState; }
manager() { systemctl --user is-active default.target 2>/dev/null || true; }
front() { show MainPID; }
status() { "$bin/kvhive" pool procs --format json | python3 -c "import json, sys; s = json.load(sys.stdin); print($1)"; }
# The blocks in the cache, and that a stream is right.
streams() { [ "$("$bin/kvhive" generate --prompt "In the beginning" --max-tokens 64 2>/dev/null)" = "$expected" ] || { echo "try_systemd.sh: another text" >&2; exit 1; }; }
row() { printf '| %-42s | %-58s |\n' "$1" "$2"; }

until_is manager active
row "tried" "seen"
row "---" "---"
systemctl --user start kvhived || { cat /run/systemd.log; systemctl --user status kvhived; exit 1; }
expected=$("$bin/kvhive" generate --prompt "In the beginning" --max-tokens 64 2>/dev/null)
row "systemctl start" "$(state) when it serves; main process: the front"

keeper=$(status "s['keeper']['pid']")
kill -9 "$keeper"; streams
row "kill -9 of the keeper" "$(state), restarts of the unit: $(show NRestarts); the stream is right"

was=$(front)
kill -9 "$was"
new_front() { [ "$(front)" != "$was" ] && [ "$(front)" != 0 ] && echo yes || echo no; }
until_is new_front yes; streams
row "kill -9 of the front" "$(state), restarts: $(show NRestarts); the main process is the keeper that took its place"

kill -9 "$(status "s['engines'][0]['pid']")" "$(status "s['steward']['pid']")"; streams
row "kill -9 of an engine and the steward" "$(state), restarts: $(show NRestarts)"

was=$(front)
mkdir /run/newer && cp "$bin"/kvhive* /run/newer/
/run/newer/kvhived --take-over >/run/line; streams
[ "$(front)" = "$was" ] && [ "$(readlink "/proc/$was/exe")" = /run/newer/kvhived ]
row "another kvhived --take-over" "$(state), restarts: $(show NRestarts); the same main process"

printf 'log-level = "warn"\n' >>/run/kvhived.toml
systemctl --user reload kvhived
[ "$(status "s['flags'][s['flags'].index('--log-level') + 1]")" = warn ]
row "systemctl reload" "the daemon has the new option"

keeper=$(status "s['keeper']['pid']"); was=$(front)
kill -STOP "$was" "$keeper"; kill -9 "$was" "$keeper"
restarted() { show NRestarts; }
until_is restarted 1; until_is state active; streams
row "kill -9 of front and keeper at once" "all ends; systemd starts the daemon anew"

begin=$(date +%s.%N)
systemctl --user stop kvhived
row "systemctl stop" "$(state) after $(python3 -c "import time; print(f'{time.time() - $begin:.2f}')") s; left in its cgroup: $(show TasksCurrent | sed 's/.*not set.*/nothing/'); socket: $(ls /run/kvhive | wc -l)"
systemctl --user exit
