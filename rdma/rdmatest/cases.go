package rdmatest

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Cases returns the table of abnormal inputs. The order is that of the groups below; IDs are unique.
func Cases() []Case {
	var all []Case
	for _, group := range [][]Case{
		counterErrors(), attributeErrors(), numberCases(), rateCases(), stateCases(), driverCases(), topologyCases(), lifeCases(),
		peermemCases(),
	} {
		all = append(all, group...)
	}
	return all
}

const port1 = "ports/1/"

// edit returns a change that writes one file of the first port.
func edit(name, content string) func(*Tree, Device) {
	return func(t *Tree, d Device) { t.File(d.File(1, name), content) }
}

func remove(name string) func(*Tree, Device) {
	return func(t *Tree, d Device) { t.Remove(path.Join(d.Dir, name)) }
}

func unreadable(source, errno string) []Unreadable { return []Unreadable{{1, source, errno}} }

// counterErrors are counter files that cannot be read.
func counterErrors() []Case {
	const file = "counters/port_rcv_data"
	cases := []Case{
		{
			ID: "counters-no-pma", Title: "all `counters/*` read `N/A (no PMA)`", Source: "prometheus/node_exporter#966",
			build: (*Tree).LegacyI40IW, unreadable: unreadable("counters/*", "no_pma"),
		}, {
			ID: "counters-no-pma-mlx4-vf", Title: "`N/A (no PMA)` on a ConnectX-3 VF", Source: "prometheus/node_exporter#966",
			edit: func(t *Tree, d Device) {
				for _, name := range t.List(d.File(1, "counters")) {
					t.File(d.File(1, "counters/"+name), "N/A (no PMA)\n")
				}
				t.Remove(d.File(1, "hw_counters"))
			},
			unreadable: unreadable("counters/*", "no_pma"),
		}, {
			ID: "restricted", Title: "restricted function: every `counters/*` EINVAL", Source: "prometheus/node_exporter#3265, #3434, #3823",
			build: (*Tree).MLX5Restricted, unreadable: unreadable("counters/*", "EINVAL"),
		}, {
			ID: "counters-einval-qedr", Title: "qedr: every `counters/*` EINVAL, no `hw_counters/`", Source: "kernel, drivers/infiniband/hw/qedr",
			build: (*Tree).QEDR, unreadable: unreadable("counters/*", "EINVAL"),
		}, {
			ID: "counter-einval-bnxt", Title: "`port_rcv_data` EINVAL while `hw_counters/rx_bytes` counts", Source: "prometheus/procfs#675",
			build: (*Tree).BNXT, options: Options{Counters: true},
			faults: []Fault{{port1 + file, Rule{Errno: syscall.EINVAL}}}, unreadable: unreadable(file, "EINVAL"),
		}, {
			ID: "counter-einval", Title: "`counters/VL15_dropped` EINVAL", Source: "prometheus/node_exporter#3265",
			faults:     []Fault{{port1 + "counters/VL15_dropped", Rule{Errno: syscall.EINVAL}}},
			unreadable: unreadable("counters/VL15_dropped", "EINVAL"),
		}, {
			ID: "counter-eacces", Title: "one `counters/` file EACCES", Source: "constructed",
			faults: []Fault{{port1 + file, Rule{OpenErrno: syscall.EACCES}}}, unreadable: unreadable(file, "EACCES"),
		}, {
			ID: "hw-counter-einval", Title: "one `hw_counters/` file EINVAL", Source: "constructed",
			faults:     []Fault{{port1 + "hw_counters/np_cnp_sent", Rule{Errno: syscall.EINVAL}}},
			unreadable: unreadable("hw_counters/np_cnp_sent", "EINVAL"),
		}, {
			ID: "hw-counters-eio", Title: "all `hw_counters/*` EIO", Source: "firmware recovery; constructed",
			faults: []Fault{{port1 + "hw_counters/*", Rule{Errno: syscall.EIO}}}, unreadable: unreadable("hw_counters/*", "EIO"),
		}, {
			ID: "counters-dir-eacces", Title: "`counters/` cannot be listed: EACCES", Source: "constructed",
			faults: []Fault{{port1 + "counters", Rule{OpenErrno: syscall.EACCES}}}, unreadable: unreadable("counters", "EACCES"),
		},
	}
	for _, e := range []struct {
		name  string
		errno syscall.Errno
	}{
		{"EOPNOTSUPP", syscall.EOPNOTSUPP}, {"EIO", syscall.EIO}, {"ENODEV", syscall.ENODEV}, {"ETIMEDOUT", syscall.ETIMEDOUT},
		{"EAGAIN", syscall.EAGAIN}, {"EBUSY", syscall.EBUSY},
	} {
		cases = append(cases, Case{
			ID: "counter-" + strings.ToLower(e.name), Title: "one counter " + e.name, Source: "firmware recovery; constructed",
			faults: []Fault{{port1 + file, Rule{Errno: e.errno}}}, unreadable: unreadable(file, e.name),
		})
	}
	return cases
}

