package rdmatest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// FaultFS serves a directory read-only through FUSE and applies rules to it, so that reads fail, lie or hang as those of a sick driver do.
//
// Like sysfs it has no cache: every pread of a client is a request, and each change of a rule or of the directory shows at once, on
// descriptors that are open already too. As in sysfs a file has a size of 4096 whatever it holds, a descriptor whose file was removed
// reads ENODEV, and one whose device was renamed goes on reading (by the rules of its old path). A hang cannot be interrupted, not even by
// SIGKILL; it ends with [FaultFS.Release], [FaultFS.Clear], a new rule for the path, or [FaultFS.Close]. Requests do not wait for each
// other.
type FaultFS struct {
	dir, mountpoint string
	rules           rules
	watchdog        *exec.Cmd
	closing         sync.Once

	mu      sync.Mutex
	inodes  map[string]uint64
	counts  map[string]Count
	hanging map[string]int
}

// Count says how often a path was asked for: looked up on the way to it or below it, opened, read, listed.
type Count struct{ Lookups, Opens, Reads, Lists int }

// Supported tells why FUSE cannot be used here; nil if it can.
func Supported() error {
	if os.Geteuid() != 0 {
		return errors.New("mounting FUSE needs root")
	}
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("no FUSE: %w", err)
	}
	return device.Close()
}

// Mount serves dir at mountpoint, an empty directory elsewhere, until Close.
func Mount(dir, mountpoint string) (*FaultFS, error) {
	if err := Supported(); err != nil {
		return nil, err
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	f := &FaultFS{dir: dir, mountpoint: mountpoint, inodes: map[string]uint64{}, counts: map[string]Count{}, hanging: map[string]int{}}
	if f.watchdog, err = watch(mountpoint); err != nil {
		return nil, err
	}
	none := time.Duration(0)
	_, err = fs.Mount(mountpoint, &faultNode{f: f}, &fs.Options{
		EntryTimeout: &none, AttrTimeout: &none, NegativeTimeout: &none,
		RootStableAttr: &fs.StableAttr{Ino: f.inode("")},
		MountOptions: fuse.MountOptions{
			DirectMountStrict: true, AllowOther: true, FsName: "faultfs", Name: "faultfs", DisableReadDirPlus: true, DisableXAttrs: true,
			Logger: log.New(io.Discard, "", 0),
		},
	})
	if err != nil {
		f.unwatch()
		return nil, err
	}
	f.prime()
	return f, nil
}

// prime has one file opened and closed, after which the kernel knows that closing needs no answer (see Flush). A process that dies with
// files open closes them when nobody is left to answer.
func (f *FaultFS) prime() {
	_ = filepath.WalkDir(f.mountpoint, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		if fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0); err == nil {
			_ = syscall.Close(fd)
		}
		return filepath.SkipAll
	})
	f.ResetCounts()
}

// watch starts a process that takes the mount away when this one has died without Close, by a failed test or a signal. Else a thread of
// this process that waits for an answer from this process would keep it, and the mount, for ever: the kernel closes the server's
// descriptor only when the last thread has gone.
func watch(mountpoint string) (*exec.Cmd, error) {
	// Dying is: gone, a zombie whose other threads hang, or a SIGKILL (bit 8) that waits.
	const script = `while [ -d "/proc/$1" ] && ! grep -Eq '^State:.Z|^S(ig|hd)Pnd:.*[13579bdf]..$' "/proc/$1/status"; do sleep 1; done
umount -f -l "$2"`
	command := exec.Command("sh", "-c", script, "faultfs-watchdog", strconv.Itoa(os.Getpid()), mountpoint)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return command, command.Start()
}

func (f *FaultFS) unwatch() {
	_ = syscall.Kill(-f.watchdog.Process.Pid, syscall.SIGKILL)
	_ = f.watchdog.Wait()
}

// Set puts a rule in force for a path or pattern (see [Fault]); a rule set later goes before one set earlier. The path may run
// through the tree's links: the rule is for the file behind them.
func (f *FaultFS) Set(pattern string, rule Rule) {
	real := f.real(pattern)
	f.rules.set(real, matcher(real), rule)
}

// SetFunc puts a rule in force for every path that the function accepts. The name serves to clear it.
func (f *FaultFS) SetFunc(name string, match func(path string) bool, rule Rule) {
	f.rules.set(name, match, rule)
}

// Apply sets the rules of several faults.
func (f *FaultFS) Apply(faults []Fault) {
	for _, fault := range faults {
		f.Set(fault.Path, fault.Rule)
	}
}

// Clear ends the rule of a pattern, and its hangs.
func (f *FaultFS) Clear(pattern string) {
	if !f.rules.drop(pattern) {
		f.rules.drop(f.real(pattern))
	}
}

// Release ends the rule of a pattern as Clear does: whatever hangs by it goes on.
func (f *FaultFS) Release(pattern string) { f.Clear(pattern) }

