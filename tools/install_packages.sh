#!/bin/sh
# Installs the Debian 12 packages that kvhive is built with. Does nothing if all are installed.
set -eu

packages="g++ make cmake ninja-build pkg-config
  libcaf-dev libboost-dev libxxhash-dev libspdlog-dev libgtest-dev libgmock-dev
  libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libexpected-dev
  libdnnl-dev ocl-icd-opencl-dev libhwy-dev libpcre2-dev libpng-dev libzmq3-dev cppzmq-dev libutf8proc-dev libseccomp-dev libcap-ng-dev libhwloc-dev libssl-dev zlib1g-dev libzip-dev python3 python3-dev python3-jinja2 python3-seccomp pybind11-dev dpkg-dev file $*"

# Optional: tests that need these packages are skipped without them.
optional="spin"

is_installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

missing=""
for package in $packages; do
  is_installed "$package" || missing="$missing $package"
done
wanted=""
for package in $optional; do
  is_installed "$package" || wanted="$wanted $package"
done
[ -n "$missing$wanted" ] || exit 0

if [ -z "$missing" ] && ! { command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; }; then
  exit 0  # only optional packages are missing: do not ask for a password
fi
if ! command -v apt-get >/dev/null; then
  echo "kvhive: these packages are missing and there is no apt-get to install them:$missing" >&2
  exit 1
fi
as_root=""
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "kvhive: run as root, or install by hand:$missing" >&2; exit 1; }
  as_root=sudo
fi
echo "kvhive: installing$missing$wanted"
$as_root apt-get update -qq || [ -z "$missing" ]
if [ -n "$wanted" ]; then
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $wanted >/dev/null ||
    echo "kvhive: going on without$wanted" >&2
fi
[ -n "$missing" ] || exit 0
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null || {
  echo "kvhive: apt-get could not install:$missing" >&2
  exit 1
}