// attributeErrors are state, rate and the other attributes that cannot be read.
func attributeErrors() []Case {
	cases := []Case{
		{
			ID: "state-empty", Title: "`state` empty", Source: "constructed", edit: edit("state", ""), unreadable: unreadable("state", "invalid"),
		}, {
			ID: "rate-missing", Title: "`rate` missing", Source: "constructed", edit: remove(port1 + "rate"), unreadable: unreadable("rate", "ENOENT"),
		}, {
			ID: "rate-empty", Title: "`rate` empty", Source: "constructed", edit: edit("rate", ""), unreadable: unreadable("rate", "invalid"),
		}, {
			ID: "rate-einval-mana", Title: "MANA: `rate` EINVAL", Source: "prometheus/node_exporter#3810", build: (*Tree).MANA,
			faults: []Fault{{port1 + "rate", Rule{Errno: syscall.EINVAL}}}, unreadable: unreadable("rate", "EINVAL"), State: 4, PhysState: 5,
		}, {
			ID: "link-layer-unknown", Title: "`link_layer` `Unknown`", Source: "linux-rdma/rdma-core#884", edit: edit("link_layer", "Unknown\n"),
		}, {
			ID: "link-layer-missing", Title: "`link_layer` missing", Source: "constructed", edit: remove(port1 + "link_layer"),
			unreadable: unreadable("link_layer", "ENOENT"),
		}, {
			ID: "fw-ver-missing", Title: "`fw_ver` missing", Source: "constructed", edit: remove("fw_ver"),
		}, {
			ID: "fw-ver-empty", Title: "`fw_ver` empty", Source: "kernel, drivers/infiniband/sw", edit: func(t *Tree, d Device) { t.File(d.Dir+"/fw_ver", "\n") },
		}, {
			ID: "identity-missing", Title: "`board_id`, `hca_type` and `hw_rev` missing", Source: "irdma, hfi1, MANA",
			edit: func(t *Tree, d Device) { remove("board_id")(t, d); remove("hca_type")(t, d); remove("hw_rev")(t, d) },
		}, {
			ID: "gids-einval", Title: "`gid_attrs/*` of all slots EINVAL", Source: "kernel, drivers/infiniband/core/sysfs.c", build: (*Tree).MLX5RoCE,
			faults: []Fault{{port1 + "gid_attrs/types/*", Rule{Errno: syscall.EINVAL}}, {port1 + "gid_attrs/ndevs/*", Rule{Errno: syscall.EINVAL}}},
		}, {
			ID: "garbage", Title: "`state`, `phys_state` and `rate` hold garbage", Source: "constructed",
			edit: func(t *Tree, d Device) {
				for _, name := range []string{"state", "phys_state", "rate"} {
					t.File(d.File(1, name), "\x00\xff{\"}\n\\")
				}
			},
			unreadable: []Unreadable{{1, "state", "invalid"}, {1, "phys_state", "invalid"}, {1, "rate", "invalid"}},
		}, {
			ID: "huge", Title: "`state` is a megabyte long", Source: "constructed", faults: []Fault{{port1 + "state", Text(strings.Repeat("4", 1<<20))}},
			unreadable: unreadable("state", "invalid"),
		},
	}
	for _, e := range []struct {
		file, name string
		errno      syscall.Errno
	}{
		{"state", "EIO", syscall.EIO}, {"state", "ENODEV", syscall.ENODEV}, {"state", "EACCES", syscall.EACCES},
		{"phys_state", "EIO", syscall.EIO}, {"rate", "EINVAL", syscall.EINVAL}, {"rate", "EIO", syscall.EIO},
	} {
		cases = append(cases, Case{
			ID: strings.ReplaceAll(e.file, "_", "-") + "-" + strings.ToLower(e.name), Title: "`" + e.file + "` " + e.name,
			Source: attributeSource(e.file, e.name), faults: []Fault{{port1 + e.file, Rule{Errno: e.errno}}}, unreadable: unreadable(e.file, e.name),
		})
	}
	return cases
}