// ClearAll ends all rules, and their hangs.
func (f *FaultFS) ClearAll() { f.rules.dropAll(false) }

// Hanging returns how many requests hang now.
func (f *FaultFS) Hanging() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := 0
	for _, n := range f.hanging {
		sum += n
	}
	return sum
}

// Counts returns what was asked for since the mount or the last ResetCounts, by real path relative to the root.
func (f *FaultFS) Counts() map[string]Count {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[string]Count, len(f.counts))
	for name, count := range f.counts {
		all[name] = count
	}
	return all
}

// ResetCounts forgets what was asked for so far.
func (f *FaultFS) ResetCounts() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.counts)
}

// Opens returns how often the files that a pattern fits were opened or their directories listed.
func (f *FaultFS) Opens(pattern string) int { c := f.sum(pattern); return c.Opens + c.Lists }

// Reads returns how often the files that a pattern fits were read.
func (f *FaultFS) Reads(pattern string) int { return f.sum(pattern).Reads }

func (f *FaultFS) sum(pattern string) Count {
	match := matcher(f.real(pattern))
	var sum Count
	for name, c := range f.Counts() {
		if match(name) {
			sum.Lookups, sum.Opens, sum.Reads, sum.Lists = sum.Lookups+c.Lookups, sum.Opens+c.Opens, sum.Reads+c.Reads, sum.Lists+c.Lists
		}
	}
	return sum
}

// Close ends all hangs and takes the mount away. It does not wait for clients: what those that still hold descriptors read from then on
// fails with ENOTCONN.
func (f *FaultFS) Close() (err error) {
	f.closing.Do(func() {
		f.rules.dropAll(true)
		err = f.unmount()
		f.unwatch()
	})
	return err
}

