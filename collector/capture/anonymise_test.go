package capture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// planted are things that must not leave the host.
var planted = []string{
	"946d:ae03:0012:3456", "94:6d:ae:12:34:56", "c0a8:1104", "192.168.17.4", "5c2f8b1e-1234-4abc-8def-0123456789ab", "523a6f51215b4f4d9f9e1c1dd25e0a11",
	"MT2243X00001", "secret-node", "SECRET-NODE", "hunter2", "alice", "/home/", "nfs.example.org", "buildhost", "TOKEN",
}

func contentOf(path, text string) File {
	return File{Path: path, Op: OpRead, Last: FileAnswer{Data: []Segment{{Bytes: []byte(text)}}, Size: int64(len(text))}}
}

func linesFile(path, text string) File {
	f := contentOf(path, text)
	f.Op = OpLines
	return f
}

const plantedDevice = "/sys/devices/pci0000:14/0000:14:01.0/0000:18:00.0"

// plantedHost is a recording in which everything that should not leave is somewhere.
func plantedHost() *Recording {
	gpu, now := "GPU-5c2f8b1e-1234-4abc-8def-0123456789ab", time.Unix(1_800_000_000, 0).UTC()
	run := &prober.Completed{
		Depth: prober.DepthFull, Time: now, Judgement: loopback.Judgement{Outcome: loopback.Slow, Reasons: []string{"GID fe80::966d:aeff:fe12:3456 of secret-node at 192.168.17.4"}},
		Identity: prober.Identity{UUID: gpu, NodeGUID: "946d:ae03:0012:3456", Firmware: "28.41.1000"},
		Result:   loopback.Result{Device: "mlx5_0", Stages: []loopback.StageResult{{Stage: loopback.StageOpen, Err: fmt.Errorf("%s on secret-node: no", gpu)}}},
	}
	recorder := NewRecorder(nil, Header{About: "of alice", Readers: Readers{Sysfs: "/sys", Procfs: "/host/proc", DriverRoots: []string{"/", "/opt/secret-node/nvidia"}}}, func() time.Time { return now })
	recorder.Prober(&prober.Status{
		Interval: time.Hour, IsolationReason: "a crash on secret-node", Runs: map[prober.RunKind]uint64{{Depth: prober.DepthFull, Result: prober.RunSlow}: 3},
		Pairs: []prober.PairStatus{{Candidate: prober.Candidate{Pair: prober.Pair{GPU: "0000:19:00.0", Device: "mlx5_0", Port: 1}, Distance: "PIX"}, Full: run}},
	})
	recording := recorder.Recording()
	recording.Files = []File{
		contentOf("/etc/machine-id", "hunter2\n"),
		contentOf("/host/proc/cmdline", "BOOT_IMAGE=/vmlinuz root=UUID=5c2f8b1e-1234-4abc-8def-0123456789ab intel_iommu=on iommu=pt password=hunter2 nvidia.NVreg_RegistryDwords=ForceP2P=0x11;User=alice pci=realloc ip=192.168.17.4\n"),
		contentOf("/host/proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nTemporaryFilePath: \"/home/alice\"\nExcludedGpus: \""+gpu+"\"\nRegistryDwords: \"ForceP2P=0x11;TOKEN=5;GrdmaPciTopoCheckOverride=1\"\n"),
		contentOf("/host/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  (root@buildhost)\n"),
		contentOf("/host/proc/modules", "nvidia 1 0 - Live 0x0\n"),
		contentOf("/host/proc/self/environ", "TOKEN=hunter2\x00"),
		linesFile("/proc/77/mountinfo", "36 35 98:0 /home/alice /proc/driver/nvidia rw - nfs nfs.example.org:/home rw,password=hunter2\n"),
		contentOf(plantedDevice+"/infiniband/mlx5_0/board_id", "MT_0000000838\n"),
		contentOf(plantedDevice+"/infiniband/mlx5_0/node_desc", "secret-node HCA-1\n"),
		contentOf(plantedDevice+"/infiniband/mlx5_0/node_guid", "946d:ae03:0012:3456\n"),
		contentOf(plantedDevice+"/infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:946d:ae03:0012:3457\n"),
		contentOf(plantedDevice+"/infiniband/mlx5_0/ports/1/gids/3", "0000:0000:0000:0000:0000:ffff:c0a8:1104\n"),
		contentOf(plantedDevice+"/infiniband/mlx5_0/sys_image_guid", "serial MT2243X00001\n"),
		contentOf(plantedDevice+"/net/secret-node0/address", "94:6d:ae:12:34:56\n"),
		contentOf(plantedDevice+"/net/ib-secret-node/address", "94:6d:ae:12:34:56\n"),
		{Path: plantedDevice + "/net", Op: OpList, Last: FileAnswer{Names: []string{"ib-secret-node"}}},
		contentOf(plantedDevice+"/vpd", "MT2243X00001"),
		{Path: "/sys/class/net/ib-secret-node", Op: OpLink, Last: FileAnswer{Target: "../.." + strings.TrimPrefix(plantedDevice, "/sys") + "/net/ib-secret-node"}},
		{Path: "/opt/secret-node/nvidia/usr/lib64/libnvidia-ml.so.1", Op: OpLink, Last: FileAnswer{Errno: "ENOENT"}},
	}
	value := func(part, question, text string) Answer {
		return Answer{Part: part, Question: question, Last: Value{JSON: []byte(text)}}
	}
	recording.Answers = append(recording.Answers,
		value(PartNetlink, "dial", "true"),
		value(PartNetlink, "GET", `[{"index":0,"name":"mlx5_0","ports":1,"node_guid":"946d:ae03:0012:3456","sys_image_guid":"946d:ae03:0012:3456","node_desc":"secret-node"}]`),
		value(PartNetlink, "RES_CTX_GET 0", "18446744073709551615"), value(PartNetlink, "RES_PID_GET 0", `["alice"]`),
		value(PartNetdev, "Address ib-secret-node", `"94:6d:ae:12:34:56"`),
		value(PartNVML, "device 0 GetUUID", `"`+gpu+`"`), value(PartNVML, "device 0 GetSerial", `"MT2243X00001"`),
		value(PartNVML, "device 0 GetComputeRunningProcesses", `[{"Pid":1,"UsedGpuMemory":5,"Name":"alice"}]`),
		value(PartNVML, "device 0 GetGpuFabricInfoV", `{"cluster_uuid":"523a6f51215b4f4d9f9e1c1dd25e0a11","state":3}`),
		value(PartNVML, "open /opt/secret-node/nvidia/usr/lib64/libnvidia-ml.so.1", "true"),
	)
	recording.sort()
	return recording
}

