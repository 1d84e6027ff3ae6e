#!/bin/sh
# venv.sh NAME: makes the virtual environment build/beside/NAME with requirements-NAME.txt, if it is not there yet. What is in
# requirements-NAME-alone.txt comes without what it requires in its turn (vLLM asks for a GPU's worth of packages that its scheduler does not need).
set -eu
cd "$(dirname "$0")/../.."
folder="build/beside/$1"
wanted="tests/beside/requirements-$1.txt"
if ! cmp -s "$wanted" "$folder/installed.txt"; then
  tools/install_packages.sh python3-venv
  rm -rf "$folder"
  /usr/bin/python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
  alone="tests/beside/requirements-$1-alone.txt"
  if [ -e "$alone" ]; then "$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$alone"; fi
  cp "$wanted" "$folder/installed.txt"
fi
