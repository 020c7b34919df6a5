package main

import (
	"archive/tar"
	"bytes"
	endian "encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// captureHeader is the first line of a capture.
const captureHeader = `{"gdr_exporter_capture":1,"began":"2027-01-15T08:00:00Z","ended":"2027-01-15T08:00:02Z","readers":{"sysfs":"/sys","procfs":"/proc"}}` + "\n"

// TestReplayTar: an archive of files, with links and ways out in it, is no capture,
// and nothing of it is unpacked.
func TestReplayTar(t *testing.T) {
	t.Parallel()
	dir := emptyDir(t)
	archive := func(w io.Writer) {
		files := tar.NewWriter(w)
		for _, header := range []*tar.Header{
			{Name: "sys", Typeflag: tar.TypeSymlink, Linkname: dir}, {Name: "sys/link", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"},
			{Name: "../../" + dir + "/out", Typeflag: tar.TypeReg, Mode: 0o600}, {Name: "/dev", Typeflag: tar.TypeDir, Mode: 0o700},
		} {
			if err := files.WriteHeader(header); err != nil {
				t.Fatal(err)
			}
		}
		if err := files.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var plain bytes.Buffer
	archive(&plain)
	for name, content := range map[string]string{"file.tar": plain.String(), "file.tar.gz": gzipped(t, archive)} {
		path := write(t, name, content)
		for _, command := range []string{"topo", "serve"} {
			runBriefly(t, command, "--replay="+path, "--web.listen-address=127.0.0.1:0").wantMistake(t, "--replay="+path, "no capture")
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("unpacked: %v, %v", files, err)
	}
}

// TestReplayLinks: a link in a capture that leads to a file of this host leads
// nowhere: a replay shows nothing that is not in the capture.
func TestReplayLinks(t *testing.T) {
	t.Parallel()
	root, _ := captureHost(t)
	here := root + "/sys/class/infiniband/mlx5_0"
	secret := strings.TrimSpace(optionalText(here + "/node_guid"))
	if secret == "" {
		t.Fatal("the tree has no GUID")
	}
	var text strings.Builder
	text.WriteString(captureHeader)
	lines := []map[string]any{
		{"path": "/sys/class", "op": "list", "names": []string{"infiniband"}}, {"path": "/sys/class/infiniband", "op": "list", "names": []string{"mlx5_0", "mlx5_1"}},
		{"path": "/sys/class/infiniband/mlx5_0", "op": "link", "target": here},
		{"path": "/sys/class/infiniband/mlx5_1", "op": "link", "target": strings.Repeat("../", 20) + strings.TrimPrefix(here, "/")},
	}
	for _, line := range lines {
		if err := json.NewEncoder(&text).Encode(line); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintf(&text, `{"lines":%d}`+"\n", len(lines))
	r := serveWith(t, "--web.listen-address=127.0.0.1:0", "--replay="+write(t, "links", text.String()), "--control.socket=", "--state.dir=")
	page := metrics(t, r)
	r.signal(t, syscall.SIGTERM)
	if strings.Contains(page, secret) || !strings.Contains(page, `gdr_rdma_devices 2`) {
		t.Errorf("the page has what is on this host, or no devices:\n%s", page)
	}
	for says, target := range map[string]string{"target of a link": "a\x00b", "is no absolute path": "../../etc"} {
		line := map[string]any{"path": "/sys/class/infiniband/mlx5_0", "op": "link", "target": target}
		if says != "target of a link" {
			line["path"] = "/sys/class/../../etc/passwd"
		}
		encoded, err := json.Marshal(line)
		if err != nil {
			t.Fatal(err)
		}
		path := write(t, "link", captureHeader+string(encoded)+"\n"+`{"lines":1}`+"\n")
		runBriefly(t, "topo", "--replay="+path).wantMistake(t, "line 2", says)
	}
}

// hugeFile is a file of a gibibyte that is gzip throughout, and takes little room
// on the disk: blocks that are not compressed, of zeros.
func hugeFile(t *testing.T, start string) string {
	t.Helper()
	path := filepath.Join(emptyDir(t), "huge")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	const gzipHeader = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
	offset := int64(0)
	put := func(text []byte) {
		if _, err := file.WriteAt(text, offset); err != nil {
			t.Fatal(err)
		}
		offset += int64(len(text))
	}
	block := func(size int) { // RFC 1951, 3.2.4
		header := endian.LittleEndian.AppendUint16([]byte{0}, uint16(size))
		put(endian.LittleEndian.AppendUint16(header, ^uint16(size)))
	}
	put([]byte(gzipHeader))
	block(len(start))
	put([]byte(start))
	const size = 1<<16 - 1
	for offset < 1<<30 {
		block(size)
		offset += size // zeros, which are not written
	}
	return path
}

// TestReplayHuge: neither a huge file nor a device that never ends is read into
// memory, or for long.
func TestReplayHuge(t *testing.T) {
	t.Parallel()
	const most = 400 << 10 // KiB; half of it without a look for data races
	path := hugeFile(t, captureHeader)
	command := exec.CommandContext(t.Context(), binary(t), "topo", "--replay="+path)
	ended, used := finishMeasured(t, command)
	ended.wantMistake(t, "too large")
	if used > most || used == 0 {
		t.Errorf("%d KiB", used)
	}
	t.Logf("%d KiB of memory for a file of 1 GiB", used)
	runBriefly(t, "topo", "--replay=/dev/zero").wantMistake(t, "no regular file")
}
