package process

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"gdr_exporter/collector/sysread"
)

// others is the running system, with the test's children taken for others'.
func others() *Proc { return &Proc{Self: -1} }

// TestRealJob reads a real process.
func TestRealJob(t *testing.T) {
	const secret = "hunter2-secret"
	pid := startJob(t, []string{
		"AWS_SECRET_ACCESS_KEY=" + secret, "NCCL_NET_GDR_LEVEL=LOC", "NCCL_DEBUG=INFO", "NCCL_TOPO_FILE=/home/" + secret, "UCX_TLS=rc,cuda_copy", "NCCL_NET=" + strings.Repeat("x", 5000),
		"HOME=/home/" + secret, "NCCL_IB_DISABLE=" + secret, "PATH=" + strings.Repeat(secret, 5000), "NCCL=" + secret, "XNCCL_NET=" + secret,
		"NCCL_" + secret + "=1", "NVSHMEM_HCA_LIST=mlx5_0:1,mlx5_1:1", "UCX_EMPTY=", "NCCL_DMABUF_ENABLE=",
	}, "libnccl.so.2.23.4", "libucp.so.0.0.0", "libnccl.so.2")
	p := others()
	environment, err := p.Environment(pid)
	want := Environment{
		Variables: map[string]string{
			"NCCL_NET_GDR_LEVEL": "LOC", "UCX_TLS": "rc,cuda_copy", "NCCL_NET": Withheld, "NCCL_IB_DISABLE": Withheld, "NVSHMEM_HCA_LIST": "mlx5_0:1,mlx5_1:1", "NCCL_DMABUF_ENABLE": "",
		},
		Others: []string{"NCCL_DEBUG", "NCCL_TOPO_FILE", "UCX_EMPTY"}, Omitted: 1,
	}
	if err != nil || !reflect.DeepEqual(environment, want) {
		t.Errorf("%+v, %v, want %+v", environment, err, want)
	}
	if text := fmt.Sprintf("%+v", environment); strings.Contains(text, secret) {
		t.Errorf("a secret is in %s", text)
	}
	if limit, err := p.Memlock(pid); limit != jobLimit || err != nil {
		t.Errorf("limit of locked memory %d, %v", limit, err)
	}
	if libraries, err := p.Libraries(pid); err != nil || libraries != (Libraries{"2.23.4", true}) {
		t.Errorf("%+v, %v", libraries, err)
	}
	stat, err := p.Stat(pid)
	if err != nil || stat.Start == 0 || stat.Ended || stat.Own {
		t.Errorf("%+v, %v", stat, err)
	}
	for _, own := range []int{pid, os.Getpid()} {
		if stat, err := (&Proc{Self: own}).Stat(pid); err != nil || !stat.Own {
			t.Errorf("the exporter's own (%d) is not known to be: %+v, %v", own, stat, err)
		}
	}
}

func TestNoProcess(t *testing.T) {
	p := others()
	const nobody = math.MaxInt32
	_, stat := p.Stat(nobody)
	_, environment := p.Environment(nobody)
	_, libraries := p.Libraries(nobody)
	_, limit := p.Memlock(nobody)
	for _, err := range []error{stat, environment, libraries, limit} {
		if !Gone(err) {
			t.Errorf("%v", err)
		}
	}
	if !Gone(fmt.Errorf("read: %w", syscall.ESRCH)) || Gone(syscall.EACCES) || Gone(nil) {
		t.Error("Gone")
	}
}

// TestVisible: with the kernel's first namespace, and procfs of the same one.
func TestVisible(t *testing.T) {
	for name, test := range map[string]struct {
		namespace, status string
		want              bool
	}{
		"host":                  {initialPID, "Name:\tx\nNSpid:\t4711\n", true},
		"host, old kernel":      {initialPID, "Name:\tx\nPid:\t4711\n", true},
		"container":             {"pid:[4026532567]", "Name:\tNSpid:\nNSpid:\t1\n", false},
		"host's procfs":         {"pid:[4026532567]", "NSpid:\t4711\t1\n", false},
		"host, foreign procfs?": {initialPID, "NSpid:\t4711\t1\n", false},
	} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "self/ns"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Symlink(test.namespace, filepath.Join(root, "self/ns/pid")), os.WriteFile(filepath.Join(root, "self/status"), []byte(test.status), 0o600)); err != nil {
			t.Fatal(err)
		}
		if got, err := (&Proc{Root: root}).Visible(); got != test.want || err != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := (&Proc{Root: t.TempDir()}).Visible(); !sysread.Absent(err) {
		t.Errorf("without procfs: %v", err)
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := new(Proc).Visible(); err != nil || got && namespace != initialPID {
		t.Errorf("here, in %s: %v, %v", namespace, got, err)
	}
}

// filtered is what the filter keeps of a text that comes in pieces.
func filtered(text string, piece int) Environment {
	f := newFilter()
	for rest := text; len(rest) > 0; {
		n := min(piece, len(rest))
		f.feed([]byte(rest[:n]))
		rest = rest[n:]
	}
	return f.result()
}

