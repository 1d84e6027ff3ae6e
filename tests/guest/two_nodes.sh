#!/bin/bash
# Runs the daemon on a machine with two memory nodes, which a virtual one may have where the real one has a single: engines on each
# node, pages of the pool and of the weights by turns, policies and lists of the operator's. Prints what was tried and seen, as a
# table. No speed is measured: the machine is emulated, and both nodes are the same memory.
# usage: tests/guest/two_nodes.sh [FOLDER_WITH_PROGRAMS]      default: build/bin
. "$(dirname "$0")/machine.sh"
bin=$(cd "${1:-$root/build/bin}" && pwd)
command -v numactl >/dev/null || give_up "numactl is missing"

programs=("$bin"/kvhive "$bin"/kvhived "$bin"/kvhive-* "$(command -v numactl)")
new_disk <(cat "$here/inside.sh" "$here/two_nodes_inside.sh") "${programs[@]}"
cp "${programs[@]}" "$disk/bin/"
cp -r "$root/models/demo" "$disk/model"
run_machine 512M 600 -m 2G -smp 4,sockets=2,cores=2 \
  -object memory-backend-ram,size=1G,id=m0 -object memory-backend-ram,size=1G,id=m1 \
  -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1
