package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// process is a running QEMU.
type process struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	done   chan struct{} // closed when the process has been reaped
	err    error         // its end, valid after done
	killed bool          // by vmtest: its end is then no news
}

// startProcess starts a program that cannot outlive vmtest: the kernel kills
// it when the thread that started it ends. That thread is therefore kept for
// as long as the program runs.
func startProcess(name string, args []string, files []*os.File) (*process, error) {
	path, err := findProgram(name)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.ExtraFiles = files
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// kill ends the process and waits until it is gone.
func (p *process) kill() {
	if p.waitFor(0) {
		return
	}
	p.killed = true
	_ = p.cmd.Process.Kill() // fails only if it has ended already
	<-p.done
}

// waitFor reports whether the process ends within a time.
func (p *process) waitFor(limit time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(limit):
	}
	select { // both may have been ready
	case <-p.done:
		return true
	default:
		return false
	}
}

// complaint returns what a process that ended by itself has to say.
func (p *process) complaint() string {
	if text := strings.TrimSpace(p.stderr.String()); text != "" {
		return "QEMU says:\n" + lastLines(text, 15)
	}
	if p.err != nil && !p.killed {
		return fmt.Sprintf("QEMU: %v", p.err)
	}
	return ""
}
