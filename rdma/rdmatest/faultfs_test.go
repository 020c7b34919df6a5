package rdmatest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	sickClass = "sys/class/infiniband/mlx5_1"
	sickDir   = "sys/devices/pci0000:37/0000:37:01.0/0000:3b:00.0/infiniband/mlx5_1"
	healthy   = "sys/class/infiniband/mlx5_0"
)

// mount serves a node with two HCAs.
func mount(t *testing.T) (fs *FaultFS, dir, mountpoint string) {
	t.Helper()
	if err := Supported(); err != nil {
		t.Skip(err)
	}
	dir, mountpoint = tempDir(t), t.TempDir()
	if err := NodeN(2).WriteTo(dir); err != nil {
		t.Fatal(err)
	}
	fs, err := Mount(dir, mountpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	})
	return fs, dir, mountpoint
}

// open opens a file by the system call, with no help from Go's poller.
func open(t *testing.T, path string) int {
	t.Helper()
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open %s: %v", path, err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	return fd
}

func pread(fd int) (string, error) {
	buffer := make([]byte, 4096)
	n, err := syscall.Pread(fd, buffer, 0)
	return string(buffer[:max(n, 0)]), err
}

func TestServesTheTree(t *testing.T) {
	_, dir, mountpoint := mount(t)
	script := `cd "$1" && find . | sort && find . -type l -printf '%p %l\n' | sort && find . -type f | sort | xargs cat`
	var want, got bytes.Buffer
	for from, to := range map[string]*bytes.Buffer{dir: &want, mountpoint: &got} {
		command := exec.Command("sh", "-c", script, "sh", from)
		command.Stdout, command.Stderr = to, os.Stderr
		if err := command.Run(); err != nil {
			t.Fatal(err)
		}
	}
	if want.String() != got.String() || want.Len() == 0 {
		t.Errorf("the served tree differs from its directory (%d and %d bytes)", got.Len(), want.Len())
	}
	if _, err := os.Create(filepath.Join(mountpoint, "new")); err == nil {
		t.Error("a file could be made")
	}
	if err := os.WriteFile(filepath.Join(mountpoint, healthy, "node_desc"), nil, 0o644); err == nil {
		t.Error("a file could be written")
	}
}

// Each errno arrives by the raw system calls, on a fresh and on a kept descriptor, and ends when the rule ends.
func TestErrnos(t *testing.T) {
	fs, _, mountpoint := mount(t)
	path := filepath.Join(mountpoint, sickClass, "ports/1/counters/link_downed")
	kept := open(t, path)
	for _, errno := range []syscall.Errno{
		syscall.EINVAL, syscall.EIO, syscall.ENODEV, syscall.ENOENT, syscall.EACCES, syscall.EPERM, syscall.ETIMEDOUT, syscall.EAGAIN, syscall.EBUSY,
		syscall.EOPNOTSUPP, syscall.ENXIO,
	} {
		fs.Set(sickClass+"/ports/1/counters/link_downed", Rule{Errno: errno})
		if _, err := pread(kept); !errors.Is(err, errno) {
			t.Errorf("kept descriptor: %v, want %v", err, errno)
		}
		if _, err := pread(open(t, path)); !errors.Is(err, errno) {
			t.Errorf("new descriptor: %v, want %v", err, errno)
		}
		fs.Set(sickDir+"/ports/1/counters/link_downed", Rule{OpenErrno: errno})
		if _, err := syscall.Open(path, syscall.O_RDONLY, 0); !errors.Is(err, errno) {
			t.Errorf("open: %v, want %v", err, errno)
		}
		fs.Clear(sickClass + "/ports/1/counters/link_downed")
		if text, err := pread(kept); err != nil || strings.TrimSpace(text) == "" {
			t.Errorf("after %v: %q, %v", errno, text, err)
		}
	}
}

