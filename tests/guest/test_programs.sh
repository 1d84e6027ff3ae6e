#!/bin/bash
# Runs test programs under Debian's kernel, which is older than that of most machines on which they are written. The machine is
# emulated and slow, so tests of what time tells are not for it.
# usage: tests/guest/test_programs.sh FOLDER_WITH_PROGRAMS "PROGRAM[:FILTER] ..."
. "$(dirname "$0")/machine.sh"
bin=$(cd "$1" && pwd)

tests=() inside=$work/inside.sh
mkdir -p "$work"
{
  cat "$here/inside.sh"
  echo "ulimit -n 4096; cd $bin; row program 'seen under Linux '\$(sed 's/.*version \([^ ]*\).*/\1/' /proc/version); row --- ---"
  for each in $2; do
    program=${each%%:*} filter=${each#*:}
    tests+=("$bin/$program")
    [ "$filter" != "$each" ] || filter='*'
    echo "./$program --gtest_brief=1 '--gtest_filter=$filter' >/tmp/out 2>&1; code=\$?"
    echo "row '$each' \"\$(grep -E '^\\[  (PASSED|FAILED)' /tmp/out | head -1)\"; [ \$code = 0 ] || { tail -50 /tmp/out; failed '$program'; }"
  done
  echo as_expected
} >"$inside"
new_disk "$inside" "$bin"/kvhive "$bin"/kvhived "$bin"/kvhive-engine "$bin"/kvhive-steward "${tests[@]}"
printf 'root:x:0:0:root:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n' >"$disk/etc/passwd"
mkdir -p "$disk$root/models"
cp -r "$root/models/demo" "$disk$root/models/"
find "$disk$bin" -type f -exec strip {} +
run_machine 1536M 3600 -m 4G -smp 2
