package rdmatest

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// all is a tree with every device there is a builder for.
func all() (*Tree, []Device) {
	t := New()
	devices := []Device{
		t.MLX5IB(Options{Ordinal: 1}),
		t.MLX5RoCE(Options{Ordinal: 2, GIDs: 255}),
		t.MLX5VF(Options{Ordinal: 3}),
		t.MLX5SF(Options{Ordinal: 4}),
		t.MLX5Switchdev(Options{Ordinal: 5, Ports: 3}),
		t.MLX5Restricted(Options{Ordinal: 6}),
		t.MLX4(Options{Ordinal: 7}),
		t.OldExt(Options{Ordinal: 8, Name: "mlx4_1", PCIAddress: "0000:03:00.0"}),
		t.BNXT(Options{Ordinal: 9}),
		t.BNXT(Options{Ordinal: 10, Name: "bnxt_re1", PCIAddress: "0000:41:00.1", Counters: true}),
		t.IRDMA(Options{Ordinal: 11}),
		t.IRDMAGen3(Options{Ordinal: 12, Name: "irdma1", PCIAddress: "0000:8b:00.0"}),
		t.EFA(Options{Ordinal: 13}),
		t.HFI1(Options{Ordinal: 14}),
		t.MANA(Options{Ordinal: 15}),
		t.ERDMA(Options{Ordinal: 16}),
		t.QEDR(Options{Ordinal: 17}),
		t.LegacyI40IW(Options{Ordinal: 18}),
		t.RXE(Options{Ordinal: 19}),
		t.SIW(Options{Ordinal: 20}),
		t.Bond(Options{Ordinal: 21}),
		t.MultiPlane(Options{Ordinal: 22, Name: "mlx5_20", PCIAddress: "0000:c1:00.0"}),
		t.MLX5XDR(Options{Ordinal: 23, Name: "mlx5_21"}),
		t.SMI(Options{Ordinal: 24}),
		t.Compat(Options{Ordinal: 25, Name: "mlx5_22", PCIAddress: "0000:d1:00.0"}),
	}
	return t, devices
}

// tempDir is t.TempDir on tmpfs.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := MkdirTemp()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestRoundTrip(t *testing.T) {
	tree, _ := all()
	tree.File("odd/ lead", "x").File("odd/a = b", "\x00\xff").File("odd/#c", " y \n").File("odd/multi", "1\n2\n").File("odd/none", "")
	tree.File("odd/\"q", "\"z\"\n").File("odd/l -> m", "\n").File("top", "1\n").Dir("empty/dir").Symlink("odd/to", "a b").Symlink("odd/up", "../top").File(".dot/x", "\n")
	text := tree.Format()
	again, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(tree.nodes, again.nodes) {
		t.Error("Parse(Format()) is another tree")
	}
	if again.Format() != text {
		t.Error("Format is not stable")
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"../x/\n", "/etc/\n", "a/../../b/\n", "a//\n", "./\n", "a/\n .. = 1\n", "a/\n b/c = 1\n", "a/\n b -> /etc/passwd\n",
		"a/\n b -> ../../x\n", "a/\n b -> c/../../..\n", "a/\n b = 1\n b = 2\n", "a/\n b = 1\na/b/\n c = 1\n", "a/\n b -> ..\na/b/\n c = 1\n",
		"a\n", " ", "a/\n b\n", "a/\n b = \"\n", "\"a\n", "a/\n \"..\" = 1\n", "a/\n \"x\\x00\" = 1\n", "a/\n b -> \"\"\n", "\"a\"x\n",
	} {
		if tree, err := Parse(text); err == nil {
			t.Errorf("Parse(%q) accepted it: %v", text, tree.Paths())
		}
	}
}

func TestHostilePathsPanic(t *testing.T) {
	for _, path := range []string{"../x", "a/../../x", "", "/", "f/x", "a/.."} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("File(%q) did not panic", path)
				}
			}()
			New().File("f", "").File(path, "")
		}()
	}
}