func attributeSource(file, errno string) string {
	if file == "rate" && errno == "EINVAL" {
		return "linux-rdma/rdma-core#239 (cable unplugged)"
	}
	return "device in reset; constructed"
}

// numberCases are counters whose text is no number of 64 bits, or a number that needs care.
func numberCases() []Case {
	const file = "counters/port_xmit_packets"
	cases := []Case{
		{
			ID: "saturated", Title: "error counters stuck at 15, 255, 65535 and 4294967295", Source: "leptonai/gpud#943",
			edit: func(t *Tree, d Device) {
				for _, c := range pmaErrors {
					t.File(d.File(1, "counters/"+c.name), strconv.FormatUint(1<<c.bits-1, 10)+"\n")
				}
				t.File(d.File(1, "counters/port_xmit_data"), "205143497464492\n")
			},
		}, {
			ID: "q-counter-wraps", Title: "an mlx5 `hw_counters` file near 2^32", Source: "kernel, drivers/infiniband/hw/mlx5",
			edit: edit("hw_counters/rx_write_requests", "4294967290\n"),
			Change: func(dir string, s Scene) error {
				return os.WriteFile(filepath.Join(dir, s.Sick.File(1, "hw_counters/rx_write_requests")), []byte("17\n"), 0o644)
			},
		}, {
			ID: "words-beyond-2^62", Title: "`port_rcv_data` 18446744073709551615 words", Source: "constructed",
			edit: edit("counters/port_rcv_data", "18446744073709551615\n"),
		}, {
			ID: "efa-large", Title: "EFA counters beyond 2^46, writes emulated", Source: "ai-dynamo/nixl#1656", build: (*Tree).EFA,
			edit: func(t *Tree, d Device) {
				for name, value := range map[string]string{"tx_bytes": "113939005799538\n", "rdma_write_bytes": "0\n", "rdma_write_wrs": "0\n"} {
					t.File(d.File(1, "hw_counters/"+name), value)
				}
			},
		}, {
			ID: "same-name", Title: "one name in `counters/` and `hw_counters/`", Source: "kernel, drivers/infiniband/sw/rxe", edit: edit("hw_counters/link_downed", "3\n"),
		}, {
			ID: "names-collide", Title: "names that differ only in signs", Source: "hfi1; constructed",
			edit: func(t *Tree, d Device) {
				for i, name := range []string{"SDMAInt1,32", "SDMAInt1 32", "SDMAInt1_32", "sdmaint1_32", "9lives", "ünï"} {
					t.File(d.File(1, "hw_counters/"+name), fmt.Sprintf("%d\n", 900+i))
				}
			},
		}, {
			ID: "lifespan", Title: "`hw_counters/lifespan` 12", Source: "kernel, drivers/infiniband/core/sysfs.c", edit: edit("hw_counters/lifespan", "12\n"),
		},
	}
	for id, content := range map[string]string{"over": "18446744073709551616", "negative": "-1", "hex": "0xff", "empty": "", "word": "many"} {
		title := "counter `" + content + "`"
		if content == "" {
			title = "counter empty"
		}
		cases = append(cases, Case{
			ID: "counter-" + id, Title: title, Source: "constructed", edit: edit(file, content+"\n"), unreadable: unreadable(file, "invalid"),
		})
	}
	return sorted(cases)
}

