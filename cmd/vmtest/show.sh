#!/bin/sh
# Runs inside the virtual machine: starts the exporter given as first argument
# and keeps some RDMA traffic going over every soft-RoCE device, so that there
# is something to see. See "make vm".
#
# Ctrl-C ends vmtest, and with it the machine and all that runs in it.
set -eu

exporter=$1
port=10479
"$exporter" --web.listen-address=":$port" &
exporter_pid=$!

# Wait until the exporter serves; the tools here are those vmtest needs anyway.
until busybox wget -q -O /dev/null "http://127.0.0.1:$port/-/ready" 2>/dev/null; do
	kill -0 "$exporter_pid" 2>/dev/null || {
		echo "show.sh: the exporter has ended" >&2
		exit 1
	}
	sleep 0.2
done

cat <<END

  The exporter reads $(ls /sys/class/infiniband | wc -l) soft-RoCE devices of a real kernel. Open

      http://127.0.0.1:$port/
      http://127.0.0.1:$port/metrics

  in a browser on this machine. Ctrl-C ends it.

END

# listens PORT: somebody does.
listens() {
	grep -q ":$(printf %04X "$1") .* 0A " /proc/net/tcp /proc/net/tcp6
}

# traffic DEVICE PORT: RDMA writes between two processes over one device, with
# a pause, for ever. perftest's server ends after each run.
traffic() {
	while :; do
		ib_write_bw -F -d "$1" -x 1 -p "$2" -s 65536 -n 500 >/dev/null 2>&1 &
		server=$!
		while ! listens "$2" && kill -0 "$server" 2>/dev/null; do
			sleep 0.2
		done
		ib_write_bw -F -d "$1" -x 1 -p "$2" -s 65536 -n 500 127.0.0.1 >/dev/null 2>&1 ||
			kill "$server" 2>/dev/null || :
		wait "$server" 2>/dev/null || :
		sleep 3
	done
}

if command -v ib_write_bw >/dev/null; then
	next=18515
	for device in $(ls /sys/class/infiniband); do
		traffic "$device" "$next" &
		next=$((next + 1))
	done
else
	echo "show.sh: no traffic: ib_write_bw is missing (Debian package perftest)" >&2
fi

wait "$exporter_pid"
