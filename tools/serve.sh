#!/bin/sh
# Starts all there is, on the demo model: the daemon with two engines, the service with its page on PORT (8000; the next free one if that is
# taken), and a chat in the terminal. Ctrl-C or the end of input stops it. Leaves no process, file or shared memory.
set -eu
bin=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
export KVHIVE_SOCKET="$work/kvhived.sock"
service=''

cleanup() {
  trap - EXIT
  trap '' INT TERM HUP  # a second Ctrl-C must not end this halfway
  [ -z "$service" ] || { kill "$service" 2>/dev/null && wait "$service" 2>/dev/null; } || true
  "$bin/kvhive" stop >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The first port from PORT on that nobody has.
free_port() {
  python3 - "${PORT:-8000}" <<'END'
import socket, sys
wanted = int(sys.argv[1])
for port in range(wanted, min(wanted + 100, 65536)):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            continue
        print(s.getsockname()[1])
        break
else:
    sys.exit(f"no port from {wanted} on is free; give another: make serve PORT=9000")
END
}
port=$(free_port)

# A signal of the terminal goes to its whole group: in sessions of their own both wait until they are stopped here.
setsid "$bin/kvhived" --model "$here/models/demo" --engines 2 --kv-cache-memory-bytes 64M --log-level warn --detach
setsid "$bin/kvhive" serve --port "$port" >"$work/service" &
service=$!
until grep -qs '^ready' "$work/service"; do
  kill -0 "$service" 2>/dev/null || exit 1
  sleep 0.1
done

url="http://127.0.0.1:$port"
cat <<END

  The page         $url/
  A completion     curl $url/v1/completions -d '{"prompt": "In the beginning", "max_tokens": 40}'
  In a terminal    KVHIVE_SOCKET=$KVHIVE_SOCKET $bin/kvhive top
END
# Without a terminal nobody can chat: then it waits for a signal.
if [ -t 0 ] && [ -t 1 ]; then
  printf '\n  The demo model follows no instructions: it goes on with what you write. Ctrl-C or Ctrl-D stops everything.\n\n'
  python3 "$here/examples/chat.py" "$url" || true
else
  printf '\n  SIGINT or SIGTERM stops everything.\n'
  wait "$service"
fi