// rateCases are texts of rate with their meaning.
func rateCases() []Case {
	rate := func(id, text, source string, want RateWant) Case {
		return Case{ID: "rate-" + id, Title: "`rate` `" + text + "`", Source: source, options: Options{Rate: text}, Rate: want}
	}
	roce := func(c Case) Case {
		c.build, c.Title = (*Tree).MLX5RoCE, c.Title+" on Ethernet"
		return c
	}
	down := func(c Case, state, phys string) Case {
		c.options.State, c.options.PhysState = state, phys
		c.Title += ", `" + state + "`, `" + phys + "`"
		c.State, c.PhysState = int(state[0]-'0'), int(phys[0]-'0')
		return c
	}
	return []Case{
		rate("4x-ndr", "400 Gb/sec (4X NDR)", "leptonai/gpud fixture", RateWant{50_000_000_000, 4, "NDR"}),
		rate("4x-xdr", "800 Gb/sec (4X XDR)", "GB200, GB300", RateWant{100_000_000_000, 4, "XDR"}),
		roce(rate("1x-edr", "25 Gb/sec (1X EDR)", "prometheus/procfs fixture", RateWant{3_125_000_000, 1, "EDR"})),
		rate("2x-hdr", "100 Gb/sec (2X HDR)", "HDR100", RateWant{12_500_000_000, 2, "HDR"}),
		rate("1x-hdr", "100 Gb/sec (1X HDR)", "HDR100", RateWant{12_500_000_000, 1, "HDR"}),
		rate("4x-edr", "100 Gb/sec (4X EDR)", "EDR", RateWant{12_500_000_000, 4, "EDR"}),
		roce(rate("1x-sdr", "2.5 Gb/sec (1X SDR)", "MrBr-github/lshca#79", RateWant{312_500_000, 1, "SDR"})),
		down(rate("down-sdr", "10 Gb/sec (4X SDR)", "leptonai/gpud#482", RateWant{1_250_000_000, 4, "SDR"}), "1: DOWN", "2: Polling"),
		down(rate("down-qdr", "40 Gb/sec (4X QDR)", "leptonai/gpud#189", RateWant{5_000_000_000, 4, "QDR"}), "1: DOWN", "3: Disabled"),
		down(roce(rate("down-1x-qdr", "10 Gb/sec (1X QDR)", "mlx4 RoCE", RateWant{1_250_000_000, 1, "QDR"})), "1: DOWN", "3: Disabled"),
		rate("no-grade", "10 Gb/sec (4X)", "kernels before HDR", RateWant{1_250_000_000, 4, ""}),
		rate("new-grade", "1600 Gb/sec (4X GDR)", "constructed", RateWant{200_000_000_000, 4, "GDR"}),
	}
}

// stateCases are texts of state and phys_state.
func stateCases() []Case {
	var cases []Case
	for _, text := range []string{"0: NOP", "2: INIT", "3: ARMED", "5: ACTIVE_DEFER", "6: UNKNOWN"} {
		cases = append(cases, Case{
			ID: "state-" + text[:1], Title: "`state` `" + text + "`", Source: "kernel, drivers/infiniband/core/sysfs.c",
			options: Options{State: text}, State: int(text[0] - '0'),
		})
	}
	for _, text := range []string{"0: <unknown>", "1: Sleep", "4: PortConfigurationTraining", "6: LinkErrorRecovery", "7: Phy Test", "9: <unknown>"} {
		cases = append(cases, Case{
			ID: "phys-state-" + text[:1], Title: "`phys_state` `" + text + "`", Source: "kernel, drivers/infiniband/core/sysfs.c",
			options: Options{PhysState: text}, PhysState: int(text[0] - '0'),
		})
	}
	return append(cases, Case{
		ID: "vf-down-link-up", Title: "VF: `1: DOWN` with `5: LinkUp`, base LID 65535, zero node GUID", Source: "Mellanox/network-operator#249, #1646",
		options: Options{State: "1: DOWN", PhysState: "5: LinkUp", Rate: "200 Gb/sec (4X HDR)"}, State: 1, PhysState: 5,
		Rate: RateWant{25_000_000_000, 4, "HDR"},
		edit: func(t *Tree, d Device) {
			t.File(d.File(1, "lid"), "0xffff\n")
			t.File(d.Dir+"/node_guid", "0000:0000:0000:0000\n")
		},
	})
}

