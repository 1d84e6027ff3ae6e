#!/bin/sh
# Checks what a program can check before a review: include rules, layout, clang-tidy (the last two if they are installed).
set -eu
cd "$(dirname "$0")/.."
python3 tools/check_layers.py .
sources=$(git ls-files '*.cpp' '*.hpp' '*.cu' '*.cuh')
if command -v clang-format >/dev/null; then
  # shellcheck disable=SC2086
  clang-format --dry-run --Werror $sources && echo "layout holds"
else
  echo "clang-format is not installed: layout not checked" >&2
fi
if command -v clang-tidy >/dev/null && [ -f build/compile_commands.json ]; then
  mkdir -p build/lint  # it cannot read what GCC has precompiled
  sed -E 's/ -Winvalid-pch -include [^ ]+//g' build/compile_commands.json >build/lint/compile_commands.json
  git ls-files 'base/*.cpp' 'config/*.cpp' 'hashing/*.cpp' 'pool/*.cpp' 'kernels/*.cpp' 'models/*.cpp' 'ipc/*.cpp' 'client/*.cpp' 'actors/*.cpp' 'tools/*.cpp' |
    xargs -P "$(nproc)" -n 1 clang-tidy -p build/lint --quiet --warnings-as-errors='*' && echo "clang-tidy finds nothing"
else
  echo "clang-tidy or build/compile_commands.json is missing: not run" >&2
fi
