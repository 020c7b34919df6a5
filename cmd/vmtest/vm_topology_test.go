package main

import "testing"

// printDevices shows each NIC's place in the PCIe tree, its NUMA node and its
// AER file.
const printDevices = `
for nic in /sys/class/net/eth[1-9]; do
	address=$(basename $(readlink $nic/device))
	[ -e $nic/device/aer_dev_correctable ] && aer=aer || aer=none
	echo "$(readlink -f $nic/device | sed 's,/sys/devices/,,') node $(cat $nic/device/numa_node) $aer"
done
`

func TestSwitchTopology(t *testing.T) {
	needsVM(t)
	out := inVM(t, printDevices, "--topology", "switch", "--devices", "0")
	wantLines(t, out,
		"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0 node -1 aer",
		"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0 node -1 aer",
		"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:05:00.0/0000:06:00.0 node -1 aer",
		"pci0000:00/0000:00:02.0/0000:07:00.0/0000:08:00.0/0000:09:00.0 node -1 aer",
	)
}

func TestNumaTopology(t *testing.T) {
	needsVM(t)
	out := inVM(t, printDevices+"cat /sys/devices/system/node/node1/cpulist", "--topology", "numa", "--devices", "0")
	wantLines(t, out,
		"pci0000:40/0000:40:00.0/0000:41:00.0 node 0 aer",
		"pci0000:40/0000:40:01.0/0000:42:00.0 node 0 aer",
		"pci0000:80/0000:80:00.0/0000:81:00.0 node 1 aer",
		"1",
	)
}

// The kernel sets request and completion redirect and upstream forwarding on
// root ports exactly if it remaps DMA.
func TestIommuTopology(t *testing.T) {
	needsVM(t)
	out := inVM(t, printDevices+`
		lspci -vvs 00:01.0 | sed -n 's/^[[:space:]]*ACSCtl:[[:space:]]*/ACS /p'
		[ -e /sys/bus/pci/devices/0000:01:00.0/iommu_group ] && echo group`, "--topology", "iommu", "--devices", "0")
	wantLines(t, out,
		"pci0000:00/0000:00:01.0/0000:01:00.0 node -1 aer",
		"pci0000:00/0000:00:02.0/0000:02:00.0/0000:03:00.0/0000:04:00.0 node -1 aer",
		"ACS SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-",
		"group",
	)
}

func TestNumaMemoryMismatch(t *testing.T) {
	needsVM(t)
	got := vmtest(t, "--topology", "numa", "--memory", "1G", "--", "true")
	if got.status != exitTool {
		t.Errorf("exit status %d, stderr:\n%s", got.status, got.stderr)
	}
}