// driverCases are devices of drivers that show other files than mlx5.
func driverCases() []Case {
	return []Case{
		{ID: "no-counters", Title: "no `counters/`: bnxt_re", Source: "prometheus/procfs#687", build: (*Tree).BNXT},
		{ID: "no-counters-irdma", Title: "no `counters/`, `board_id`, `hca_type`: irdma", Source: "prometheus/node_exporter#2769, #2846", build: (*Tree).IRDMA},
		{ID: "irdma-gen3", Title: "counter names with spaces: irdma, third generation", Source: "kernel, drivers/infiniband/hw/irdma", build: (*Tree).IRDMAGen3},
		{ID: "no-hw-counters", Title: "no `hw_counters/`", Source: "kernel, drivers/infiniband/sw/siw", edit: remove(port1 + "hw_counters")},
		{
			ID: "hfi1", Title: "hfi1: names with spaces and `,32`, 160 `RcvHdrOvrN`, device level", Source: "prometheus/node_exporter#2023, netdata/netdata#9091",
			build: (*Tree).HFI1, options: Options{PCIAddress: "0000:af:00.0"},
		},
		{ID: "efa", Title: "EFA: `Unknown` link layer, zero GUID, counters at both levels", Source: "linux-rdma/rdma-core#884, NVIDIA/NVSentinel#1750", build: (*Tree).EFA, State: 4, PhysState: 5},
		{ID: "mana", Title: "MANA: no identity, no `counters/`", Source: "kernel, drivers/infiniband/hw/mana", build: (*Tree).MANA},
		{ID: "erdma", Title: "erdma: RNIC, no `counters/`", Source: "kernel, drivers/infiniband/hw/erdma", build: (*Tree).ERDMA},
		{ID: "mlx4", Title: "ConnectX-3: two ports, counters at both levels", Source: "kernel, drivers/infiniband/hw/mlx4", build: (*Tree).MLX4},
		{ID: "counters-ext", Title: "`counters_ext/` of kernels before 4.5", Source: "kernel 4.4", build: (*Tree).OldExt},
		{ID: "switchdev", Title: "mlx5 in switchdev mode: counters at device level", Source: "kernel, drivers/infiniband/hw/mlx5", build: (*Tree).MLX5Switchdev},
		{ID: "rxe", Title: "soft-RoCE: no PCI parent, `10 Gb/sec (1X QDR)` while ACTIVE", Source: "kernel, drivers/infiniband/sw/rxe", build: (*Tree).RXE, State: 4, Rate: RateWant{1_250_000_000, 1, "QDR"}},
		{ID: "siw", Title: "soft-iWARP: no counters at all", Source: "kernel, drivers/infiniband/sw/siw", build: (*Tree).SIW},
	}
}