func TestLinksAreFollowed(t *testing.T) {
	tree := Node8()
	const short, long = "sys/class/infiniband/mlx5_1/ports/1/state", "sys/devices/pci0000:37/0000:37:01.0/0000:3b:00.0/infiniband/mlx5_1/ports/1/state"
	tree.File("/"+short, "1: DOWN\n")
	if got, _ := tree.Content(long); got != "1: DOWN\n" {
		t.Errorf("content = %q", got)
	}
	if got, _ := tree.Content("sys/class/infiniband/mlx5_1/device/driver/module/initstate"); got != "live\n" {
		t.Errorf("driver's module: %q", got)
	}
	clone := tree.Clone()
	clone.Remove("sys/class/infiniband/mlx5_1/ports")
	if _, ok := clone.Content(long); ok {
		t.Error("removed file is still there")
	}
	if _, ok := tree.Content(long); !ok {
		t.Error("removing from a clone changed the original")
	}
	clone.Symlink("loop", "loop")
	if _, ok := clone.Content("loop"); ok {
		t.Error("a loop has content")
	}
}

// On disk every link leads to something and every file has the content it has in memory.
func TestWriteTo(t *testing.T) {
	tree, devices := all()
	dir := tempDir(t)
	if err := tree.WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	for _, path := range tree.Paths() {
		at := filepath.Join(dir, path)
		if _, err := os.Stat(at); err != nil {
			t.Error(err)
		}
		want, ok := tree.Content(path)
		if got, err := os.ReadFile(at); ok && (err != nil || string(got) != want) {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
	for _, device := range devices {
		checkDevice(t, dir, device)
	}
}

// checkDevice follows the links that readers of sysfs rely on.
func checkDevice(t *testing.T, dir string, device Device) {
	t.Helper()
	class := filepath.Join(dir, "sys/class/infiniband", device.Name)
	real, err := filepath.EvalSymlinks(class)
	if err != nil || real != filepath.Join(dir, device.Dir) {
		t.Errorf("%s is %s, %v", class, real, err)
	}
	for _, file := range []string{"node_type", "node_guid", "sys_image_guid", "fw_ver", "ports/1/state", "ports/1/rate", "ports/1/link_layer"} {
		if _, err := os.ReadFile(filepath.Join(class, file)); err != nil {
			t.Error(err)
		}
	}
	for _, netdev := range device.NetDevs {
		if _, err := os.ReadFile(filepath.Join(dir, "sys/class/net", netdev, "carrier_changes")); err != nil {
			t.Error(err)
		}
	}
	if device.PCIAddress == "" {
		if _, err := os.Lstat(filepath.Join(class, "device")); err == nil {
			t.Errorf("%s: software device with a device link", device.Name)
		}
		return
	}
	if got, err := filepath.EvalSymlinks(filepath.Join(dir, "sys/bus/pci/devices", device.PCIAddress)); err != nil || got != filepath.Join(dir, device.Function) {
		t.Errorf("%s: PCI function is %s, %v", device.Name, got, err)
	}
}

// No two counters of a device's port and no two devices' equal counters have the same value, unless the width leaves no room.
func TestValuesDiffer(t *testing.T) {
	tree := Node8()
	seen := map[string]string{}
	for _, path := range tree.Paths() {
		value, ok := tree.Content(path)
		if !ok || !strings.Contains(path, "counters/") || len(value) < 6 {
			continue
		}
		if other, ok := seen[value]; ok {
			t.Errorf("%s and %s are both %s", path, other, value)
		}
		seen[value] = path
	}
	if len(seen) < 8*(9+31) {
		t.Errorf("only %d values", len(seen))
	}
}

func FuzzParse(f *testing.F) {
	tree, _ := all()
	f.Add(tree.Format()[:4000])
	f.Add("a/\n b = 1\n c -> ../x\n\"q q\"/\n \"d\" = \"\\x00\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		tree, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(tree.Format())
		if err != nil || !reflect.DeepEqual(tree.nodes, again.nodes) {
			t.Errorf("round trip of %q: %v", text, err)
		}
		for _, path := range tree.Paths() {
			if valid(path) != nil {
				t.Errorf("hostile path %q", path)
			}
		}
	})
}
