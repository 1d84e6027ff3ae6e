#!/usr/bin/env python3
"""compile.py REPORT NVCC...: runs nvcc, writes its messages to REPORT, and prints (and fails on) all but ptxas's statistics."""
import re
import subprocess
import sys

report, command = sys.argv[1], sys.argv[2:]
done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
statistics = re.compile(r"ptxas info|^Function properties for |bytes stack frame|^\s*(Used \d+ registers|Compile time)")
other = [line for line in done.stderr.splitlines() if line.strip() and not statistics.search(line)]
if other:
    print("\n".join(other), file=sys.stderr)
with open(report, "w") as file:
    file.write(done.stderr)
sys.exit(done.returncode or bool(other))
