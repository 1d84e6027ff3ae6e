#!/bin/sh
# Formats manual pages with groff and fails on any warning; on a man page that lacks a section; on an option of --help that
# the page does not have. usage: man_page_test.sh PROGRAM PAGE. Exit code 77 = there is no groff.
set -eu
command -v groff >/dev/null || exit 77
warnings=$(groff -man -Tutf8 -ww -z "$2" 2>&1)
[ -z "$warnings" ] || { echo "$warnings"; exit 1; }
text=$(groff -man -Tascii -P-cbou "$2")
for section in NAME SYNOPSIS DESCRIPTION OPTIONS 'EXIT STATUS' 'SEE ALSO'; do
  echo "$text" | grep -q "^$section" || { echo "no section $section"; exit 1; }
done
"$1" --help | grep -o '^  \(-h,\)\?--[a-z-]*' | while read -r option; do
  echo "$text" | grep -q -e "$option" || { echo "the page lacks $option"; exit 1; }
done