// unmount waits a moment for clients to end by themselves, then forces the connection to an end.
func (f *FaultFS) unmount() error {
	for range 20 {
		if err := unix.Unmount(f.mountpoint, 0); !errors.Is(err, unix.EBUSY) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
	return unix.Unmount(f.mountpoint, unix.MNT_FORCE|unix.MNT_DETACH)
}

// real follows the links in the part of a pattern that has no wildcard.
func (f *FaultFS) real(pattern string) string {
	fixed, rest := strings.Trim(pattern, "/"), ""
	if i := strings.IndexAny(fixed, `*?[\`); i >= 0 {
		cut := strings.LastIndex(fixed[:i], "/") + 1
		fixed, rest = fixed[:cut], fixed[cut:]
	}
	for fixed = filepath.Clean(fixed); fixed != "."; fixed = filepath.Dir(fixed) {
		real, err := filepath.EvalSymlinks(filepath.Join(f.dir, fixed))
		if err == nil {
			relative, _ := filepath.Rel(f.dir, real)
			return filepath.Join(relative, rest)
		}
		rest = filepath.Join(filepath.Base(fixed), rest)
	}
	return rest
}

// inode returns the number of a path, the same each time.
func (f *FaultFS) inode(name string) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.inodes[name]; !ok {
		f.inodes[name] = uint64(len(f.inodes) + 2)
	}
	return f.inodes[name]
}

func (f *FaultFS) count(name string, add Count) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.counts[name]
	f.counts[name] = Count{c.Lookups + add.Lookups, c.Opens + add.Opens, c.Reads + add.Reads, c.Lists + add.Lists}
}

// wait returns the rule in force for a path, after the end of those that hang.
func (f *FaultFS) wait(name string, hangs func(Rule) bool) *active {
	for {
		rule := f.rules.find(name)
		if !hangs(rule.Rule) {
			return rule
		}
		f.hang(name, 1)
		<-rule.gone
		f.hang(name, -1)
	}
}

func (f *FaultFS) hang(name string, by int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hanging[name] += by
}

// faultNode is an entry of the served tree. It knows its path only; everything else is asked from the directory each time.
type faultNode struct {
	fs.Inode
	f    *FaultFS
	path string
}

var (
	_ fs.NodeLookuper   = (*faultNode)(nil)
	_ fs.NodeGetattrer  = (*faultNode)(nil)
	_ fs.NodeReadlinker = (*faultNode)(nil)
	_ fs.NodeOpendirer  = (*faultNode)(nil)
	_ fs.NodeReaddirer  = (*faultNode)(nil)
	_ fs.NodeOpener     = (*faultNode)(nil)
	_ fs.FileReader     = (*faultFile)(nil)
	_ fs.FileFlusher    = (*faultFile)(nil)
	_ fs.FileReleaser   = (*faultFile)(nil)
)

func (n *faultNode) backing() string { return filepath.Join(n.f.dir, n.path) }

// Lookup finds an entry of a directory.
func (n *faultNode) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	child := &faultNode{f: n.f, path: filepath.Join(n.path, name)}
	var st syscall.Stat_t
	if err := syscall.Lstat(child.backing(), &st); err != nil {
		return nil, fs.ToErrno(err)
	}
	n.f.count(child.path, Count{Lookups: 1})
	ino := n.f.inode(child.path)
	attributes(&out.Attr, &st, ino)
	return n.NewInode(ctx, child, fs.StableAttr{Mode: st.Mode & syscall.S_IFMT, Ino: ino}), 0
}

// Getattr describes an entry; that of an open file that was removed is still known through its descriptor.
func (n *faultNode) Getattr(_ context.Context, handle fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	var st syscall.Stat_t
	err := syscall.Lstat(n.backing(), &st)
	if file, ok := handle.(*faultFile); ok && err != nil {
		err = syscall.Fstat(int(file.file.Fd()), &st)
	}
	if err != nil {
		return fs.ToErrno(err)
	}
	attributes(&out.Attr, &st, n.f.inode(n.path))
	return 0
}

func attributes(out *fuse.Attr, st *syscall.Stat_t, ino uint64) {
	out.FromStat(st)
	out.Ino = ino
	if st.Mode&syscall.S_IFMT == syscall.S_IFREG {
		out.Size = 4096
	}
}

// Readlink returns the target of a link.
func (n *faultNode) Readlink(context.Context) ([]byte, syscall.Errno) {
	target, err := os.Readlink(n.backing())
	return []byte(target), fs.ToErrno(err)
}

// Opendir begins a listing.
func (n *faultNode) Opendir(context.Context) syscall.Errno {
	n.f.count(n.path, Count{Lists: 1})
	return n.f.wait(n.path, func(r Rule) bool { return r.HangOpen }).OpenErrno
}

// Readdir lists a directory.
func (n *faultNode) Readdir(context.Context) (fs.DirStream, syscall.Errno) {
	entries, err := os.ReadDir(n.backing())
	if err != nil {
		return nil, fs.ToErrno(err)
	}
	var list []fuse.DirEntry
	for _, entry := range entries {
		list = append(list, fuse.DirEntry{Name: entry.Name(), Mode: mode(entry), Ino: n.f.inode(filepath.Join(n.path, entry.Name()))})
	}
	return fs.NewListDirStream(list), 0
}

func mode(entry os.DirEntry) uint32 {
	switch {
	case entry.IsDir():
		return syscall.S_IFDIR
	case entry.Type()&os.ModeSymlink != 0:
		return syscall.S_IFLNK
	}
	return syscall.S_IFREG
}

// Open opens a file for reading.
func (n *faultNode) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		return nil, 0, syscall.EROFS
	}
	n.f.count(n.path, Count{Opens: 1})
	if errno := n.f.wait(n.path, func(r Rule) bool { return r.HangOpen }).OpenErrno; errno != 0 {
		return nil, 0, errno
	}
	file, err := os.Open(n.backing())
	if err != nil {
		return nil, 0, fs.ToErrno(err)
	}
	return &faultFile{n.f, n.path, file}, fuse.FOPEN_DIRECT_IO, 0
}

// faultFile is an open file.
type faultFile struct {
	f    *FaultFS
	path string
	file *os.File
}

// Read answers one pread.
func (h *faultFile) Read(_ context.Context, dest []byte, offset int64) (fuse.ReadResult, syscall.Errno) {
	h.f.count(h.path, Count{Reads: 1})
	rule := h.f.wait(h.path, func(r Rule) bool { return r.Hang })
	if rule.Delay > 0 {
		select {
		case <-time.After(rule.Delay):
		case <-rule.gone:
		}
	}
	if rule.refuses() {
		return nil, rule.Errno
	}
	if rule.Short > 0 && rule.Short < len(dest) {
		dest = dest[:rule.Short]
	}
	if rule.Content != nil {
		text := *rule.Content
		return fuse.ReadResultData(dest[:copy(dest, text[min(offset, int64(len(text))):])]), 0
	}
	return h.readFile(dest, offset)
}

func (h *faultFile) readFile(dest []byte, offset int64) (fuse.ReadResult, syscall.Errno) {
	var st syscall.Stat_t
	if err := syscall.Fstat(int(h.file.Fd()), &st); err != nil {
		return nil, fs.ToErrno(err)
	}
	if st.Nlink == 0 {
		return nil, syscall.ENODEV
	}
	n, err := syscall.Pread(int(h.file.Fd()), dest, offset)
	return fuse.ReadResultData(dest[:max(n, 0)]), fs.ToErrno(err)
}

// Flush tells the kernel not to ask for it again.
func (h *faultFile) Flush(context.Context) syscall.Errno { return syscall.ENOSYS }

// Release closes the file.
func (h *faultFile) Release(context.Context) syscall.Errno { return fs.ToErrno(h.file.Close()) }
