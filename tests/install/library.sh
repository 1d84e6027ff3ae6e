#!/bin/sh
# Tests the installed library and its headers: the headers need no other file of the project and compile without a warning, the library
# exports kvhive's API alone and links nothing but the C and C++ runtimes.
# usage: library.sh CMAKE BUILD_FOLDER SOURCE_FOLDER
set -eu
cmake=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
for component in library dev; do
  "$cmake" --install "$build" --prefix "$work/usr" --component $component >"$work/log" || { cat "$work/log"; exit 1; }
done
warnings="-Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only"

cat >"$work/client.cpp" <<'END'
#include <kvhive/client.hpp>
#include <kvhive/kvhive.h>
int main() { return kvhive::Client::connect().has_value() ? 0 : 1; }
END
cat >"$work/client.c" <<'END'
#include <kvhive/kvhive.h>
int main(void) {
  kvhive_options options = kvhive_default_options();
  kvhive_request request = kvhive_default_request("x");
  kvhive_progress progress = kvhive_empty_progress();
  return options.struct_size && request.struct_size && progress.struct_size ? 0 : 1;
}
END
# shellcheck disable=SC2086
{
  c++ -std=c++20 $warnings -I "$work/usr/include" "$work/client.cpp"
  cc -std=c11 $warnings -I "$work/usr/include" "$work/client.c"
  c++ -x c++ -std=c++11 $warnings -I "$work/usr/include" "$work/client.c"
}
echo "headers: compiled alone as C++20, C11 and C++11"
if grep -n '#include "' "$work"/usr/include/kvhive/*; then
  echo "a public header includes a file that is not the standard library's" >&2
  exit 1
fi

library=$(find "$work/usr" -name 'libkvhive.so.?')
foreign=$(nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | grep -vE '^(kvhive_|_ZNK?6kvhive)' || true)
[ -z "$foreign" ] || { printf 'exported, but not of the API:\n%s\n' "$foreign" >&2; exit 1; }
echo "symbols: $(nm -D --defined-only "$library" | awk '$2 != "A"' | wc -l), all of the API"

linked=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
foreign=$(echo "$linked" | grep -vE '^(libc|libm|libstdc\+\+|libgcc_s|ld-linux-[a-z0-9-]*)\.so' || true)
[ -z "$foreign" ] || { printf 'linked, but neither the C nor the C++ runtime:\n%s\n' "$foreign" >&2; exit 1; }
echo "libraries:" $linked
