#!/bin/sh
# venv.sh NAME: makes the virtual environment build/beside/NAME with requirements-NAME.txt, if it is not there yet.
set -eu
cd "$(dirname "$0")/../.."
folder="build/beside/$1"
wanted="tests/beside/requirements-$1.txt"
if ! cmp -s "$wanted" "$folder/installed.txt"; then
  tools/install_packages.sh python3-venv
  rm -rf "$folder"
  /usr/bin/python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
  cp "$wanted" "$folder/installed.txt"
fi
