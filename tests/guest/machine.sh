# A machine with Debian's kernel, emulated (QEMU without hardware help), for scripts that source this. Files go to build/guest.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$root/build/guest
disk=$work/disk
name=$(basename "$0")

give_up() { echo "$name: $*" >&2; exit 1; }
for program in qemu-system-x86_64 busybox cpio mkfs.ext4 depmod; do
  command -v "$program" >/dev/null || give_up "$program is missing; see the Makefile's list of packages"
done

# Debian's kernel, taken out of its package.
kernel=$work/kernel
if [ ! -d "$kernel/lib/modules" ]; then
  mkdir -p "$kernel"
  package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*-amd64\)$/\1/p' | head -1)
  (cd "$kernel" && apt-get download "$package" && dpkg-deb -x linux-image-*.deb . && rm linux-image-*.deb) ||
    give_up "cannot get a kernel: apt-get download '$package' failed; it takes Debian's package linux-image-amd64"
  depmod -b "$kernel" "$(ls "$kernel/lib/modules")"
fi
version=$(ls "$kernel/lib/modules")

# new_disk INIT PROGRAM...: a disk with what the machine runs, and programs in their folders with the libraries that they load.
new_disk() {
  rm -rf "$disk" && mkdir -p "$disk"/{bin,dev,etc,proc,sys,tmp,run}
  cp "$(command -v busybox)" "$disk/bin/"
  for applet in sh awk cat cut grep head ifconfig kill ls mkdir mount poweroff sed seq sleep sort tail timeout tr true; do ln -s busybox "$disk/bin/$applet"; done
  cp "$1" "$disk/init.sh"
  shift
  for file in "$@"; do
    mkdir -p "$disk$(dirname "$file")"
    cp "$file" "$disk$file"
  done
  ldd "$@" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^\t\(\/[^ ]*\) (.*/\1/p' | sort -u | while read -r library; do
    mkdir -p "$disk$(dirname "$library")"
    cp -L "$library" "$disk$library"
  done
}

# run_machine SIZE SECONDS OPTION...: until it is powered off. What it prints goes to build/guest/log, and lines of a table are shown.
run_machine() {
  rm -f "$work/disk.ext4"
  mkfs.ext4 -q -d "$disk" "$work/disk.ext4" "$1" >/dev/null
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
exec /bin/busybox switch_root /mnt /bin/sh /init.sh
EOF
  chmod +x "$first/init"
  (cd "$first" && find . | cpio -o -H newc --quiet) >"$work/first.cpio"
  timeout "$2" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -nographic -no-reboot -nodefaults -serial stdio "${@:3}" \
    -drive file="$work/disk.ext4",format=raw,if=virtio -kernel "$kernel/boot/vmlinuz-$version" -initrd "$work/first.cpio" \
    -append "console=ttyS0 quiet panic=-1" </dev/null | tee "$work/log" | sed -un 's/\r$//; /^|/p'
  grep -q '^ALL AS EXPECTED' "$work/log" || { echo "$name: not as expected; $work/log ends with" >&2; tail -20 "$work/log" >&2; exit 1; }
}