// topologyCases are devices that are put together in unusual ways.
func topologyCases() []Case {
	return []Case{
		{
			ID: "bond", Title: "`mlx5_bond_0`: one rail's rate", Source: "leptonai/gpud fixture, deepseek-ai/DeepEP#671", build: (*Tree).Bond,
			Rate: RateWant{25_000_000_000, 2, "NDR"},
		}, {
			ID: "netns", Title: "`counters/` and `hw_counters/` hidden: other network namespace", Source: "k8snetworkplumbingwg/sriov-network-device-plugin#345, nebius/soperator#403",
			build: (*Tree).Compat, options: Options{Name: "mlx5_1", PCIAddress: "0000:3b:00.0"},
		}, {
			ID: "multi-plane", Title: "12 ports, data on 3, 6, 9 and 12, port 1 DOWN", Source: "scitix/sichek#98", build: (*Tree).MultiPlane,
			options: Options{Name: "mlx5_1"}, State: 1, PhysState: 3,
		}, {
			ID: "smi", Title: "`smi1` on the PCI function of `mlx5_1`", Source: "Mellanox/rdmamap#17, openucx/ucx#10507",
			build: func(t *Tree, o Options) Device {
				o.Name = "mlx5_1"
				t.MLX5XDR(o)
				o.Name = "smi1"
				return t.SMI(o)
			},
		}, {
			ID: "function-1", Title: "second function `.1` is a HCA of its own", Source: "scitix/sichek#112",
			options: Options{Name: "mlx5_9", PCIAddress: "0000:18:00.1", Ordinal: 9}, State: 4,
		}, {
			ID: "sub-function", Title: "sub-function on the auxiliary bus", Source: "linux-rdma/rdma-core#1741, #1248", build: (*Tree).MLX5SF,
		}, {
			ID: "names", Title: "19 names from udev, drivers and clouds", Source: "linux-rdma/rdma-core#487, cornelisnetworks/opa-psm2#43, Azure/azhpc-images#281",
			build: named,
		}, {
			ID: "port-disabled", Title: "second front-end port `3: Disabled` by design", Source: "NVIDIA/NVSentinel#1361", build: (*Tree).MLX5RoCE,
			options: Options{State: "1: DOWN", PhysState: "3: Disabled"}, State: 1, PhysState: 3,
		}, {
			ID: "nine-ports", Title: "nine InfiniBand ports where eight are expected", Source: "dsx-ai-factory/infra-controller#3624",
			build: func(t *Tree, o Options) (last Device) {
				for i := 1; i < 9; i++ {
					last = t.MLX5IB(Options{Name: fmt.Sprintf("mlx5_%d", i), PCIAddress: fmt.Sprintf("0001:%02x:00.0", 0x10+i), Ordinal: i})
				}
				return last
			},
		}, {
			ID: "vf", Title: "virtual function", Source: "kernel, drivers/pci/iov.c",
			build: func(t *Tree, o Options) Device {
				t.MLX5RoCE(Options{Ordinal: o.Ordinal + 1})
				return t.MLX5VF(o)
			},
		}, {
			ID: "no-ports", Title: "a device without ports", Source: "constructed", edit: remove("ports"),
			unreadable: []Unreadable{{0, "ports", "ENOENT"}},
		}, {
			ID: "odd-port-names", Title: "port directories `0`, `007` and `x`", Source: "constructed",
			edit: func(t *Tree, d Device) { t.Dir(d.Dir+"/ports/007").Dir(d.Dir+"/ports/x").File(d.Dir+"/ports/y", "") },
		}, {
			ID: "dangling", Title: "a link in the class that leads nowhere", Source: "driver unloading; constructed",
			edit: func(t *Tree, d Device) {
				t.Symlink("sys/class/infiniband/mlx5_7", "../../devices/pci0000:ff/infiniband/mlx5_7")
				t.File("sys/class/infiniband/bonding_masters", "bond0\n")
			},
		},
	}
}

// DeviceNames are names that devices have on real machines.
var DeviceNames = []string{
	"rocep3s0f0", "ibp210s0f0", "ibP16p3s0", "roceP22p1s0f0", "opap129s", "rocex525400c0fe123455", "rdmap79s0", "mlx5_ib0", "mlx5_an0", "irdma0",
	"bnxt_re0", "ionic_0", "erdma_0", "mana_0", "efa_0", "rxe0", "mlx5_bond_0", "rocep193s0f0S88", "rocep193s0f0v0S99",
}

// named adds a device for each name.
func named(t *Tree, o Options) (last Device) {
	for i, name := range DeviceNames {
		last = t.MLX5RoCE(Options{Name: name, PCIAddress: fmt.Sprintf("0002:%02x:00.0", 0x10+i), Ordinal: i + 1})
	}
	return last
}

