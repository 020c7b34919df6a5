package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gdr_exporter/collector/snapshot"
)

// inheritEnv names the listening sockets that a process leaves to the one that
// takes its place: their descriptors, separated by commas.
const inheritEnv = "GDR_EXPORTER_LISTENERS"

// leastLife is how long a process lives at least before it restarts itself, so
// that a cause which a restart does not cure costs little.
const leastLife = 10 * time.Second

// restarter asks for the process to be replaced by a fresh one, which is the
// only way to a new version of a driver library: once the C library has bound a
// symbol it keeps the old library mapped.
type restarter struct {
	began  time.Time
	wanted chan struct{} // holds one wish
}

func newRestarter() *restarter {
	return &restarter{began: time.Now(), wanted: make(chan struct{}, 1)}
}

// look asks for a restart if the Snapshot shows that one is needed. While any
// read hangs it waits: execve would wait for it, and nobody would serve.
func (r *restarter) look(s *snapshot.Snapshot) {
	nvml := s.NVML()
	if nvml == nil || !nvml.Stale || time.Since(r.began) < leastLife {
		return
	}
	for _, status := range s.Status() {
		for _, device := range status.Devices {
			if device.StuckFor > 0 {
				return
			}
		}
	}
	select {
	case r.wanted <- struct{}{}:
	default:
	}
}

// restart replaces the process. The listening sockets stay open meanwhile, so
// that a scrape waits for a moment rather than being refused.
func (d *daemon) restart(servers *servers) error {
	d.logger.Info("the driver's library was replaced; starting afresh to load the new one")
	kept := servers.keep()
	if err := d.stop(servers); err != nil {
		return err
	}
	d.taker.Close()
	env := append(os.Environ(), inheritEnv+"="+strings.Join(kept, ","))
	return fmt.Errorf("restart: %w", syscall.Exec("/proc/self/exe", os.Args, env))
}

// keep returns descriptors of the listening sockets that outlive this program.
// They belong to no os.File, which would close them as garbage before the exec. A
// socket that cannot be kept is opened anew.
func (s *servers) keep() []string {
	var kept []string
	for _, listener := range s.listeners {
		filer, ok := listener.(interface{ File() (*os.File, error) })
		if !ok {
			continue
		}
		file, err := filer.File()
		if err != nil {
			continue
		}
		// Without FD_CLOEXEC, unlike F_DUPFD_CLOEXEC.
		if fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD, 3); err == nil {
			kept = append(kept, strconv.Itoa(fd))
		}
		_ = file.Close()
	}
	return kept
}

// left returns the listening sockets that the process before left, nil if it
// was started in the usual way.
func left() ([]net.Listener, error) {
	value, found := os.LookupEnv(inheritEnv)
	if !found {
		return nil, nil
	}
	_ = os.Unsetenv(inheritEnv)
	var listeners []net.Listener
	for text := range strings.SplitSeq(value, ",") {
		fd, err := strconv.Atoi(text)
		if err != nil || fd < 3 {
			return nil, usagef("%s=%s: not a list of descriptors", inheritEnv, value)
		}
		file := os.NewFile(uintptr(fd), "listener")
		listener, err := net.FileListener(file)
		_ = file.Close()
		if err != nil {
			return nil, usagef("%s=%s: %w", inheritEnv, value, err)
		}
		listeners = append(listeners, listener)
	}
	return listeners, nil
}

// errRestart ends serving for a restart.
var errRestart = errors.New("restart")

// wait returns when the daemon shall end: nil to stop, errRestart to start
// afresh, else why it cannot go on.
func (d *daemon) wait(ctx context.Context, servers *servers) error {
	select {
	case err := <-servers.ended:
		return err
	case <-ctx.Done():
		return nil
	case <-d.restarter.wanted:
		return errRestart
	}
}
