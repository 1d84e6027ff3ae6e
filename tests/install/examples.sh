#!/bin/sh
# Installs everything into an empty folder, builds the examples and the README's snippets against it alone, runs them on the
# installed daemon with the installed model and compares their texts. Leaves no file and no process.
# usage: examples.sh CMAKE BUILD_FOLDER SOURCE_FOLDER
set -eu
cmake=$1 build=$2 source=$3
work=$(mktemp -d)
usr="$work/root/usr"
socket="$work/kvhived.sock"

cleanup() {
  [ ! -S "$socket" ] || "$usr/bin/kvhive" stop --socket "$socket" >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap cleanup EXIT INT TERM
fail() { echo "FAILED: $*" >&2; exit 1; }

DESTDIR="$work/root" "$cmake" --install "$build" --prefix /usr >"$work/log" || { cat "$work/log"; exit 1; }
library=$(dirname "$(find "$usr/lib" -name libkvhive.so)")
export LD_LIBRARY_PATH="$library" PKG_CONFIG_PATH="$library/pkgconfig" KVHIVE_SOCKET="$socket"
unset CXXFLAGS CFLAGS LDFLAGS
cp -r "$(find "$usr/share/doc" -type d -name examples)" "$work/examples"
cd "$work/examples"

"$cmake" -S . -B build -DCMAKE_PREFIX_PATH="$usr" >"$work/log" 2>&1 && "$cmake" --build build >>"$work/log" 2>&1 || {
  cat "$work/log"
  fail "the examples do not build with find_package(kvhive)"
}
# shellcheck disable=SC2046
cc -std=c11 -Wall -Wextra -Wpedantic -Werror stream.c $(pkg-config --cflags --libs kvhive) -o stream_pc

# The snippets of README.md: the first block of each language, the C and C++ one as the body of main().
snippet() { awk -v fence="\`\`\`$1" '$0 == "```" { inside = 0 } inside { print } $0 == fence && !seen { inside = seen = 1 }' "$source/README.md"; }
{ printf '#include <kvhive/client.hpp>\n#include <iostream>\nint main() {\n'; snippet cpp; printf '}\n'; } >readme.cpp
{ printf '#include <kvhive/kvhive.h>\n#include <stdio.h>\nint main(void) {\n'; snippet c; printf '}\n'; } >readme.c
snippet python >readme.py
# shellcheck disable=SC2046
{
  c++ -std=c++20 -Wall -Wextra -Wpedantic -Werror readme.cpp $(pkg-config --cflags --libs kvhive) -o readme_cpp
  cc -std=c11 -Wall -Wextra -Wpedantic -Werror readme.c $(pkg-config --cflags --libs kvhive) -o readme_c
}

python=""
modules=$(dirname "$(find "$usr/lib" -name 'kvhive.cpython*.so')")
if [ "$modules" != . ] && [ -x /usr/bin/python3 ]; then
  python="/usr/bin/python3 -B"
  export PYTHONPATH="$modules"
fi

prompt="In the beginning"
set -- build/stream_cpp build/stream_c ./stream_pc
[ -z "$python" ] || set -- "$@" stream.py

run() { case "$1" in *.py) $python "$@" ;; *) "$@" ;; esac }

for program in "$@" readme_cpp readme_c; do  # without a daemon each program prints an error
  case "$program" in readme*) program="./$program" ;; esac
  if run "$program" "$prompt" >out 2>err; then fail "$program succeeded without a daemon"; fi
  grep -q "no daemon listens on" err || fail "$program without a daemon says: $(cat err)"
done

"$usr/bin/kvhived" --model "$usr/share/kvhive/models/demo" --socket "$socket" --kv-cache-memory-bytes 16M \
  --log-level warn --detach >"$work/daemon.log" 2>&1 || { cat "$work/daemon.log"; fail "the installed kvhived does not start"; }
"$usr/bin/kvhive" generate --prompt "$prompt" --max-tokens 48 >expected 2>/dev/null
for program in "$@"; do
  run "$program" "$prompt" >out 2>err || { cat err; fail "$program"; }
  cmp expected out || { cat out; fail "$program prints another text than kvhive generate"; }
  echo "$program: $(tail -n 1 err)"
done
for program in ./readme_cpp ./readme_c ${python:+readme.py}; do
  run "$program" >out 2>err || { cat err; fail "README.md's snippet $program"; }
  [ -s out ] || fail "README.md's snippet $program prints nothing"
done
[ -z "$python" ] || $python "$source/tests/install/python_module.py" "$usr/bin/kvhive" "$socket"

"$usr/bin/kvhive" stop
[ ! -e "$socket" ] || fail "the socket is left"
for process in /proc/[0-9]*; do
  ! grep -qs "$work/" "$process/cmdline" || [ "${process#/proc/}" = $$ ] || fail "process ${process#/proc/} is left"
done
echo "nothing is left"
