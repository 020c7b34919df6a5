package child

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"time"
)

// reapTime is how long a killed child may take to be gone: longer only if it is in
// the kernel and cannot be interrupted.
const reapTime = time.Second

// Program is what children run. Zero values of its fields stand for their defaults.
type Program struct {
	// Path and Args are the program and its arguments. Default: this binary, also if
	// its file was replaced, without arguments.
	Path string
	Args []string
	// Environ is the environment of a child, such as this process's without what
	// would make it a client of MPS. Default: os.Environ.
	Environ func() []string
}

// Process is a child that was started. It must be closed.
type Process struct {
	process *os.Process
	in      *os.File // its standard input
	outputs [2]*os.File

	gone  chan struct{} // closed when it is reaped
	state *os.ProcessState

	stderr tail
	quiet  chan struct{} // closed when stderr has ended
}

// Start starts a child.
func (p Program) Start() (*Process, error) {
	c := &Process{gone: make(chan struct{}), quiet: make(chan struct{})}
	ends, err := c.pipes()
	defer func() {
		for _, end := range ends {
			end.Close()
		}
	}()
	if err == nil {
		err = c.spawn(p, ends)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("child process: %w", err)
	}
	go func() {
		defer close(c.quiet)
		_, _ = io.Copy(&c.stderr, c.outputs[1])
	}()
	return c, nil
}

// pipes makes the pipes, and returns the ends that are the child's.
func (c *Process) pipes() (ends []*os.File, err error) {
	in, stdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.in, ends = stdin, append(ends, in)
	for i := range c.outputs {
		output, end, err := os.Pipe()
		if err != nil {
			return ends, err
		}
		c.outputs[i], ends = output, append(ends, end)
	}
	return ends, nil
}

// spawn starts the process and reaps it, on a thread that does nothing else: the
// kernel kills the child when the thread that made it ends, not the process.
func (c *Process) spawn(p Program, ends []*os.File) error {
	path, environ := p.Path, p.Environ
	if path == "" {
		path = "/proc/self/exe"
	}
	if environ == nil {
		environ = os.Environ
	}
	attributes := &os.ProcAttr{
		Dir: "/", Env: environ(), Files: ends,
		Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true},
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		process, err := os.StartProcess(path, append([]string{os.Args[0]}, p.Args...), attributes)
		c.process = process
		started <- err
		if err != nil {
			return
		}
		// It fails only if somebody else has reaped the child.
		if c.state, err = process.Wait(); err != nil {
			c.state = &os.ProcessState{}
		}
		close(c.gone)
	}()
	return <-started
}

// ID is its process id.
func (c *Process) ID() int { return c.process.Pid }

// readTime is how long a child may take to read what does not fit into its pipe, which
// is 64 KiB.
const readTime = time.Second

// Write writes to its standard input, without waiting long for the child to read it.
func (c *Process) Write(text []byte) (int, error) {
	if err := c.in.SetWriteDeadline(time.Now().Add(readTime)); err != nil {
		return 0, fmt.Errorf("child process: %w", err)
	}
	n, err := c.in.Write(text)
	if err != nil {
		err = fmt.Errorf("child process: %w", err)
	}
	return n, err
}

// Read reads its standard output.
func (c *Process) Read(text []byte) (int, error) { return c.outputs[0].Read(text) }

// Gone is closed when it is no more, not even as a zombie.
func (c *Process) Gone() <-chan struct{} { return c.gone }

// State is how it ended, once it is gone.
func (c *Process) State() *os.ProcessState { return c.state }

// Terminate asks it to end.
func (c *Process) Terminate() { _ = c.process.Signal(syscall.SIGTERM) }

// Kill kills it. It reports whether it is gone after that: a process that is in the
// kernel and cannot be interrupted is not, and goes whenever it can.
func (c *Process) Kill() (gone bool) {
	_ = c.process.Kill()
	select {
	case <-c.gone:
		return true
	case <-time.After(reapTime):
		return false
	}
}

// LastWords is the line of its standard error that says most about its death, "" if it
// wrote none. It waits a little for that to end: a process of its own, which it should
// not have, could hold it open.
func (c *Process) LastWords() string {
	select {
	case <-c.quiet:
	case <-time.After(reapTime):
	}
	return c.stderr.cause()
}

// Close gives the pipes back, which ends those who listen, and tells the child that
// nobody listens to it any more. One that still lives is reaped when it goes.
func (c *Process) Close() {
	for _, file := range []*os.File{c.in, c.outputs[0], c.outputs[1]} {
		if file != nil {
			file.Close()
		}
	}
}
