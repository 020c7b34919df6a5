package capture

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
)

// place makes files, directories (a name that ends with "/") and links (a
// content that begins with "-> ") below a temporary directory.
func place(t *testing.T, entries map[string]string) sysread.Files {
	t.Helper()
	root := t.TempDir()
	for name, content := range entries {
		at := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		target, link := strings.CutPrefix(content, "-> ")
		switch {
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(at, 0o755)
		case link:
			err = os.Symlink(target, at)
		default:
			err = os.WriteFile(at, []byte(content), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return sysread.Below(root)
}

// sysfs is a device under its class and its real path.
func sysfs(t *testing.T) sysread.Files {
	return place(t, map[string]string{
		"sys/class/net/eth0":                         "-> ../../devices/pci0/0000:18:00.0/net/eth0",
		"sys/devices/pci0/0000:18:00.0/net/eth0/mtu": "9000\n",
		"sys/devices/pci0/0000:18:00.0/vendor":       "0x15b3\n",
		"sys/devices/pci0/0000:18:00.0/driver":       "-> ../../../bus/pci/drivers/mlx5_core",
		"sys/bus/pci/drivers/mlx5_core/":             "",
		"sys/bus/pci/devices/0000:18:00.0":           "-> ../../../devices/pci0/0000:18:00.0",
		"sys/loop":                                   "-> loop",
		"sys/nowhere":                                "-> gone/away",
		"proc/modules":                               "a 1\nib_core 2\nb 3\n",
	})
}

// access is something done with files, as text.
type access struct {
	name string
	do   func(f sysread.Files) (any, error)
}

func readAll(f sysread.Files, path string) (any, error) {
	buf := make([]byte, sysread.AttrSize)
	n, err := f.ReadAt(path, buf, 0)
	return string(buf[:n]), err
}

var accesses = []access{
	{"list class", func(f sysread.Files) (any, error) { return namesIn(f, "/sys/class/net") }},
	{"list nothing", func(f sysread.Files) (any, error) { return namesIn(f, "/sys/class/infiniband") }},
	{"list a file", func(f sysread.Files) (any, error) { return namesIn(f, "/proc/modules") }},
	{"read by class", func(f sysread.Files) (any, error) { return readAll(f, "/sys/class/net/eth0/mtu") }},
	{"read through three links", func(f sysread.Files) (any, error) { return readAll(f, "/sys/class/net/eth0/../../vendor") }},
	{"read nothing", func(f sysread.Files) (any, error) { return readAll(f, "/sys/class/net/eth0/speed") }},
	{"read a directory", func(f sysread.Files) (any, error) { return readAll(f, "/sys/class/net") }},
	{"read below a file", func(f sysread.Files) (any, error) { return readAll(f, "/proc/modules/x") }},
	{"link", func(f sysread.Files) (any, error) { return f.Readlink("/sys/bus/pci/devices/0000:18:00.0/driver") }},
	{"no link", func(f sysread.Files) (any, error) { return f.Readlink("/sys/bus/pci/devices/0000:18:00.0/vendor") }},
	{"link of nothing", func(f sysread.Files) (any, error) { return f.Readlink("/sys/bus/pci/devices/0000:18:00.0/physfn") }},
	{"stat", func(f sysread.Files) (any, error) { return kindOf(f.Stat("/sys/class/net/eth0")) }},
	{"lstat", func(f sysread.Files) (any, error) { return kindOf(f.Lstat("/sys/class/net/eth0")) }},
	{"stat of a file", func(f sysread.Files) (any, error) { return kindOf(f.Stat("/proc/modules")) }},
	{"stat of a broken link", func(f sysread.Files) (any, error) { return kindOf(f.Stat("/sys/nowhere")) }},
	{"lstat of a broken link", func(f sysread.Files) (any, error) { return kindOf(f.Lstat("/sys/nowhere")) }},
	{"stat of a loop", func(f sysread.Files) (any, error) { return kindOf(f.Stat("/sys/loop")) }},
	{"read of a loop", func(f sysread.Files) (any, error) { return readAll(f, "/sys/loop") }},
	{"access", func(f sysread.Files) (any, error) { return nil, f.Access("/proc/modules") }},
	{"no access", func(f sysread.Files) (any, error) { return nil, f.Access("/proc/nothing") }},
	{"resolve", func(f sysread.Files) (any, error) { return f.EvalSymlinks("/sys/class/net/eth0") }},
	{"resolve nothing", func(f sysread.Files) (any, error) { return f.EvalSymlinks("/sys/class/net/eth0/nothing") }},
	{"resolve a loop", func(f sysread.Files) (any, error) { return f.EvalSymlinks("/sys/loop/x") }},
	{"lines", func(f sysread.Files) (any, error) {
		text, err := f.ReadLines("/proc/modules", 100, func(line []byte) bool { return bytes.HasPrefix(line, []byte("ib_")) })
		return string(text), err
	}},
	{"too long", func(f sysread.Files) (any, error) {
		text, err := f.ReadLines("/sys/class/net/eth0/mtu", 3, func([]byte) bool { return true })
		return string(text), err
	}},
	{"no lines", func(f sysread.Files) (any, error) {
		text, err := f.ReadLines("/proc/nothing", 3, func([]byte) bool { return true })
		return string(text), err
	}},
}

func namesIn(f sysread.Files, dir string) (any, error) {
	entries, err := f.ReadDir(dir)
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name)
		if e.Inode == 0 {
			return nil, errors.New("no inode")
		}
	}
	slices.Sort(names)
	return names, err
}

func kindOf(info sysread.Info, err error) (any, error) {
	if err == nil && info.Inode == 0 {
		return nil, errors.New("no inode")
	}
	return info.Kind, err
}

// again writes a recording and reads it.
func again(t *testing.T, r *Recording) *Recording {
	t.Helper()
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	read, err := Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(r, read) {
		t.Fatalf("read again:\n%+v\nis not\n%+v", read, r)
	}
	return read
}

// TestFiles: every operation gives the same through the recorder and from the
// recording as from the files, the same errno included.
func TestFiles(t *testing.T) {
	files := sysfs(t)
	recorder := NewRecorder(files, Header{}, nil)
	for _, through := range []string{"recorder", "recording"} {
		other := recorder.Files()
		player := Play(again(t, recorder.Recording()))
		if through == "recording" {
			other = player.Files()
		}
		for _, a := range accesses {
			want, wantErr := a.do(files)
			got, err := a.do(other)
			if !reflect.DeepEqual(got, want) || name(err) != name(wantErr) {
				t.Errorf("%s, %s: %v, %v; want %v, %v", through, a.name, got, err, want, wantErr)
			}
		}
		if missing := player.Unrecorded(); len(missing) > 0 {
			t.Errorf("not recorded: %v", missing)
		}
	}
}

func name(err error) string {
	if err == nil {
		return ""
	}
	return sysread.ErrnoName(err)
}

// TestOnce: a file that is read under two paths is in the recording once, and
// no element of a path that is no link is.
func TestOnce(t *testing.T) {
	recorder := NewRecorder(sysfs(t), Header{}, nil)
	for _, path := range []string{"/sys/class/net/eth0/mtu", "/sys/devices/pci0/0000:18:00.0/net/eth0/mtu", "/sys/bus/pci/devices/0000:18:00.0/net/eth0/mtu"} {
		if _, err := readAll(recorder.Files(), path); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, f := range recorder.Recording().Files {
		got = append(got, string(f.Op)+" "+f.Path)
	}
	want := []string{"link /sys/bus/pci/devices/0000:18:00.0", "link /sys/class/net/eth0", "read /sys/devices/pci0/0000:18:00.0/net/eth0/mtu"}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestAbsent: what a recording implies is ENOENT or EINVAL, and what it does not
// say is an error of its own that the player tells of.
func TestAbsent(t *testing.T) {
	recorder := NewRecorder(sysfs(t), Header{}, nil)
	for _, dir := range []string{"/sys/class/net", "/sys/devices/pci0/0000:18:00.0", "/sys/class/infiniband"} {
		_, _ = recorder.Files().ReadDir(dir)
	}
	_, _ = readAll(recorder.Files(), "/sys/class/net/eth0/mtu")
	_, _ = recorder.Files().Stat("/proc/modules")
	player := Play(recorder.Recording())
	f := player.Files()
	for _, a := range []struct {
		access
		want string
	}{
		{access{"not listed", func(f sysread.Files) (any, error) { return readAll(f, "/sys/class/net/eth1/mtu") }}, "ENOENT"},
		{access{"list of the same", func(f sysread.Files) (any, error) { return f.ReadDir("/sys/class/net/eth1") }}, "ENOENT"},
		{access{"link of the same", func(f sysread.Files) (any, error) { return f.Readlink("/sys/class/net/eth1") }}, "ENOENT"},
		{access{"not listed by its real directory", func(f sysread.Files) (any, error) {
			return f.Stat("/sys/bus/pci/devices/../../../devices/pci0/0000:18:00.0/sriov")
		}}, "ENOENT"},
		{access{"below what is absent", func(f sysread.Files) (any, error) { return readAll(f, "/sys/class/infiniband/mlx5_0/state") }}, "ENOENT"},
		{access{"below a file", func(f sysread.Files) (any, error) { return readAll(f, "/proc/modules/x") }}, "ENOENT"},
		{access{"listed, not read", func(f sysread.Files) (any, error) { return readAll(f, "/sys/devices/pci0/0000:18:00.0/vendor") }}, "not_recorded"},
		{access{"nothing known", func(f sysread.Files) (any, error) { return nil, f.Access("/proc/driver") }}, "not_recorded"},
		{access{"a file is no link", func(f sysread.Files) (any, error) { return f.Readlink("/proc/modules") }}, "EINVAL"},
		{access{"above what was read", func(f sysread.Files) (any, error) { return kindOf(f.Stat("/sys/devices/pci0")) }}, ""},
		{access{"beyond what was read", func(f sysread.Files) (any, error) { return f.ReadAt("/sys/class/net/eth0/mtu", make([]byte, 4), 100) }}, ""},
	} {
		if _, err := a.do(f); name(err) != a.want {
			t.Errorf("%s: %v, want %q", a.name, err, a.want)
		}
	}
	want := []string{"access /proc/driver", "read /sys/devices/pci0/0000:18:00.0/vendor"}
	if got := player.Unrecorded(); !slices.Equal(got, want) {
		t.Errorf("unrecorded %v, want %v", got, want)
	}
}

// scripted answers each read in turn.
type scripted struct {
	sysread.Files
	answers []any // a string or an errno
}

func (s *scripted) ReadAt(_ string, to []byte, _ int64) (int, error) {
	answer := s.answers[0]
	s.answers = s.answers[1:]
	if errno, is := answer.(syscall.Errno); is {
		return 0, errno
	}
	return copy(to, answer.(string)), nil
}

func (*scripted) Readlink(string) (string, error) { return "", syscall.EINVAL }

// TestFirstAndLast: of a file that changes the first and the last answer are
// kept, of one that does not one.
func TestFirstAndLast(t *testing.T) {
	text := func(text string) *FileAnswer {
		return &FileAnswer{Data: []Segment{{Bytes: []byte(text)}}, Size: int64(len(text))}
	}
	for _, c := range []struct {
		answers     []any
		first, last *FileAnswer
	}{
		{[]any{"1", "1", "1"}, nil, text("1")},
		{[]any{"1", "22", "3"}, text("1"), text("3")},
		{[]any{"333", "22"}, text("333"), text("22")},
		{[]any{"1", syscall.EIO}, text("1"), &FileAnswer{Errno: "EIO"}},
		{[]any{syscall.ENODEV, syscall.EIO, "1"}, &FileAnswer{Errno: "ENODEV"}, text("1")},
		{[]any{"1", "2", "1"}, nil, text("1")},
		{[]any{""}, nil, &FileAnswer{}},
	} {
		recorder := NewRecorder(&scripted{answers: slices.Clone(c.answers)}, Header{}, nil)
		for range c.answers {
			_, _ = recorder.Files().ReadAt("/x", make([]byte, 10), 0)
		}
		got := again(t, recorder.Recording()).Files
		if len(got) != 1 || !reflect.DeepEqual(got[0].Last, *c.last) || !reflect.DeepEqual(got[0].First, c.first) {
			t.Errorf("%v: %+v", c.answers, got)
		}
	}
}

// memory is one file that is read at offsets, some of which fail.
type memory struct {
	sysread.Files
	content []byte
	fail    map[int64]syscall.Errno
}

func (m *memory) ReadAt(_ string, to []byte, offset int64) (int, error) {
	if errno, fails := m.fail[offset]; fails {
		return 0, errno
	}
	if offset >= int64(len(m.content)) {
		return 0, nil
	}
	return copy(to, m.content[offset:]), nil
}

func (*memory) Readlink(string) (string, error) { return "", syscall.EINVAL }

// TestParts: whatever parts of a file are read in whatever order, the recording
// gives each of them back, with errors and with its end.
func TestParts(t *testing.T) {
	type read struct {
		offset int64
		length int
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		m := &memory{content: make([]byte, 64), fail: map[int64]syscall.Errno{}}
		for i := range m.content {
			m.content[i] = byte(random.Uint32())
		}
		var reads []read
		for range 1 + random.IntN(12) {
			reads = append(reads, read{random.Int64N(72), 1 + random.IntN(24)})
		}
		if random.IntN(2) == 0 { // where no other part is read across
			m.fail[70], reads = syscall.EIO, append(reads, read{70, 4})
		}
		recorder := NewRecorder(m, Header{}, nil)
		for _, r := range reads {
			_, _ = recorder.Files().ReadAt("/config", make([]byte, r.length), r.offset)
		}
		player := Play(again(t, recorder.Recording()))
		for _, r := range reads {
			want, got := make([]byte, r.length), make([]byte, r.length)
			n, err := m.ReadAt("", want, r.offset)
			played, playedErr := player.Files().ReadAt("/config", got, r.offset)
			if n != played || !bytes.Equal(want, got) || !errors.Is(playedErr, err) {
				t.Fatalf("%v of %v: %d, %v, want %d, %v", r, reads, played, playedErr, n, err)
			}
		}
		if missing := player.Unrecorded(); len(missing) > 0 {
			t.Fatal(missing)
		}
	}
}

// TestPartFails: an error in the middle hides what was read there before.
func TestPartFails(t *testing.T) {
	m := &memory{content: []byte("0123456789abcdef"), fail: map[int64]syscall.Errno{}}
	recorder := NewRecorder(m, Header{}, nil)
	f := recorder.Files()
	_, _ = f.ReadAt("/config", make([]byte, 16), 0)
	m.fail[4] = syscall.EIO
	_, _ = f.ReadAt("/config", make([]byte, 2), 4)
	player := Play(again(t, recorder.Recording()))
	var buf [4]byte
	if n, err := player.Files().ReadAt("/config", buf[:], 0); n != 4 || err != nil || string(buf[:]) != "0123" {
		t.Errorf("%q, %v", buf, err)
	}
	if _, err := player.Files().ReadAt("/config", buf[:], 4); !errors.Is(err, syscall.EIO) {
		t.Errorf("%v", err)
	}
	if _, err := player.Files().ReadAt("/config", buf[:], 2); !errors.Is(err, ErrNotRecorded) {
		t.Errorf("%v across the failure", err)
	}
}

// TestConcurrent has many goroutines record and play the same files.
func TestConcurrent(t *testing.T) {
	files := sysfs(t)
	recorder := NewRecorder(files, Header{}, nil)
	_ = recorder.Recording()
	all := func(f sysread.Files) {
		var running sync.WaitGroup
		for range 8 {
			running.Go(func() {
				for _, a := range accesses {
					_, _ = a.do(f)
				}
			})
		}
		running.Wait()
	}
	all(recorder.Files())
	player := Play(again(t, recorder.Recording()))
	all(player.Files())
	if missing := player.Unrecorded(); len(missing) > 0 {
		t.Errorf("not recorded: %v", missing)
	}
}

// TestHangEnds: an answer that hangs comes when the player is closed.
func TestHangEnds(t *testing.T) {
	recording := &Recording{
		Files:   []File{{Path: "/x", Op: OpRead, Last: FileAnswer{Hang: true}}},
		Answers: []Answer{{Part: PartNetlink, Question: "GET", Last: Value{Hang: true}}, {Part: PartNetlink, Question: questionDial, Last: Value{JSON: []byte("true")}}},
	}
	player := Play(again(t, recording))
	ended := make(chan error, 2)
	go func() {
		_, err := player.Files().ReadAt("/x", make([]byte, 1), 0)
		ended <- err
	}()
	go func() {
		socket, err := player.Netlink()()
		if err == nil {
			_, err = socket.Devices()
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("it returns: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	player.Close()
	player.Close()
	for range 2 {
		if err := <-ended; !errors.Is(err, syscall.EINTR) {
			t.Errorf("%v", err)
		}
	}
}

// TestErrorsAreErrnos: what the recorder meets is served as the same errno, so
// that readers compare it as they do on the host.
func TestErrorsAreErrnos(t *testing.T) {
	for _, err := range []error{syscall.EIO, syscall.Errno(524), syscall.Errno(9999), sysread.ErrNoPMA, sysread.Invalid("x"), &fs.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}} {
		served := sysread.ErrorOf(errnoName(err))
		if sysread.ErrnoName(served) != sysread.ErrnoName(err) {
			t.Errorf("%v is served as %v", err, served)
		}
	}
	if served := sysread.ErrorOf(errnoName(fs.ErrNotExist)); !errors.Is(served, fs.ErrNotExist) {
		t.Errorf("%v", served)
	}
}
