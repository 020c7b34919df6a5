package process

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"

	"gdr_exporter/collector/sysread"
)

// Kernel is what is asked of the kernel about processes. Each method may hang: what
// a process is doing with its memory holds up who looks at it. The running system's
// is [Proc]. What an implementation returns is all that ever leaves it: it has been
// filtered.
type Kernel interface {
	// Visible reports whether this process is in the PID namespace that the kernel
	// starts with, so that ids mean the same here as everywhere.
	Visible() (bool, error)
	Stat(pid int) (Stat, error)
	Environment(pid int) (Environment, error)
	// Memlock is the soft limit of locked memory in bytes; MaxUint64: unlimited.
	Memlock(pid int) (uint64, error)
	Libraries(pid int) (Libraries, error)
}

// Stat is what tells a process from another one of its id.
type Stat struct {
	Start uint64 `json:"start"`           // ticks after boot at which it began
	Ended bool   `json:"ended,omitempty"` // it has ended and waits for its parent: it has nothing any more
	Own   bool   `json:"own,omitempty"`   // it is the exporter, or was started by it to measure
}

// Proc is the running system's processes.
type Proc struct {
	Root  string        // where procfs is mounted; "": /proc
	Files sysread.Files // nil: the running system
	Self  int           // the exporter's process id; 0: os.Getpid()
}

func (p *Proc) files() sysread.Files {
	if p.Files != nil {
		return p.Files
	}
	return sysread.System
}

func (p *Proc) path(pid int, file string) string {
	return p.root() + "/" + strconv.Itoa(pid) + "/" + file
}

func (p *Proc) root() string {
	if p.Root == "" {
		return "/proc"
	}
	return p.Root
}

// Gone reports whether err says that there is no such process, or not any more.
func Gone(err error) bool { return sysread.Absent(err) || errors.Is(err, syscall.ESRCH) }

// initialPID is the PID namespace that the kernel starts with
// (include/linux/proc_ns.h, PROC_PID_INIT_INO).
const initialPID = "pid:[4026531836]"

// maxStatus bounds /proc/PID/status.
const maxStatus = 1 << 16

// Visible looks at which PID namespace this process is in, and whether procfs shows
// the same one: NSpid has an id for each namespace from procfs's down to its own.
func (p *Proc) Visible() (bool, error) {
	namespace, err := p.files().Readlink(p.root() + "/self/ns/pid")
	if err != nil {
		return false, err
	}
	line, err := p.files().ReadLines(p.root()+"/self/status", maxStatus, func(line []byte) bool {
		return strings.HasPrefix(string(line), "NSpid:")
	})
	if err != nil {
		return false, err
	}
	ids := strings.Fields(string(line)) // "NSpid:", and none on kernels without namespaces
	return namespace == initialPID && len(ids) <= 2, nil
}

// Stat reads /proc/PID/stat.
func (p *Proc) Stat(pid int) (Stat, error) {
	var buf [sysread.AttrSize]byte
	defer clear(buf[:])
	n, err := p.files().ReadAt(p.path(pid, "stat"), buf[:], 0)
	if err != nil {
		return Stat{}, err
	}
	stat, parent, err := parseStat(string(buf[:n]))
	self := p.Self
	if self == 0 {
		self = os.Getpid()
	}
	stat.Own = pid == self || parent == self
	return stat, err
}

// Places of fields in /proc/PID/stat behind the name, which may have anything in
// it: those of proc(5) less 3, since it counts from 1, and id and name too.
const (
	statState   = 0
	statParent  = 1
	statStarted = 19
)

var errNoStat = errors.New("not of the form of /proc/PID/stat") // without its text: it has the process's name

func parseStat(text string) (stat Stat, parent int, err error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) <= statStarted || !strings.Contains(text, ")") {
		return Stat{}, 0, errNoStat
	}
	parent, err = strconv.Atoi(fields[statParent])
	if err != nil {
		return Stat{}, 0, errNoStat
	}
	if stat.Start, err = strconv.ParseUint(fields[statStarted], 10, 64); err != nil {
		return Stat{}, 0, errNoStat
	}
	stat.Ended = fields[statState] == "Z" || fields[statState] == "X"
	return stat, parent, nil
}