func TestContentRules(t *testing.T) {
	fs, _, mountpoint := mount(t)
	path := filepath.Join(mountpoint, sickClass, "ports/1/state")
	kept := open(t, path)
	huge := strings.Repeat("9", 3_000_000)
	for _, content := range []string{"", "garbage", "6: UNKNOWN\n", huge} {
		fs.Set(sickClass+"/ports/1/state", Text(content))
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("%d bytes, %v; want %d", len(got), err, len(content))
		}
		if got, err := pread(kept); err != nil || got != content[:min(4096, len(content))] {
			t.Errorf("kept: %d bytes, %v", len(got), err)
		}
	}
	fs.Set(sickClass+"/ports/1/state", Rule{Short: 3})
	if got, err := pread(kept); err != nil || got != "4: " {
		t.Errorf("short read: %q, %v", got, err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "4: ACTIVE\n" {
		t.Errorf("short reads: %q, %v", got, err)
	}
	fs.Set(sickClass+"/ports/1/state", Rule{Delay: 60 * time.Millisecond})
	start := time.Now()
	if _, err := pread(kept); err != nil || time.Since(start) < 60*time.Millisecond {
		t.Errorf("delay: %v, %v", time.Since(start), err)
	}
}

func TestPatterns(t *testing.T) {
	fs, _, mountpoint := mount(t)
	read := func(path string) error { _, err := os.ReadFile(filepath.Join(mountpoint, path)); return err }
	fs.Set(sickClass+"/ports/*/counters/*", Rule{Errno: syscall.EINVAL})
	if err := read(sickClass + "/ports/1/counters/VL15_dropped"); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if err := errors.Join(read(sickClass+"/ports/1/hw_counters/out_of_buffer"), read(healthy+"/ports/1/counters/VL15_dropped")); err != nil {
		t.Error(err)
	}
	fs.ClearAll()
	fs.Set(sickClass+"/**", Rule{Errno: syscall.EIO})
	fs.Set(sickClass+"/fw_ver", Rule{})
	if err := errors.Join(read(sickClass+"/fw_ver"), read(healthy+"/fw_ver")); err != nil {
		t.Error(err)
	}
	if err := read(sickClass + "/ports/1/state"); !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	fs.ClearAll()
	fs.SetFunc("rates", func(path string) bool { return strings.HasSuffix(path, "/rate") }, Rule{OpenErrno: syscall.EACCES})
	if err := read(sickClass + "/ports/1/rate"); !errors.Is(err, syscall.EACCES) {
		t.Error(err)
	}
	fs.Clear("rates")
	if err := read(sickClass + "/ports/1/rate"); err != nil {
		t.Error(err)
	}
	fs.Set(sickClass+"/ports/1/counters", Rule{OpenErrno: syscall.EACCES})
	if _, err := os.ReadDir(filepath.Join(mountpoint, sickClass, "ports/1/counters")); !errors.Is(err, syscall.EACCES) {
		t.Error(err)
	}
}

// patient is longer than a busy machine stalls.
const patient = time.Minute

// hang starts a pread that hangs and returns the channel of its result.
func hang(t *testing.T, fs *FaultFS, fd int) <-chan error {
	t.Helper()
	before, result := fs.Hanging(), make(chan error, 1)
	go func() { _, err := pread(fd); result <- err }()
	for deadline := time.Now().Add(patient); fs.Hanging() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the read does not hang")
		}
	}
	return result
}

func wait(t *testing.T, result <-chan error) error {
	t.Helper()
	select {
	case err := <-result:
		return err
	case <-time.After(patient):
		t.Fatal("the read still hangs")
	}
	return nil
}

