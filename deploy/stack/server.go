package stack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// How long a server may take to answer, and to end, on a slow machine.
const (
	startMost = 2 * time.Minute
	stopMost  = 30 * time.Second
)

// server is a process that was started, which logs to a file.
type server struct {
	name string
	cmd  *exec.Cmd
	log  string // its file
	done chan struct{}
	err  error // of its end, valid when done is closed
}

// MissingError says that a program is not installed.
type MissingError struct{ Program, Package string }

// Error implements error.
func (e *MissingError) Error() string {
	return fmt.Sprintf("%s is not installed: .ci/install %s, as root, does it on Debian", e.Program, e.Package)
}

// program finds a program that comes with a package of Debian.
func program(name, of string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", &MissingError{name, of}
	}
	return path, nil
}

// launch starts a server, and returns when url answers.
func launch(ctx context.Context, dir, url, path string, args ...string) (*server, error) {
	p := &server{name: filepath.Base(path), done: make(chan struct{})}
	p.log = filepath.Join(dir, p.name+".log")
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	p.cmd = exec.CommandContext(ctx, path, args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, log, log
	p.cmd.Cancel, p.cmd.WaitDelay = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }, stopMost
	// A group of its own: Ctrl-C is for this program, which ends the others in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	if err := p.answers(ctx, url); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// answers waits until a server is ready.
func (p *server) answers(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, startMost)
	defer cancel()
	for {
		if ready(ctx, url) {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s has ended: %s", p.name, p.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %s", p.name, p.lastWords())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ready reports whether url answers that all is well.
func ready(ctx context.Context, url string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

// stop ends a server, in order if it can be.
func (p *server) stop() error {
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(stopMost):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end within %s and was killed", p.name, stopMost)
	}
}

// lastWords is the line of its log that is most likely to say why it ended.
func (p *server) lastWords() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return "without a log"
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, mark := range []string{"err=", "rror"} { // of its log, and of its command line
		if i := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, mark) }); i >= 0 {
			return lines[i]
		}
	}
	return lines[len(lines)-1]
}
