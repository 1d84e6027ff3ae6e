#!/usr/bin/env python3
"""register_gate.py LIMITS REPORT...: fails if a kernel spills registers or uses more than its limit.

LIMITS has lines "PATTERN REGISTERS". The first pattern that is found in a kernel's name is its limit; every kernel needs one."""
import re
import subprocess
import sys


def kernels(report):
    """Yields (architecture, mangled name, registers, bytes spilled) for each kernel that ptxas reports."""
    name = arch = None
    spilled = 0
    for line in open(report):
        if found := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
            name, arch, spilled = found.group(1), found.group(2), 0
        elif found := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = int(found.group(1)) + int(found.group(2))
        elif (found := re.search(r"Used (\d+) registers", line)) and name:
            yield arch, name, int(found.group(1)), spilled
            name = None


limits = [line.split() for line in open(sys.argv[1]) if line.strip() and not line.startswith("#")]
rows = [row for report in sys.argv[2:] for row in kernels(report)]
names = subprocess.run(["c++filt"], input="\n".join(row[1] for row in rows), capture_output=True, text=True).stdout.splitlines()
bad = 0
for (arch, _, registers, spilled), name in sorted(zip(rows, names), key=lambda pair: pair[1]):
    short = re.sub(r"\(anonymous namespace\)::|kvhive::|^void |\([^()]*\)$", "", name)
    limit = next((int(limit) for pattern, limit in limits if re.search(pattern, short)), 0)
    fails = spilled > 0 or registers > limit
    bad += fails
    print(f"{'FAIL' if fails else 'ok  '} {arch} registers {registers} of {limit}, spilled {spilled}: {short}")
print(f"{len(rows)} kernels, {bad} over their limits")
sys.exit(bad > 0 or not rows)
