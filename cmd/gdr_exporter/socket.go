package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// controlSocket is the listening unix socket of the control; nil: there is none.
type controlSocket struct {
	*net.UnixListener
	path   string
	file   fileID
	server *http.Server
}

// fileID says which file a name stands for.
type fileID struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// listenControl makes the socket. What a process left that is gone is replaced;
// a socket that somebody listens on, or any other file, is not.
func listenControl(path string) (*controlSocket, error) {
	if most := len(unix.RawSockaddrUnix{}.Path) - 1; len(path) > most {
		return nil, fmt.Errorf("the path is longer than %d bytes", most)
	}
	dir := filepath.Dir(path)
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	// Two processes that start at once must not take each other's socket for one
	// that was left.
	unlock, err := lockName(path + ".lock")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeLeft(path); err != nil {
		return nil, err
	}
	config := net.ListenConfig{Control: ownerOnly}
	listener, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, listenCause(err)
	}
	return newControlSocket(listener.(*net.UnixListener), path)
}

func newControlSocket(listener *net.UnixListener, path string) (*controlSocket, error) {
	listener.SetUnlinkOnClose(false) // it does not look whose file it removes
	id, err := identify(path)
	if err != nil {
		_ = listener.Close()
		return nil, err
	}
	return &controlSocket{UnixListener: listener, path: path, file: id}, nil
}

// inheritControl takes the socket that the process before left, unless its name
// is gone since.
func inheritControl(path string, left *keptSocket) (*controlSocket, bool) {
	if left == nil {
		return nil, false
	}
	listener, err := listenerOf(left.Descriptor)
	if err != nil {
		return nil, false
	}
	socket, is := listener.(*net.UnixListener)
	if id, err := identify(path); !is || err != nil || id != left.File {
		_ = listener.Close()
		return nil, false
	}
	inherited, err := newControlSocket(socket, path)
	return inherited, err == nil
}

// serveControl serves the control on its socket. That there is none is no reason
// not to serve metrics.
func (d *daemon) serveControl(left *keptSocket) {
	if d.config.socket == "" {
		return
	}
	socket, inherited := inheritControl(d.config.socket, left)
	if !inherited {
		var err error
		if socket, err = listenControl(d.config.socket); err != nil {
			d.logger.Warn("no control socket: gdr_exporter ctl does not work", zap.String("path", d.config.socket), zap.Error(err))
			return
		}
	}
	socket.server = newServer(d.config, d.control.handler(), d.logger)
	d.controlSocket = socket
	go func() {
		if err := socket.server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
			d.logger.Error("the control socket is not served any more", zap.Error(err))
		}
	}()
}

// shutdown closes the listener at once and waits for running requests.
func (s *controlSocket) shutdown(ctx context.Context) error {
	if s == nil {
		return nil
	}
	return s.server.Shutdown(ctx)
}

// keep is the socket for the process after this one.
func (s *controlSocket) keep() *keptSocket {
	if s == nil {
		return nil
	}
	fd := duplicate(s.UnixListener)
	if fd < 0 {
		return nil
	}
	return &keptSocket{fd, s.file}
}

// ownerOnly sets the mode that bind gives the file, so that it has no other at
// any time.
func ownerOnly(_, _ string, socket syscall.RawConn) error {
	var err error
	if controlErr := socket.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); controlErr != nil {
		return controlErr
	}
	return err
}

// makeDir makes a directory that everybody may enter, whatever the umask.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755))
}

// lockName locks a file beside a socket. Others hold it for a moment only, and
// only those who may open it: anybody can lock a directory that he can read. The
// file stays, since removing it would let two processes lock two of one name.
func lockName(path string) (unlock func(), err error) {
	const tries, pause = 50, 20 * time.Millisecond
	// What else there may be by that name is neither followed nor waited for.
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", path, unpath(err))
	}
	for range tries {
		if err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			break
		}
		time.Sleep(pause)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() { file.Close() }, nil
}

// removeLeft removes a socket that nobody listens on.
func removeLeft(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return unpath(err)
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("there is a file that is no socket")
	}
	connection, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		_ = connection.Close()
		return errors.New("another process listens there")
	case !errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("there is a socket that may be in use: %w", listenCause(err))
	}
	return os.Remove(path)
}

func identify(path string) (fileID, error) {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return fileID{}, fmt.Errorf("%s: %w", path, err)
	}
	return fileID{stat.Dev, stat.Ino}, nil
}

// remove takes the socket's name away, unless it is another's by now.
func (s *controlSocket) remove() {
	if s == nil {
		return
	}
	if id, err := identify(s.path); err == nil && id == s.file {
		_ = os.Remove(s.path)
	}
}
