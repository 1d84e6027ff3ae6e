#!/bin/sh
# Tries the Debian packages in an empty Debian 12 root: installs them by apt, which must find every dependency, builds the three
# examples there, and runs them against the installed daemon. The root is removed at the end. Needs root and debootstrap.
# usage: tools/try_packages.sh [FOLDER_WITH_PACKAGES]      default: build/packages; `make package` writes it
set -eu
packages=$(cd "${1:-$(dirname "$0")/../build/packages}" && pwd)
mirror=${MIRROR:-http://deb.debian.org/debian}
root=$(mktemp -d)
chmod 755 "$root"  # apt downloads as a user of its own

cleanup() {
  inside 'kvhive stop' >/dev/null 2>&1 || true
  for folder in dev/shm dev proc; do
    ! mountpoint -q "$root/$folder" || umount "$root/$folder"
  done
  rm -rf --one-file-system "$root"
}
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root ${http_proxy:+http_proxy="$http_proxy"} sh -euc "$1"; }
say() { printf '\n== %s\n' "$*"; }
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || { echo "try_packages.sh: needs root and debootstrap" >&2; exit 1; }
trap cleanup EXIT INT TERM

say "1. An empty root from $mirror"
debootstrap --variant=minbase bookworm "$root" "$mirror" >"$root.log" 2>&1 || { tail "$root.log"; exit 1; }
rm -f "$root.log"
cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
cp /etc/apt/apt.conf.d/*proxy* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mkdir "$root/packages"
cp "$packages"/*.deb "$root/packages/"

say "2. apt installs the packages and what they depend on"
inside 'apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends /packages/*.deb >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }
  dpkg-query -W -f="\${Package} \${Version}: \${Depends}\n" kvhive libkvhive0 libkvhive-dev python3-kvhive'

say "3. The daemon and the command line"
inside 'kvhived --model /usr/share/kvhive/models/demo --kv-cache-memory-bytes 64M --log-level warn --detach >/tmp/log 2>&1 || { cat /tmp/log; exit 1; }
  kvhive generate --prompt "In the beginning" --max-tokens 48 >/tmp/expected
  cat /tmp/expected
  kvhive pool stat | head -n 5'

say "4. The examples, built there"
inside 'DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends g++ make cmake pkg-config >/dev/null 2>&1
  cp -r /usr/share/doc/kvhive/examples /tmp/examples
  cd /tmp/examples
  cmake -S . -B build >/tmp/log 2>&1 && cmake --build build >>/tmp/log 2>&1 || { cat /tmp/log; exit 1; }
  gcc -std=c11 -Wall -Werror stream.c $(pkg-config --cflags --libs kvhive) -o stream_pc
  for program in build/stream_cpp build/stream_c ./stream_pc ./stream.py; do
    $program "In the beginning" >out
    cmp /tmp/expected out
  done'

say "5. Manual pages and completion"
inside 'DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends man-db bash bash-completion >/dev/null 2>&1
  for program in kvhived kvhive; do
    man -P cat "$program" >/tmp/page
    grep -q -- "--socket" /tmp/page
    sed -n "1,6p" /tmp/page
  done'
cat >"$root/tmp/complete.sh" <<'EOF'
# Prints what <Tab> offers behind the given words.
. /usr/share/bash-completion/bash_completion
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
_completion_loader "$1" || [ $? = 124 ]
$(complete -p "$1" | sed 's/.*-F \([^ ]*\).*/\1/') "$1" "${@: -1}" ""
echo "$*<Tab>: ${COMPREPLY[*]}"
[ -n "${COMPREPLY[*]}" ]
EOF
inside 'bash /tmp/complete.sh kvhive pool ""
  bash /tmp/complete.sh kvhived --preemption-mode ""'

say "6. The end"
inside 'kvhive stop'
if ls -l /proc/[0-9]*/exe 2>/dev/null | grep "$root/usr/bin/kvhive"; then echo "a process is left" >&2; exit 1; fi
inside 'apt-get purge -y -qq kvhive libkvhive0 libkvhive-dev python3-kvhive >/dev/null 2>&1
  dpkg -l | grep kvhive || echo "purged"
  left=$(find / -xdev -name "*kvhive*" -not -path "/packages/*" -not -path "/tmp/*" -not -path "/var/cache/man/*" -not -path "/proc/*")
  [ -z "$left" ] || { echo "left behind: $left" >&2; exit 1; }'
