# What scripts that run inside the machine begin with.
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts none /dev/pts
for folder in /dev/shm /run /tmp; do mount -t tmpfs none $folder; done
ifconfig lo 127.0.0.1 up
echo 1 >/proc/sys/kernel/printk
export HOME=/tmp PATH=/bin
echo  # behind what the firmware has written

failed() { echo "not as expected: $*" >/dev/console; poweroff -f; }
row() { echo "| $1 | $2 |"; }
as_expected() { echo "ALL AS EXPECTED"; poweroff -f; }
