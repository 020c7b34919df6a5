package main

import (
	"strings"
	"testing"
)

// setParameters is a shell prelude: P sets a parameter of gdrtest_ib, and C is
// the first port of the first device.
const setParameters = `
P() { echo "$2" >/sys/module/gdrtest_ib/parameters/$1; }
C=/sys/class/infiniband/gdrtest0/ports/1
`

func TestGdrtestAttributes(t *testing.T) {
	needsVM(t)
	out := inVM(t, setParameters+`
		rdma link | sed -n 's/.*\(gdrtest.*\) subnet.* state/\1 state/p'
		cat /sys/class/infiniband/gdrtest0/node_guid $C/link_layer $C/rate $C/gids/0
		basename $(readlink -f /sys/class/infiniband/gdrtest0/device) $(readlink -f /sys/class/infiniband/gdrtest1/device)
		P symbol_error 77; P link_downed 1000; P port_xmit_data 1234567890123; P hw_out_of_buffer 99
		cd $C; grep . counters/symbol_error counters/link_downed counters/port_xmit_data hw_counters/out_of_buffer
		P fault_device 0; P fault_port 2; P saturate 1; P port_state 1; P phys_state 2
		cat state phys_state; cat ../2/state ../2/phys_state; grep . ../2/counters/[Vel]* ../2/counters/port_xmit_wait
		cat /sys/class/infiniband/gdrtest1/ports/2/state`,
		"--devices", "0", "--topology", "switch",
		"--module", "module/gdrtest_ib:count=2,ports=2,port_state=2,parent=0000:03:00.0+0000:09:00.0")
	wantLines(t, out,
		"gdrtest0/1 state INIT physical_state LINK_UP ", "gdrtest1/2 state INIT physical_state LINK_UP ",
		"0200:0000:0000:0100\nInfiniBand\n400 Gb/sec (4X NDR)\nfe80:0000:0000:0000:0200:0000:0000:0101",
		"0000:03:00.0", "counters/symbol_error:77\ncounters/link_downed:255\ncounters/port_xmit_data:1234567890123\nhw_counters/out_of_buffer:99",
		"4: ACTIVE\n5: LinkUp\n1: DOWN\n2: Polling",
		"../2/counters/VL15_dropped:65535\n../2/counters/excessive_buffer_overrun_errors:15\n../2/counters/link_downed:255",
		"../2/counters/local_link_integrity_errors:15\n../2/counters/port_xmit_wait:4294967295\n4: ACTIVE",
	)
}

func TestGdrtestFaults(t *testing.T) {
	needsVM(t)
	out := inVM(t, setParameters+`
		read_file() { cat $1 2>&1 | sed 's/.*: //'; }
		P query_port_errno 110; read_file $C/state; P query_port_errno 0
		P hw_stats_errno 5; read_file $C/hw_counters/out_of_buffer; P hw_stats_errno 0
		P counters_errno 1; read_file $C/counters/symbol_error; P counters_errno 0
		P active_width 0; read_file $C/rate; P active_width 2
		cat $C/counters/symbol_error

		P counters_delay_ms 1000000
		# The module sleeps in short turns, between which it is R for a moment,
		# and a program takes its time to start: look until it is D, or for long.
		state() {
			for i in $(seq 100); do
				s=$(cut -d' ' -f3 /proc/$1/stat); [ "$s" != D ] || break; sleep 0.1
			done
			echo "$s"
		}
		cat $C/counters/symbol_error &
		echo "hangs $(state $!), state of the port $(cat $C/state)"
		kill -9 $!; wait $!; echo "killed $?"

		P delay_uninterruptible 1
		cat $C/counters/symbol_error &
		state $! >/dev/null
		kill -9 $!; sleep 0.5
		echo "still there $(state $!)"
		P counters_delay_ms 0; wait $!; echo "let go $?"
		rmmod gdrtest_ib && ls /sys/class/infiniband`, "--module", "module/gdrtest_ib")
	wantLines(t, out,
		"Connection timed out\nInput/output error\nInvalid argument\nInvalid argument\n0",
		"hangs D, state of the port 4: ACTIVE", "killed 137", "still there D", "let go 137", "rxe0",
	)
}

func TestGdrtestShapes(t *testing.T) {
	needsVM(t)
	out := inVM(t, `
		cd /sys/class/infiniband/mlx5_0
		ls ports/1 | grep counters; ls -d hw_counters; rmmod gdrtest_ib
		echo reloaded`, "--module", "module/gdrtest_ib:name=mlx5_0,hw_level=2,counters=0")
	if out != "hw_counters\nreloaded\n" {
		t.Errorf("got:\n%s", out)
	}
}

func TestPeermem(t *testing.T) {
	needsVM(t)
	out := inVM(t, `
		M=/sys/module/nvidia_peermem; D=/sys/kernel/mm/memory_peers
		grep -o '^nvidia_peermem ' /proc/modules
		ls $D; ls $D/nv_mem; cat $M/version $D/nv_mem/version $M/parameters/persistent_api_support
		echo 12 >$M/parameters/num_alloc_mrs; cat $D/nv_mem/num_alloc_mrs
		echo 3 >$M/parameters/live_mrs; cat $M/refcnt; rmmod nvidia_peermem 2>/dev/null || echo "in use"
		echo 0 >$M/parameters/live_mrs; cat $M/refcnt
		rmmod nvidia_peermem && { ls $M $D 2>/dev/null || echo gone; }`,
		"--devices", "0", "--module", "module/nvidia_peermem:persistent_api_support=0")
	wantLines(t, out, "nvidia_peermem ", "nv_mem\nnv_mem_nc",
		"num_alloc_mrs\nnum_dealloc_mrs\nnum_dereg_bytes\nnum_dereg_pages\nnum_free_callbacks\nnum_reg_bytes\nnum_reg_pages\nversion",
		"580.95.05\n580.95.05\n0\n12\n3\nin use\n0\ngone")
}

func TestModuleThatDoesNotLoad(t *testing.T) {
	needsVM(t)
	got := vmtest(t, "--devices", "0", "--module", "module/nvidia_peermem:fail_init=1", "--", "true")
	if got.status != exitTool || !strings.Contains(got.stderr, "module nvidia_peermem: insmod") || !strings.Contains(got.stderr, "Invalid parameters") {
		t.Errorf("exit status %d, stderr:\n%s", got.status, got.stderr)
	}
}

func TestModuleThatDoesNotCompile(t *testing.T) {
	needsVM(t)
	dir := t.TempDir()
	write(t, dir+"/Makefile", "obj-m := broken.o\n")
	write(t, dir+"/broken.c", "int broken = ;\n")
	got := vmtest(t, "--module", dir, "--", "true")
	if got.status != exitTool || !strings.Contains(got.stderr, "error: expected expression") {
		t.Errorf("exit status %d, stderr:\n%s", got.status, got.stderr)
	}
}