// TestAnonymisePlanted: nothing of what is planted is in the text, what readers
// need is, and what the table does not know is told.
func TestAnonymisePlanted(t *testing.T) {
	recording := plantedHost()
	var before, after bytes.Buffer
	if err := recording.WriteText(&before); err != nil {
		t.Fatal(err)
	}
	for _, secret := range planted {
		if !strings.Contains(before.String(), secret) && secret != "SECRET-NODE" {
			t.Errorf("%s is not planted", secret)
		}
	}
	anonymous, contents := Anonymise(recording, testKey(5), []string{"secret-node"})
	if err := anonymous.WriteText(&after); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(bytes.NewReader(after.Bytes())); err != nil {
		t.Error(err)
	}
	for _, secret := range planted {
		if i := strings.Index(after.String(), secret); i >= 0 {
			t.Errorf("%s: %.300s", secret, after.String()[max(i-150, 0):])
		}
	}
	for _, needed := range []string{
		"iommu=pt", "intel_iommu=on", "pci=realloc", "ForceP2P=0x11", "GrdmaPciTopoCheckOverride=1", "580.95.05", "/proc/driver/nvidia", "MT_0000000838", "PIX", "28.41.1000", "18446744073709551615",
		`"UsedGpuMemory":5`, `"state":3`, "slow",
	} {
		if !strings.Contains(after.String(), needed) {
			t.Errorf("%s is lost", needed)
		}
	}
	for _, unknown := range []string{
		"read /etc/machine-id", "read /host/proc/self/environ", "read " + plantedDevice + "/infiniband/mlx5_0/node_desc", "read " + plantedDevice + "/vpd",
		"netlink GET [].node_desc", "netlink RES_PID_GET 0", "nvml device 0 GetSerial", "nvml device 0 GetComputeRunningProcesses [].Name",
	} {
		if !slices.Contains(contents.Unclassed, unknown) {
			t.Errorf("%s is not told to be without a class: %q", unknown, contents.Unclassed)
		}
	}
	if len(contents.Unclassed) != 8 || len(contents.Dropped) != 6 {
		t.Errorf("without class %q, dropped %q", contents.Unclassed, contents.Dropped)
	}
	var again bytes.Buffer
	if err := recording.WriteText(&again); err != nil || again.String() != before.String() {
		t.Error("the recording has been changed")
	}
	// A pseudonym of a pseudonym: the tables have to match what was written.
	if _, contents := Anonymise(anonymous, testKey(6), nil); len(contents.Unclassed) > 0 {
		t.Errorf("the second time there are no classes of %q", contents.Unclassed)
	}
}