// Many reads hang at once and no other request waits for them; each way to end a hang ends it.
func TestHang(t *testing.T) {
	fs, _, mountpoint := mount(t)
	const state = sickClass + "/ports/1/state"
	fd := open(t, filepath.Join(mountpoint, state))
	fs.Set(state, Rule{Hang: true})
	var hung []<-chan error
	for range 40 {
		hung = append(hung, hang(t, fs, fd))
	}
	start := time.Now()
	if _, err := os.ReadFile(filepath.Join(mountpoint, healthy, "ports/1/state")); err != nil || time.Since(start) > patient/3 { // the others hang until they are let go
		t.Errorf("another read took %v: %v", time.Since(start), err)
	}
	fs.Release(state)
	for _, result := range hung {
		if err := wait(t, result); err != nil {
			t.Error(err)
		}
	}
	fs.Set(state, Rule{Hang: true})
	result := hang(t, fs, fd)
	fs.Set(state, Rule{Errno: syscall.EIO})
	if err := wait(t, result); !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	if fs.Hanging() != 0 {
		t.Errorf("%d still hang", fs.Hanging())
	}
}

func TestHangOpen(t *testing.T) {
	fs, _, mountpoint := mount(t)
	fs.Set(sickClass+"/**", Rule{HangOpen: true})
	result := make(chan error, 1)
	go func() { _, err := os.ReadFile(filepath.Join(mountpoint, sickClass, "fw_ver")); result <- err }()
	for end := time.Now().Add(patient); fs.Hanging() == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if fs.Hanging() != 1 {
		t.Errorf("%d hang", fs.Hanging())
	}
	fs.ClearAll()
	if err := wait(t, result); err != nil {
		t.Error(err)
	}
}

// Close does not wait: hanging reads go on, kept descriptors do not stop it.
func TestCloseWhileHanging(t *testing.T) {
	fs, _, mountpoint := mount(t)
	fd := open(t, filepath.Join(mountpoint, healthy, "fw_ver"))
	fs.Set(healthy+"/fw_ver", Rule{Hang: true})
	result := hang(t, fs, fd)
	start := time.Now()
	if err := fs.Close(); err != nil {
		t.Fatal(err)
	}
	if err := wait(t, result); err != nil || time.Since(start) > patient/3 {
		t.Errorf("%v after %v", err, time.Since(start))
	}
	if _, err := pread(fd); !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.ECONNABORTED) {
		t.Errorf("after Close: %v", err)
	}
	if names, err := os.ReadDir(mountpoint); err != nil || len(names) > 0 {
		t.Errorf("the mount is still there: %v, %v", names, err)
	}
}

// A process that dies while it hangs on a file that it serves itself ends all the same, and its mount goes.
func TestDeathWhileHanging(t *testing.T) {
	if os.Getenv("RDMATEST_HANG") != "" {
		hangForEver(t)
	}
	if err := Supported(); err != nil {
		t.Skip(err)
	}
	command := exec.Command(os.Args[0], "-test.run=^TestDeathWhileHanging$")
	command.Env = append(os.Environ(), "RDMATEST_HANG=1", "TMPDIR="+t.TempDir())
	output, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	var served, dir string
	_, err = fmt.Fscanln(output, &served, &dir)
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	time.Sleep(100 * time.Millisecond) // for its reads to hang; one that is killed sooner ends as well
	must(t, command.Process.Kill())
	result := make(chan error, 1)
	go func() { result <- command.Wait() }()
	select {
	case <-result:
	case <-time.After(patient):
		t.Fatal("the killed process does not end")
	}
	mounted := func() bool {
		mounts, err := os.ReadFile("/proc/mounts")
		must(t, err)
		return strings.Contains(string(mounts), served)
	}
	for end := time.Now().Add(patient); mounted(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the mount is still there")
		}
	}
}

// hangForEver leaves every thread it can in a read that hangs, the first thread among them.
func hangForEver(t *testing.T) {
	fs, dir, mountpoint := mount(t)
	fs.Set(healthy+"/fw_ver", Rule{Hang: true})
	for range 8 {
		fd := open(t, filepath.Join(mountpoint, healthy, "fw_ver"))
		go func() { _, _ = pread(fd) }()
	}
	fmt.Println(mountpoint, dir)
	select {}
}

