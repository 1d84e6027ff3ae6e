#!/bin/bash
# Runs the daemon on a machine with two memory nodes, which a virtual one may have where the real one has a single: engines on each
# node, pages of the pool and of the weights by turns, policies and lists of the operator's. Prints what was tried and seen, as a
# table. No speed is measured: the machine is emulated, and both nodes are the same memory.
# usage: tests/tools/placement/two_nodes/run.sh [FOLDER_WITH_PROGRAMS]      default: build/bin
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
bin=$(cd "${1:-$root/build/bin}" && pwd)
work=$root/build/two_nodes
for program in qemu-system-x86_64 busybox cpio mkfs.ext4 depmod numactl; do
  command -v "$program" >/dev/null || { echo "two_nodes: $program is missing; make try-two-nodes installs it" >&2; exit 1; }
done

# Debian's kernel, taken out of its package.
kernel=$work/kernel
if [ ! -d "$kernel/lib/modules" ]; then
  mkdir -p "$kernel"
  package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*-amd64\)$/\1/p' | head -1)
  (cd "$kernel" && apt-get download "$package" && dpkg-deb -x linux-image-*.deb . && rm linux-image-*.deb) ||
    { echo "two_nodes: cannot get a kernel: apt-get download '$package' failed; it takes Debian's package linux-image-amd64" >&2; exit 1; }
  depmod -b "$kernel" "$(ls "$kernel/lib/modules")"
fi
version=$(ls "$kernel/lib/modules")

# The disk: programs with the libraries that they load, and a model.
disk=$work/disk
rm -rf "$disk" && mkdir -p "$disk"/{bin,dev,proc,sys,tmp,run}
cp "$(command -v busybox)" "$disk/bin/"
for applet in sh awk cut grep head kill mkdir mount poweroff sed seq sleep sort tr; do ln -s busybox "$disk/bin/$applet"; done
programs=("$bin"/kvhive "$bin"/kvhived "$bin"/kvhive-* "$(command -v numactl)")
cp "${programs[@]}" "$disk/bin/"
cp -r "$root/models/demo" "$disk/model"
cp "$here/guest.sh" "$disk/"
ldd "${programs[@]}" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^\t\(\/[^ ]*\) (.*/\1/p' | sort -u | while read -r library; do
  mkdir -p "$disk$(dirname "$library")"
  cp -L "$library" "$disk$library"
done
rm -f "$work/disk.ext4"
mkfs.ext4 -q -d "$disk" "$work/disk.ext4" 512M >/dev/null

# What mounts it: its modules in their order.
first=$work/first
rm -rf "$first" && mkdir -p "$first"/{bin,dev,mnt,modules}
cp "$(command -v busybox)" "$first/bin/"
number=100
for module in virtio_pci virtio_blk ext4; do
  modprobe -d "$kernel" -S "$version" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
done | awk '!seen[$0]++' | while read -r file; do
  cp "$file" "$first/modules/$((number++))-$(basename "$file")"
done
cat >"$first/init" <<'EOF'
#!/bin/busybox sh
for module in /modules/*; do /bin/busybox insmod "$module"; done
/bin/busybox mount -t devtmpfs none /dev
/bin/busybox mount -t ext4 /dev/vda /mnt
exec /bin/busybox switch_root /mnt /guest.sh
EOF
chmod +x "$first/init"
(cd "$first" && find . | cpio -o -H newc --quiet) >"$work/first.cpio"

timeout 600 qemu-system-x86_64 -accel tcg,thread=multi -cpu max -nographic -no-reboot -nodefaults -serial stdio \
  -m 2G -smp 4,sockets=2,cores=2 \
  -object memory-backend-ram,size=1G,id=m0 -object memory-backend-ram,size=1G,id=m1 \
  -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 \
  -drive file="$work/disk.ext4",format=raw,if=virtio -kernel "$kernel/boot/vmlinuz-$version" -initrd "$work/first.cpio" \
  -append "console=ttyS0 quiet panic=-1" </dev/null | tee "$work/log" | sed -un 's/\r$//; /^|/p'
grep -q '^ALL AS EXPECTED' "$work/log" || { echo "two_nodes: not as expected; $work/log ends with" >&2; tail -20 "$work/log" >&2; exit 1; }