func TestFilterPieces(t *testing.T) {
	text := "A=1\x00NCCL_NET=Socket\x00NCCL_NET=IB\x00NCCL_IB_DISABLE=\x00NCCL_IB_DISABLE=1\x00NC=2\x00NCCL_\x00NCCL_X=1\x00\x00=\x00NVSHMEM=1\x00NVSHMEM_A=1\x00UCX_NET_DEVICES=" + strings.Repeat("a", 256) + "\x00NCCL_IB_HCA=" + strings.Repeat("a", 257) +
		"\x00NCCL_LAST=no end"
	want := Environment{
		Variables: map[string]string{"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "", "UCX_NET_DEVICES": strings.Repeat("a", 256), "NCCL_IB_HCA": Withheld},
		Others:    []string{"NCCL_LAST", "NCCL_X", "NVSHMEM_A"},
	}
	for piece := 1; piece <= len(text); piece++ {
		if got := filtered(text, piece); !reflect.DeepEqual(got, want) {
			t.Fatalf("in pieces of %d: %+v", piece, got)
		}
	}
	var many strings.Builder
	for i := range 100 {
		fmt.Fprintf(&many, "UCX_V%02d=x\x00", i)
	}
	if got := filtered(many.String(), 4096); len(got.Others) != MaxOthers || got.Omitted != 100-MaxOthers {
		t.Errorf("%d names, %d omitted", len(got.Others), got.Omitted)
	}
}

// TestFilterForgets: of what is not kept nothing stays in memory.
func TestFilterForgets(t *testing.T) {
	f := newFilter()
	held := func() string { return string(f.entry[:cap(f.entry)]) }
	f.feed([]byte("PASSWORD=hunter2-hunter2"))
	if strings.Contains(held(), "hunter2") || strings.Contains(held(), "PASS") {
		t.Errorf("%q is held", held())
	}
	f.feed([]byte("\x00NCCL_COMM_ID=hunter2-hunter2"))
	f.feed([]byte("\x00"))
	if strings.Trim(held(), "\x00") != "" {
		t.Errorf("%q is held", held())
	}
	f.feed([]byte("NCCL_COMM_ID=hunter2"))
	f.forget()
	if strings.Trim(held(), "\x00") != "" {
		t.Errorf("%q is held", held())
	}
}

func TestParseMemlock(t *testing.T) {
	for line, want := range map[string]uint64{
		"Max locked memory         8388608              8388608              bytes     \n": 8388608,
		"Max locked memory         unlimited            unlimited            bytes     \n": math.MaxUint64,
		"Max locked memory         0                    unlimited            bytes     \n": 0,
	} {
		if got, err := parseMemlock(line); got != want || err != nil {
			t.Errorf("%q: %d, %v", line, got, err)
		}
	}
	for _, line := range []string{"", "Max locked memory", "Max locked memory -1 2 bytes", "Max locked memory 99999999999999999999 1 bytes", "Max open files 1 2 files"} {
		if got, err := parseMemlock(line); err == nil {
			t.Errorf("%q: %d", line, got)
		}
	}
}

func TestParseStat(t *testing.T) {
	tail := " 1 2 2 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 123456 1000 100 18446744073709551615"
	for text, want := range map[string]Stat{
		"7 (a) S 1" + tail[2:]:              {Start: 123456},
		"7 (a) Z 99 (b) S 1" + tail[2:]:     {Start: 123456},
		"7 (x\n) Z 4" + tail[2:] + " 1 2\n": {Start: 123456, Ended: true},
	} {
		if got, _, err := parseStat(text); got != want || err != nil {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "7", "7 (secret-name", "7 (secret-name) S", "7 (secret-name) S x" + tail[2:], "7 (a) S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 secret-name"} {
		if _, _, err := parseStat(text); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// scanned is what is found in mappings that come in pieces.
func scanned(text string, piece int) Libraries {
	var s mapsScanner
	for rest := text; len(rest) > 0; {
		n := min(piece, len(rest))
		s.feed([]byte(rest[:n]))
		rest = rest[n:]
	}
	s.end()
	return s.found
}

func TestMaps(t *testing.T) {
	const at = "7f0000000000-7f0000001000 r--p 00000000 fe:01 1234                       "
	for text, want := range map[string]Libraries{
		"":                                  {},
		at + "/usr/lib/libnccl.so.2.23.4\n": {NCCL: "2.23.4"},
		at + "/opt/site-packages/nvidia/nccl/lib/libnccl.so.2\n": {NCCL: "2"},
		at + "/x/libnccl.so\n": {NCCL: unversioned},
		at + "/x/libnccl.so.2\n" + at + "/x/libnccl.so.2.27.5\n" + at + "/x/libnccl.so.2\n": {NCCL: "2.27.5"},
		at + "/a b/libnccl.so.2.18.3 (deleted)\n":                                           {NCCL: "2.18.3"},
		at + "/x/libnccl-net.so\n" + at + "/libnccl.so.2/data\n" + at + "libnccl.so.2\n":    {},
		at + "[heap]\n" + at + "\n" + at + "/x/libucp-4a5b6c7d.so.0.0.0\n":                  {UCX: true},
		at + "/x/libucp.so.0.0.0": {UCX: true},
		at + "/" + strings.Repeat("x", 5000) + "/libnccl.so.2\n" + at + "/x/libucp.so.0\n": {UCX: true},
	} {
		for _, piece := range []int{1, 7, 100, chunk} {
			if got := scanned(text, piece); got != want {
				t.Errorf("%.200q in pieces of %d: %+v, want %+v", text, piece, got, want)
			}
		}
	}
}