// TestAnonymiseRelations: in different parts of a recording a thing has the same
// pseudonym, and links still lead somewhere.
func TestAnonymiseRelations(t *testing.T) {
	anonymous, _ := Anonymise(plantedHost(), testKey(7), []string{"secret-node"})
	player := Play(anonymous)
	defer player.Close()
	names, err := player.Files().ReadDir(plantedDevice + "/net")
	if err != nil || len(names) != 1 || !strings.HasPrefix(names[0].Name, "ib-host-") {
		t.Fatal(names, err)
	}
	read := func(path string) string {
		text, err := player.Files().ReadLines(path, 1<<10, nil)
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(string(text))
	}
	mac := read("/sys/class/net/" + names[0].Name + "/address")
	if other, err := player.Kernel()().Address(names[0].Name); err != nil || other != mac {
		t.Errorf("MAC addresses %q, %q, %v", mac, other, err)
	}
	conn, err := player.Netlink()()
	if err != nil {
		t.Fatal(err)
	}
	devices, err := conn.Devices()
	guid := read(plantedDevice + "/infiniband/mlx5_0/node_guid")
	if err != nil || len(devices) != 1 || devices[0].NodeGUID != guid {
		t.Errorf("GUID %s, by netlink %+v, %v", guid, devices, err)
	}
	status := player.Prober()
	if status == nil || len(status.Pairs) != 1 || status.Pairs[0].Full.Identity.NodeGUID != guid || status.Runs[prober.RunKind{Depth: prober.DepthFull, Result: prober.RunSlow}] != 3 {
		t.Errorf("prober: %+v", status)
	}
	if root := anonymous.Header.Readers.DriverRoots[1]; !strings.HasPrefix(root, "/opt/host-") {
		t.Errorf("root %s", root)
	}
}

// TestAnonymiseParts: of a file that was read in parts nothing is written in which
// something would have to be found.
func TestAnonymiseParts(t *testing.T) {
	parts := func(path string) File {
		return File{Path: path, Op: OpRead, Last: FileAnswer{Size: -1, Data: []Segment{{At: 2, Bytes: []byte("946d:ae03:0012:3456")}}}}
	}
	recording := &Recording{Files: []File{parts(plantedDevice + "/infiniband/mlx5_0/node_guid"), parts(plantedDevice + "/vendor")}}
	anonymous, contents := Anonymise(recording, testKey(8), nil)
	if len(anonymous.Files) != 1 || len(contents.Dropped) != 1 || !strings.HasSuffix(contents.Dropped[0], "node_guid") {
		t.Errorf("%+v, %+v", anonymous.Files, contents)
	}
	if anonymous, _ = Anonymise(recording, testKey(8), []string{"secret-node"}); len(anonymous.Files) != 0 {
		t.Errorf("%+v", anonymous.Files)
	}
	// One whose end is not known is as long afterwards.
	long := File{Path: plantedDevice + "/infiniband/mlx5_0/node_guid", Op: OpRead, Last: FileAnswer{Size: -1, Data: []Segment{{Bytes: []byte("no GUID at all, MT2243X00001")}}}}
	anonymous, _ = Anonymise(&Recording{Files: []File{long}}, testKey(8), nil)
	if len(anonymous.Files) == 1 && bytes.Contains(anonymous.Files[0].Last.Data[0].Bytes, []byte("MT2243")) {
		t.Errorf("%s", anonymous.Files[0].Last.Data[0].Bytes)
	}
}

// TestAnonymiseSerial: a PCI device serial number is made of the MAC address; it
// is blanked wherever the capability is, and nothing else is.
func TestAnonymiseSerial(t *testing.T) {
	config := bytes.Repeat([]byte{0xaa}, 0x200)
	binary.LittleEndian.PutUint32(config[0x100:], 0x14820001) // AER, next 0x148
	binary.LittleEndian.PutUint32(config[0x148:], 0x00010003) // serial number, the last
	copy(config[0x14c:], "\x56\x34\x12\x00\x03\xae\x6d\x94")
	file := File{Path: plantedDevice + "/config", Op: OpRead, Last: FileAnswer{Size: -1, Data: []Segment{{Bytes: config[:0x40]}, {At: 0x100, Bytes: config[0x100:]}}}}
	anonymous, _ := Anonymise(&Recording{Files: []File{file}}, testKey(9), nil)
	want := bytes.Clone(config[0x100:])
	clear(want[0x4c:0x54])
	got := anonymous.Files[0].Last.Data
	if !bytes.Equal(got[1].Bytes, want) || !bytes.Equal(got[0].Bytes, config[:0x40]) {
		t.Errorf("% x", got[1].Bytes[0x40:0x60])
	}
	if config[0x14c] == 0 {
		t.Error("the recording has been changed")
	}
	// Capabilities in a circle.
	binary.LittleEndian.PutUint32(config[0x148:], 0x10010003)
	withoutSerial(file.Last.Data)
}

// TestContentsOf counts a recording that is written as it is.
func TestContentsOf(t *testing.T) {
	contents := ContentsOf(sample())
	if len(contents.Parts) != 4 || contents.Parts[0] != (PartContents{Part: "files", Kept: 13}) || len(contents.Dropped) > 0 {
		t.Errorf("%+v", contents)
	}
}
