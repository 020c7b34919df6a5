package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gdr_exporter/collector/sysread"
)

func TestParseProcVersion(t *testing.T) {
	for text, want := range map[string]struct {
		version string
		flavor  Flavor
	}{
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@host)  \nGCC version: x": {"580.159.04", FlavorOpen},
		"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  540.4.0  Release Build  (buildbrain@mobile)":             {"540.4.0", FlavorOpen},
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\n":                         {"535.54.03", FlavorProprietary},
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  384.81  Wed Aug 17 22:24:07 PDT 2016":                              {"384.81", FlavorProprietary},
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module":                                                                    {"", FlavorProprietary},
		"NVRM version: NVIDIA UNIX Open Kernel Module 2023":                                                                 {"", FlavorOpen},
	} {
		got, err := parseProcVersion([]byte(text))
		if err != nil || got.version.Value != want.version || got.version.Known != (want.version != "") || got.flavor != want.flavor {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "\n", "Kernel Module 1.2", "GCC version: NVRM version: Kernel Module"} {
		if got, err := parseProcVersion([]byte(text)); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestParseOverride(t *testing.T) {
	for text, want := range map[string]uint64{
		"ModifyDeviceFiles: 1\nRegistryDwords: \"\"\n":                                                      0,
		"GrdmaPciTopoCheckOverride: 0\n":                                                                    0,
		"GrdmaPciTopoCheckOverride: 1\n":                                                                    1,
		"GrdmaPciTopoCheckOverride: 2\n":                                                                    2,
		"GrdmaPciTopoCheckOverride: 0\nRegistryDwords: \"GrdmaPciTopoCheckOverride=1\"\n":                   1,
		"RegistryDwords: \"ForceP2P=0x11; GrdmaPciTopoCheckOverride = 0x1 ;EnableResizableBar=1\"\n":        1,
		"RegistryDwords: \"XGrdmaPciTopoCheckOverride=1;GrdmaPciTopoCheckOverrideX=1\"\n":                   0,
		"RegistryDwords: \"GrdmaPciTopoCheckOverride=1;GrdmaPciTopoCheckOverride=0\"\n":                     0,
		"RegistryDwords: \"GrdmaPciTopoCheckOverride=yes\"\n":                                               0,
		"RegistryDwords: \"\"\nRegistryDwordsPerDevice: \"pci=0000:3b:00.0;GrdmaPciTopoCheckOverride=1\"\n": 1,
		"TemporaryFilePath: \"GrdmaPciTopoCheckOverride=1\"\n":                                              0,
		// One that is commented out, as nobody's file has it but people's.
		"ModifyDeviceFiles: 1\n# GrdmaPciTopoCheckOverride: 1\n": 0,
	} {
		if got, err := parseOverride([]byte(text)); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "nothing", "GrdmaPciTopoCheckOverride: \n", "GrdmaPciTopoCheckOverride: -1\n", "GrdmaPciTopoCheckOverride: 99999999999\n"} {
		if got, err := parseOverride([]byte(text)); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestParseLockdown(t *testing.T) {
	for text, want := range map[string]string{
		"[none] integrity confidentiality": "none", "none [integrity] confidentiality": "integrity", "none integrity [confidentiality]": "confidentiality",
		"": "", "none": "", "[none": "", "none]": "", "[]": "", "[a b]": "", "[NONE]": "", "[" + strings.Repeat("x", 33) + "]": "",
	} {
		if got, is := parseLockdown(text); got != want || is != (want != "") {
			t.Errorf("%q: %q, %v", text, got, is)
		}
	}
}

func TestParseDep(t *testing.T) {
	for text, want := range map[string]depList{
		"kernel/a.ko:\n": {},
		"kernel/drivers/video/nvidia-peermem.ko: kernel/drivers/video/nvidia.ko\n":             {peers: map[string]bool{"nvidia_peermem": true}},
		"updates/dkms/nvidia-current-peermem.ko.xz: x\nupdates/dkms/nvidia-current-uvm.ko.xz:": {peers: map[string]bool{"nvidia_peermem": true}, driver: true},
		"extra/nv_peer_mem.ko.gz:":         {peers: map[string]bool{"nv_peer_mem": true}},
		"nvidia_uvm.ko.zst: \n":            {driver: true},
		"kernel/a.ko: b/nvidia-peermem.ko": {},
		"kernel/nvidia-peermem.kox: \nkernel/nvidia-peermem.ko.sig:\nkernel/a.ko:": {},
		"kernel/my-nvidia-peermem.ko:\nkernel/typec_nvidia.ko:":                    {},
	} {
		got, err := parseDep([]byte(text))
		if err != nil || got.driver != want.driver {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
		for _, module := range PeerModules {
			if got.peers[module] != want.peers[module] {
				t.Errorf("%q: %s %v", text, module, got.peers[module])
			}
		}
	}
	for _, text := range []string{"", ":\n", "no list\n", "a:b:c\n", ".ko:\n"} {
		if got, err := parseDep([]byte(text)); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestLongFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "long")
	for _, size := range []int{0, 1, 1 << 16, 1<<16 + 1, 1 << 18} {
		if err := os.WriteFile(path, []byte(strings.Repeat("x", size)), 0o644); err != nil {
			t.Fatal(err)
		}
		if text, err := new(sysread.IO).ReadLines(path, 1<<18, nil); err != nil || len(text) != size {
			t.Errorf("%d of %d bytes, %v", len(text), size, err)
		}
	}
	if text, err := new(sysread.IO).ReadLines(path, 1<<18-1, nil); err == nil {
		t.Errorf("%d bytes of a file too long", len(text))
	}
}

func FuzzParseProcVersion(f *testing.F) {
	f.Add("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build")
	f.Add("NVRM version: NVIDIA UNIX x86_64 Kernel Module  384.81  Wed")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseProcVersion([]byte(text))
		if err != nil && (got.version.Known || got.flavor != "") {
			t.Errorf("%q: %+v and %v", text, got, err)
		}
		if got.version.Known && (!driverVersion.MatchString(got.version.Value) || !strings.Contains(text, got.version.Value)) {
			t.Errorf("%q: version %q", text, got.version.Value)
		}
	})
}

func FuzzParseOverride(f *testing.F) {
	f.Add("ModifyDeviceFiles: 1\nGrdmaPciTopoCheckOverride: 1\nRegistryDwords: \"GrdmaPciTopoCheckOverride=1;a=b\"\n")
	f.Add("RegistryDwords: \"")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseOverride([]byte(text))
		if got != 0 && (err != nil || !strings.Contains(text, overrideOption)) {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	})
}

func FuzzParseLockdown(f *testing.F) {
	f.Add("none [integrity] confidentiality")
	f.Fuzz(func(t *testing.T, text string) {
		if got, is := parseLockdown(text); is != (got != "") || is && !strings.Contains(text, "["+got+"]") {
			t.Errorf("%q: %q, %v", text, got, is)
		}
	})
}

func FuzzParseDep(f *testing.F) {
	f.Add([]byte("kernel/a/nvidia-peermem.ko.zst: kernel/b.ko\nextra/nv_peer_mem.ko:\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := parseDep(text)
		if got.peers[moduleNvPeerMem] && (err != nil || !strings.Contains(strings.ReplaceAll(string(text), "-", "_"), moduleNvPeerMem)) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	})
}

func FuzzLibraryVersion(f *testing.F) {
	f.Add("libnvidia-ml.so.580.95.05")
	f.Add("../libnvidia-ml.so.1")
	f.Add("/a/b")
	f.Fuzz(func(t *testing.T, target string) {
		root := t.TempDir()
		path := filepath.Join(root, "libnvidia-ml.so.1")
		if os.Symlink(target, path) != nil {
			return
		}
		if got, err := libraryVersion(&sysread.IO{}, root, path, "libnvidia-ml.so."); got != "" && err == nil {
			t.Errorf("%q: %q of a link that leads nowhere", target, got)
		}
	})
}