// lifeCases are devices that hang, go away, or change their names.
func lifeCases() []Case {
	return []Case{
		{
			ID: "slow", Title: "a read takes 8 s", Source: "constructed", Blocks: true,
			faults: []Fault{{port1 + "counters/port_rcv_data", Rule{Delay: 8 * time.Second}}},
		}, {
			ID: "hang", Title: "a read never returns", Source: "dead firmware; constructed", Blocks: true,
			faults: []Fault{{port1 + "counters/port_rcv_data", Rule{Hang: true}}},
		}, {
			ID: "hang-state", Title: "reads of all the device's files never return", Source: "dead firmware; constructed", Blocks: true,
			faults: []Fault{{"**", Rule{Hang: true}}},
		}, {
			ID: "hang-open", Title: "opens of the device's files never return", Source: "constructed", Blocks: true, faults: []Fault{{"**", Rule{HangOpen: true}}},
		}, {
			ID: "gone-halfway", Title: "the device goes while it is read", Source: "leptonai/gpud#752",
			faults:     []Fault{{port1 + "hw_counters/*", Rule{OpenErrno: syscall.ENOENT, Errno: syscall.ENODEV}}, {port1 + "rate", Rule{OpenErrno: syscall.ENOENT}}},
			unreadable: append(unreadable("rate", "ENOENT"), unreadable("hw_counters/*", "ENOENT")...),
		}, {
			ID: "renamed", Title: "the device is renamed between scrapes", Source: "linux-rdma/rdma-core#530, prometheus/node_exporter#2846",
			Change: func(dir string, s Scene) error { return rename(dir, s.Sick, "ibp59s0") },
		}, {
			ID: "removed", Title: "the device is removed between scrapes", Source: "constructed", Change: unplug,
		}, {
			ID: "vf-vanishes", Title: "a VF goes to a pod (exclusive RDMA namespaces)", Source: "spidernet-io/spiderpool#3790", build: (*Tree).MLX5VF, Change: unplug,
		}, {
			ID: "class-absent", Title: "no `class/infiniband`", Source: "prometheus/node_exporter#1511", Alone: true,
			edit: func(t *Tree, d Device) {
				t.Remove(d.Dir).Remove("sys/class/infiniband").Remove("sys/class/infiniband_verbs")
			},
		}, {
			ID: "class-empty", Title: "`class/infiniband` is empty", Source: "NVIDIA/NVSentinel#1488", Alone: true,
			edit: func(t *Tree, d Device) { t.Remove(d.Dir).Remove("sys/class/infiniband").Dir("sys/class/infiniband") },
		}, {
			ID: "class-vanishes", Title: "all devices go at once: driver reload", Source: "NVIDIA/NVSentinel#1488", Alone: true,
			Change: func(dir string, s Scene) error {
				return errors.Join(os.RemoveAll(filepath.Join(dir, "sys/class/infiniband")), os.RemoveAll(filepath.Join(dir, path.Dir(s.Sick.Dir))))
			},
		},
	}
}

// rename does what the kernel does when udev renames a device.
func rename(dir string, d Device, name string) error {
	to := path.Join(path.Dir(d.Dir), name)
	link := filepath.Join(dir, "sys/class/infiniband")
	target, err := os.Readlink(filepath.Join(link, d.Name))
	if err != nil {
		return err
	}
	return errors.Join(
		os.Rename(filepath.Join(dir, d.Dir), filepath.Join(dir, to)),
		os.Symlink(path.Join(path.Dir(target), name), filepath.Join(link, name)),
		os.Remove(filepath.Join(link, d.Name)),
	)
}

// unplug does what the kernel does when a device goes away.
func unplug(dir string, s Scene) error {
	return errors.Join(
		os.Remove(filepath.Join(dir, "sys/class/infiniband", s.Sick.Name)),
		os.RemoveAll(filepath.Join(dir, path.Dir(s.Sick.Dir))),
	)
}

// peermemCases are states of the modules through which GPU memory is registered; they say nothing about any RDMA device.
func peermemCases() []Case {
	module := func(t *Tree, refcnt string) {
		t.File("sys/module/nvidia_peermem/initstate", "live\n").File("sys/module/nvidia_peermem/refcnt", refcnt+"\n")
		t.File("proc/modules", "nvidia_peermem 12288 "+refcnt+" - Live 0x0000000000000000 (POE)\n")
	}
	return []Case{
		{
			ID: "peermem-no-client", Title: "nvidia_peermem loaded, no `memory_peers/nv_mem*`", Source: "NVIDIA/nccl#1939",
			edit: func(t *Tree, _ Device) { module(t, "1"); t.Dir("sys/kernel/mm/memory_peers") },
		}, {
			ID: "peermem-unused", Title: "nvidia_peermem loaded with use count 0", Source: "NVIDIA/nccl#1537",
			edit: func(t *Tree, _ Device) { module(t, "0"); t.File("sys/kernel/mm/memory_peers/nv_mem/version", "1.0\n") },
		}, {
			ID: "peermem-absent", Title: "no peer memory module", Source: "NVIDIA/nccl#988", edit: func(t *Tree, _ Device) { t.File("proc/modules", "") },
		},
	}
}

// sorted makes the order of cases that came out of a map stable.
func sorted(cases []Case) []Case {
	byID := map[string]Case{}
	for _, c := range cases {
		byID[c.ID] = c
	}
	out := make([]Case, 0, len(cases))
	for _, id := range sortedKeys(byID) {
		out = append(out, byID[id])
	}
	return out
}
