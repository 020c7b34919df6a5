package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// session follows a running VM: it copies its output and waits for its result.
type session struct {
	machine *process
	links   *links
	console *console
	stdout  *stream
	stderr  *stream

	// Of one of several VMs: see vm. nil: nobody wants to know.
	onReady func()
	onDone  func(ctx context.Context, status int) error

	messages chan guestMessage // closed when the control port ends
	ready    bool              // the command has been started
	copying  sync.WaitGroup
}

func newSession(machine *process, links *links, console *console) *session {
	return &session{
		machine:  machine,
		links:    links,
		console:  console,
		stdout:   newStream(os.Stdout),
		stderr:   newStream(os.Stderr),
		messages: make(chan guestMessage),
	}
}

// follow returns the command's exit status. When it returns, QEMU is gone and
// everything it wrote has been passed on.
func (s *session) follow(ctx context.Context) (int, error) {
	s.start()
	status, err := s.result(ctx)
	if err == nil && s.onDone != nil {
		err = s.onDone(ctx, status)
	}
	if errors.Is(err, errNoAnswer) {
		s.machine.waitFor(5 * time.Second) // its own end says more than ours
	}
	s.machine.kill()
	s.copying.Wait()
	s.links.closeNear()
	if err != nil && (!s.ready || errors.Is(err, errNoAnswer)) {
		err = s.explain(err)
	}
	return status, err
}

// start copies every channel in the background.
func (s *session) start() {
	s.copying.Go(func() { _, _ = io.Copy(s.console, s.links.console.near) })
	s.copying.Go(func() { s.stdout.copy(s.links.stdout.near) })
	s.copying.Go(func() { s.stderr.copy(s.links.stderr.near) })
	s.copying.Go(s.readControl)
}

// readControl decodes the guest agent's messages. What follows the last one of
// interest is read and dropped, so that this ends only with QEMU.
func (s *session) readControl() {
	defer close(s.messages)
	decoder := json.NewDecoder(s.links.control.near)
	for {
		var message guestMessage
		if err := decoder.Decode(&message); err != nil {
			return
		}
		select {
		case s.messages <- message:
		case <-s.machine.done:
			return
		}
	}
}

// result waits for the command's end and for its output.
func (s *session) result(ctx context.Context) (int, error) {
	for {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case message, ok := <-s.messages:
			switch {
			case !ok:
				return 0, errNoAnswer
			case message.Ready:
				s.ready = true
				if s.onReady != nil {
					s.onReady()
				}
			case message.Error != "":
				return 0, fmt.Errorf("set up the VM: %s", message.Error)
			case message.Done:
				return message.Status, s.drain(ctx, message)
			}
		}
	}
}

// drain waits until all that the command wrote has arrived.
func (s *session) drain(ctx context.Context, message guestMessage) error {
	for _, wait := range []<-chan struct{}{s.stdout.reached(message.Stdout), s.stderr.reached(message.Stderr)} {
		select {
		case <-wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.machine.done:
			return nil // what QEMU passed on before it ended is all there is
		}
	}
	return nil
}

// explain adds to err what QEMU and the console say about a VM that died, or
// that did not come up.
func (s *session) explain(err error) error {
	var parts []string
	// A kernel that had begun, unlike a QEMU that does not take its arguments.
	died := !s.ready && errors.Is(err, errNoAnswer) && strings.TrimSpace(s.console.text()) != ""
	if !s.ready {
		err = fmt.Errorf("%w, while the VM was booting", err)
	}
	if verdict := s.console.verdict(); verdict != "" {
		err = fmt.Errorf("%w: %s", err, verdict)
		died = died && !strings.HasPrefix(verdict, initMark)
	}
	if died {
		err = bootDeath{err}
	}
	if complaint := s.machine.complaint(); complaint != "" {
		parts = append(parts, complaint)
	}
	if text := strings.TrimSpace(s.console.text()); text != "" {
		parts = append(parts, "The console's last lines:", lastWords(text))
	}
	if len(parts) == 0 {
		return err
	}
	return fmt.Errorf("%w\n%s", err, strings.Join(parts, "\n"))
}

// stream passes one of the command's outputs on and counts it.
type stream struct {
	out io.Writer

	mu      sync.Mutex
	count   int64
	target  int64
	arrived chan struct{} // closed when count reaches target; nil before reached
}

func newStream(out io.Writer) *stream { return &stream{out: out} }

func (s *stream) copy(from io.Reader) {
	_, _ = io.Copy(s, from)
}

// Write passes data on. An output that has gone away is no reason to stop the
// VM: the bytes count as delivered.
func (s *stream) Write(data []byte) (int, error) {
	_, _ = s.out.Write(data)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count += int64(len(data))
	s.check()
	return len(data), nil
}

// reached returns a channel that closes when target bytes have passed.
func (s *stream) reached(target int64) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.target = target
	s.arrived = make(chan struct{})
	s.check()
	return s.arrived
}

func (s *stream) check() {
	if s.arrived == nil || s.count < s.target {
		return
	}
	select {
	case <-s.arrived:
	default:
		close(s.arrived)
	}
}
