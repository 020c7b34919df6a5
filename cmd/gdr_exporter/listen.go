package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/mdlayher/vsock"
	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"
)

// servers are one http.Server per listener. exporter-toolkit can serve several
// listeners too, but with one http.Server, which its goroutines then change at
// once where there is a --web.config.file. It also takes an empty address for a
// random port on all interfaces, and its errors do not say which flag is wrong.
type servers struct {
	all       []*http.Server
	listeners []net.Listener
	ended     chan error // an error of each server that ended
}

// serveOn starts to serve on sockets.
func serveOn(listeners []net.Listener, c *config, handler http.Handler, logger *zap.Logger) *servers {
	s := &servers{listeners: listeners, ended: make(chan error, len(listeners))}
	for _, listener := range listeners {
		server := newServer(c, handler, logger)
		s.all = append(s.all, server)
		go func() { s.ended <- web.Serve(listener, server, c.web, toolkitLogger(logger)) }()
	}
	return s
}

func newServer(c *config, handler http.Handler, logger *zap.Logger) *http.Server {
	const toRead, toWrite = 10 * time.Second, 30 * time.Second
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: toRead,
		// A client that does not take its page must not hold a scrape's place.
		WriteTimeout: c.deadline + toWrite,
		IdleTimeout:  5 * time.Minute,
		ErrorLog:     zap.NewStdLog(logger.With(zap.String("component", "http"))),
	}
}

// shutdown closes the listeners at once and waits for running requests.
func (s *servers) shutdown(ctx context.Context) error {
	errs := make([]error, len(s.all))
	var wg sync.WaitGroup
	for i, server := range s.all {
		wg.Go(func() { errs[i] = server.Shutdown(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// listen opens all sockets, or none. left are those that the process before left,
// if there was one.
func listen(flags *web.FlagConfig, left []int) ([]net.Listener, error) {
	if *flags.WebSystemdSocket {
		if left != nil {
			return listenersOf(left)
		}
		return inherited()
	}
	var listeners []net.Listener
	for i, address := range *flags.WebListenAddresses {
		var listener net.Listener
		var err error
		if i < len(left) && left[i] >= 0 {
			listener, err = listenerOf(left[i])
		} else {
			listener, err = listenOn(address)
		}
		if err != nil {
			for _, open := range listeners {
				_ = open.Close()
			}
			return nil, usagef("--web.listen-address=%s: %w", address, listenCause(err))
		}
		listeners = append(listeners, listener)
	}
	return listeners, nil
}

// listenersOf are the sockets that systemd opened for the process before.
func listenersOf(left []int) ([]net.Listener, error) {
	var listeners []net.Listener
	for _, fd := range left {
		listener, err := listenerOf(fd)
		if err != nil {
			return nil, usagef("--web.systemd-socket: %w", err)
		}
		listeners = append(listeners, listener)
	}
	return listeners, nil
}

// inherited returns the sockets that systemd opened.
func inherited() ([]net.Listener, error) {
	var listeners []net.Listener
	all, err := activation.Listeners()
	for _, listener := range all {
		if listener != nil { // nil: not a listening socket
			listeners = append(listeners, listener)
		}
	}
	if err == nil && len(listeners) == 0 {
		err = errors.New("systemd gave no listening socket, is this started by a .socket unit?")
	}
	if err != nil {
		return nil, usagef("--web.systemd-socket: %w", err)
	}
	return listeners, nil
}

func listenOn(address string) (net.Listener, error) {
	if strings.HasPrefix(address, "vsock://") {
		return listenVsock(address)
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if port == "" {
		return nil, errors.New("missing port")
	}
	return net.Listen("tcp", address)
}

func listenVsock(address string) (net.Listener, error) {
	at, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(at.Port(), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("bad port %q", at.Port())
	}
	return vsock.Listen(uint32(port), nil)
}

// listenCause leaves out what the flag's value says already.
func listenCause(err error) error {
	var (
		operation *net.OpError
		address   *net.AddrError
	)
	if errors.As(err, &operation) {
		err = operation.Err
	}
	if errors.As(err, &address) {
		err = errors.New(address.Err)
	}
	return err
}
