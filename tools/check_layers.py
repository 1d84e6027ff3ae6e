#!/usr/bin/env python3
"""Who may include whom (arrows in ARCHITECTURE.md). Run as a test; prints each include that breaks the rules."""
import pathlib
import re
import sys

MAY_INCLUDE = {
    "config": set(),
    "hashing": {"config"},
    "pool": {"config", "hashing"},
    "kernels": {"config"},
    "device": {"config"},
    "models": {"config", "kernels", "device"},
    "actors": {"config", "hashing", "pool", "kernels", "device", "models"},
    "tools": {"config", "hashing", "pool", "kernels", "device", "models", "actors"},
}

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
broken = []
for folder, allowed in MAY_INCLUDE.items():
    for path in sorted(p for p in (root / folder).rglob("*") if p.suffix in (".hpp", ".cpp", ".cuh", ".cu")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = re.match(r'\s*#\s*include\s+"([^"/]+)/', line)
            target = found.group(1) if found else folder
            if target in MAY_INCLUDE and target not in allowed | {folder}:
                broken.append(f"{path.relative_to(root)}:{number}: {folder}/ must not include {target}/")
            is_peer = path.is_relative_to(root / "tools/bench/peers")  # what kvhive is compared with
            if not is_peer and re.search(r"#\s*include\s+<boost/interprocess/(sync|managed|containers|allocators)", line):
                broken.append(f"{path.relative_to(root)}:{number}: Boost's locks and containers do not survive a kill")
            if "<caf/" in line and str(path.relative_to(root)) != "actors/protocol.hpp":
                broken.append(f"{path.relative_to(root)}:{number}: CAF shows in actors/protocol.hpp only")
print("\n".join(broken) or "include rules hold")
sys.exit(bool(broken))
