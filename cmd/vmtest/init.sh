#!/bin/busybox sh
# First process of the VM: mounts the machine's root file system, read-only,
# below a RAM overlay, and makes it the root. Its output is the console.

fail() {
	echo "vmtest: init: $*"
	echo o >/proc/sysrq-trigger
	while :; do sleep 60; done
}

/bin/busybox --install -s /bin
export PATH=/bin

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev

while read -r module; do
	insmod "/modules/$module" || fail "cannot load $module"
done </modules/order

mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 root /lower ||
	fail "cannot mount the machine's root file system"
mount -t tmpfs -o mode=755,size=75% tmpfs /upper
mkdir /upper/data /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work overlay /newroot ||
	fail "cannot mount the overlay"

mount --move /proc /newroot/proc
mount --move /sys /newroot/sys
mount --move /dev /newroot/dev
mount -t tmpfs -o mode=755 tmpfs /newroot/run
# The shell that stays process 1 reaps orphans; it runs from RAM as well.
cp -r /vmtest /newroot/run/vmtest && cp /bin/busybox /newroot/run/vmtest ||
	fail "cannot copy the guest agent"

# systemd as the first process starts the guest agent itself.
if [ -e /vmtest/vmtest.service ]; then
	mkdir -p /newroot/run/systemd/system/multi-user.target.wants
	cp /vmtest/vmtest.service /newroot/run/systemd/system/
	ln -s ../vmtest.service /newroot/run/systemd/system/multi-user.target.wants/
	exec switch_root /newroot /lib/systemd/systemd
fi

exec switch_root /newroot /run/vmtest/busybox sh -c '
	/run/vmtest/vmtest-guest
	echo "vmtest: init: the guest agent ended with status $?"
	echo o >/proc/sysrq-trigger
	while :; do /run/vmtest/busybox sleep 60; done
'
