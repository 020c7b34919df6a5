package netdev

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/rdma/nlattr"
)

// fake is a kernel with one interface.
type fake struct {
	name      string
	number    int
	hardware  string
	names     []string
	values    []uint64
	ieee      []byte
	statsErr  error // of all ethtool calls
	valuesErr error // of the values alone
	dcbErr    error
	indexErr  error
	asked     map[string]int
	closed    bool
}

func (f *fake) count(what, name string) error {
	if f.asked == nil {
		f.asked = map[string]int{}
	}
	f.asked[what]++
	if name != f.name {
		return syscall.ENODEV
	}
	return nil
}

func (f *fake) Index(name string) (int, error) {
	if err := f.count("index", name); err != nil {
		return 0, err
	}
	return f.number, f.indexErr
}

func (f *fake) Address(name string) (string, error) {
	return f.hardware, f.count("address", name)
}

func (f *fake) StatCount(name string) (int, error) {
	if err := f.count("count", name); err != nil {
		return 0, err
	}
	return len(f.names), f.statsErr
}

func (f *fake) StatNames(name string, count int) ([]string, error) {
	if err := f.count("names", name); err != nil {
		return nil, err
	}
	return f.names[:count], f.statsErr
}

func (f *fake) Stats(name string, values []uint64) error {
	if err := f.count("values", name); err != nil {
		return err
	}
	if f.valuesErr != nil {
		return f.valuesErr
	}
	copy(values, f.values)
	return f.statsErr
}

func (f *fake) DCB(name string) ([]byte, error) {
	if err := f.count("dcb", name); err != nil {
		return nil, err
	}
	return f.ieee, f.dcbErr
}

func (f *fake) Close() { f.closed = true }

// load fills the fake with the output of ethtool -S in testdata.
func (f *fake) load(t testing.TB, file string) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	f.names, f.values = nil, nil
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		name, value, is := cutLast(strings.TrimPrefix(lines.Text(), "     "))
		if !is {
			continue
		}
		f.names, f.values = append(f.names, name), append(f.values, value)
	}
}

// cutLast splits a line of ethtool -S. A name may have a colon in it.
func cutLast(line string) (string, uint64, bool) {
	at := strings.LastIndex(line, ": ")
	if at < 0 {
		return "", 0, false
	}
	value, err := strconv.ParseUint(strings.TrimSpace(line[at+2:]), 10, 64)
	return line[:at], value, err == nil
}

func (f *fake) set(t testing.TB, name string, value uint64) {
	t.Helper()
	for i := range f.names {
		if f.names[i] == name {
			f.values[i] = value
			return
		}
	}
	t.Fatalf("no statistic %s", name)
}

// ieeeReply makes the body of an answer to DCB_CMD_IEEE_GET.
func ieeeReply(attributes []byte) []byte {
	body := []byte{0, dcbCmdIEEEGet, 0, 0}
	body = nlattr.Append(body, dcbAttrIfname, []byte("eth0\x00"))
	return nlattr.Append(body, dcbAttrIEEE|1<<15, attributes)
}

// pfcAttribute is a struct ieee_pfc with these priorities enabled.
func pfcAttribute(enabled PrioritySet) []byte {
	pfc := make([]byte, 136)
	pfc[0], pfc[ieeePFCEnableOffset] = Priorities, byte(enabled)
	return nlattr.Append(nil, ieeeAttrPFC, pfc)
}

// appAttribute is an application table with one entry of that selector.
func appAttribute(selector byte) []byte {
	app := nlattr.Append(nil, ieeeAttrApp, []byte{selector, 3, 26, 0})
	return nlattr.Append(nil, ieeeAttrAppTable, app)
}

// tree writes files below a new sysfs and returns where it is.
func tree(t testing.TB, driver string, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "class/net/eth0")
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if driver != "" {
		if err := os.MkdirAll(filepath.Join(dir, "device"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../../bus/pci/drivers/"+driver, filepath.Join(dir, "device/driver")); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// usual are the files of an interface that is number 4 and up.
func usual() map[string]string {
	return map[string]string{
		"ifindex": "4", "address": "b8:3f:d2:00:00:01", "mtu": "9000",
		"carrier_up_count": "3", "carrier_down_count": "2",
	}
}

func newFake(t testing.TB, file string) *fake {
	f := &fake{name: "eth0", number: 4, hardware: "b8:3f:d2:00:00:01", dcbErr: syscall.EOPNOTSUPP}
	if file != "" {
		f.load(t, file)
	}
	return f
}

func newTestReader(f *fake, sysfs string) *Reader {
	return NewReader(Options{Sysfs: sysfs, Kernel: f, Extra: true})
}

var start = time.Unix(1_800_000_000, 0)