func TestCounts(t *testing.T) {
	fs, _, mountpoint := mount(t)
	fd := open(t, filepath.Join(mountpoint, healthy, "ports/1/state"))
	for range 7 {
		if _, err := pread(fd); err != nil {
			t.Fatal(err)
		}
	}
	if opens, reads := fs.Opens(healthy+"/ports/1/state"), fs.Reads(healthy+"/ports/1/state"); opens != 1 || reads != 7 {
		t.Errorf("%d opens, %d reads", opens, reads)
	}
	if opens := fs.Opens(sickClass + "/**"); opens != 0 {
		t.Errorf("%d opens of a device that nobody touched", opens)
	}
	if _, err := os.ReadDir(filepath.Join(mountpoint, sickClass, "ports")); err != nil || fs.Opens(sickClass+"/**") != 1 {
		t.Errorf("a listing counts %d, %v", fs.Opens(sickClass+"/**"), err)
	}
	if fs.Counts()[sickDir].Lookups == 0 {
		t.Error("the way to the listing was not counted")
	}
	fs.ResetCounts()
	if fs.Reads(healthy+"/**") != 0 {
		t.Error("counts are still there")
	}
}

// What happens in the directory shows at once: added, renamed and removed entries, new content, and the fate of kept descriptors.
func TestDirectoryChanges(t *testing.T) {
	_, dir, mountpoint := mount(t)
	read := func(path string) string { text, _ := os.ReadFile(filepath.Join(mountpoint, path)); return string(text) }
	kept := open(t, filepath.Join(mountpoint, sickClass, "ports/1/state"))
	gone := open(t, filepath.Join(mountpoint, healthy, "ports/1/state"))

	must(t, os.WriteFile(filepath.Join(dir, sickDir, "ports/1/state"), []byte("1: DOWN\n"), 0o644))
	if text, err := pread(kept); err != nil || text != "1: DOWN\n" {
		t.Errorf("kept: %q, %v", text, err)
	}
	renamed := filepath.Join(filepath.Dir(sickDir), "ibp59s0")
	must(t, os.Rename(filepath.Join(dir, sickDir), filepath.Join(dir, renamed)))
	must(t, os.Remove(filepath.Join(dir, sickClass)))
	must(t, os.Symlink("../../../"+renamed, filepath.Join(dir, "sys/class/infiniband/ibp59s0")))
	if text, err := pread(kept); err != nil || text != "1: DOWN\n" {
		t.Errorf("kept after the rename: %q, %v", text, err)
	}
	if read(sickClass+"/ports/1/state") != "" || read("sys/class/infiniband/ibp59s0/ports/1/state") != "1: DOWN\n" {
		t.Error("the rename is not seen")
	}
	must(t, os.RemoveAll(filepath.Join(dir, healthy+"/ports/1")))
	if _, err := pread(gone); !errors.Is(err, syscall.ENODEV) {
		t.Errorf("descriptor of a removed file: %v", err)
	}
	if _, err := os.Stat(filepath.Join(mountpoint, healthy, "ports/1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("removed port: %v", err)
	}
	must(t, os.Mkdir(filepath.Join(dir, healthy, "ports/7"), 0o755))
	if names, _ := os.ReadDir(filepath.Join(mountpoint, healthy, "ports")); len(names) != 1 || names[0].Name() != "7" {
		t.Errorf("ports are %v", names)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestInodes(t *testing.T) {
	_, _, mountpoint := mount(t)
	seen := map[uint64]string{}
	for round := range 2 {
		err := filepath.WalkDir(mountpoint, func(path string, _ os.DirEntry, err error) error {
			var st syscall.Stat_t
			if err := errors.Join(err, syscall.Lstat(path, &st)); err != nil {
				return err
			}
			if other, ok := seen[st.Ino]; ok && other != path || round > 0 && !ok {
				t.Errorf("inode %d is %s and %s", st.Ino, other, path)
			}
			seen[st.Ino] = path
			return nil
		})
		must(t, err)
	}
}
