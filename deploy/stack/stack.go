// Package stack runs a real Prometheus with the project's rules and a real Alertmanager
// with its example, over replays of the exporter, and receives what Alertmanager tells.
// Nothing of it is part of the exporter: it shows and tests the rules and dashboards.
//
// Time can run faster than the wall clock, see [Clock]: an alert that waits for an hour
// then comes after a minute, and everything else is as it would be after that hour.
package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Options say what is started.
type Options struct {
	// Nodes are scraped.
	Nodes []Node
	// Deploy is the directory with the rules and configurations; "": deploy/ of the
	// repository in which the working directory is.
	Deploy string
	// Dir is where configuration, data and logs are kept; "": a temporary directory
	// that Close removes.
	Dir string
	// Speed is how much faster than the wall clock time runs; 0 is 1.
	Speed float64
	// Scrape is the interval of scrapes and rules on the wall clock. 0: as in the
	// configurations, by Speed, and not below a second.
	Scrape time.Duration
	// Prometheus, Alertmanager and Receiver are addresses to listen on; "": any free
	// port of 127.0.0.1.
	Prometheus, Alertmanager, Receiver string
	// OnlyRead leaves out of the nodes' pages what no rule reads: half is left, and alerts
	// are the same.
	OnlyRead bool
	// WithoutAlertmanager leaves out Alertmanager and the receiver.
	WithoutAlertmanager bool
	// History has OpenMetrics text of samples from before the start; nil for none. It
	// is given the Clock, by which an hour ago may be a minute ago.
	History func(Clock) string
	// Told is called with each notification as it comes; nil: nobody is.
	Told func(Notification)
}

// Stack is a running Prometheus and what belongs to it.
type Stack struct {
	// Prometheus and Alertmanager are URLs, without a slash at the end.
	Prometheus, Alertmanager string
	// Clock is the time of nodes and rules.
	Clock Clock
	// Receiver has what Alertmanager told.
	Receiver *Receiver

	options Options
	dir     string
	scratch bool // dir goes with Close
	farm    *farm
	servers []*server
}

// Start starts what options name, and returns when all of it answers. An error is of one
// line. The end of ctx ends the processes too.
func Start(ctx context.Context, options Options) (*Stack, error) {
	s := &Stack{options: options, Clock: NewClock(max(options.Speed, 1))}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Stack) start(ctx context.Context) (err error) {
	if s.options.Deploy == "" {
		if s.options.Deploy, err = findDeploy(); err != nil {
			return err
		}
	}
	if err := s.makeDir(); err != nil {
		return err
	}
	if !s.options.WithoutAlertmanager {
		if err := s.startAlertmanager(ctx); err != nil {
			return err
		}
	}
	s.Clock = NewClock(s.Clock.speed) // no time of the replays passes before somebody looks
	var only map[string]bool
	if s.options.OnlyRead {
		if only, err = s.readByRules(); err != nil {
			return err
		}
	}
	if s.farm, err = newFarm(s.options.Nodes, s.Clock, s.interval(), only); err != nil {
		return err
	}
	return s.startPrometheus(ctx)
}

// Close ends all of it and waits for that.
func (s *Stack) Close() error {
	var all []error
	for _, p := range s.servers {
		all = append(all, p.stop())
	}
	if s.Receiver != nil {
		all = append(all, s.Receiver.close())
	}
	if s.farm != nil {
		all = append(all, s.farm.close())
	}
	if s.scratch {
		all = append(all, os.RemoveAll(s.dir))
	}
	return errors.Join(all...)
}

// Wait returns when ctx is done, or with an error when a process ends by itself.
func (s *Stack) Wait(ctx context.Context) error {
	ended := make(chan error, len(s.servers))
	for _, p := range s.servers {
		go func() {
			<-p.done
			ended <- fmt.Errorf("%s has ended: %s", p.name, p.lastWords())
		}()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		if ctx.Err() == nil {
			return err
		}
		return nil // it was ended with ctx
	}
}

// interval is that of scrapes and rules on the wall clock.
func (s *Stack) interval() time.Duration {
	if s.options.Scrape > 0 {
		return s.options.Scrape
	}
	return max(s.Clock.Real(30*time.Second), time.Second)
}

func (s *Stack) makeDir() (err error) {
	if s.dir = s.options.Dir; s.dir == "" {
		s.scratch = true
		s.dir, err = os.MkdirTemp("", "gdr-stack-")
		return err
	}
	s.dir, err = filepath.Abs(s.dir)
	if err == nil {
		err = os.MkdirAll(s.dir, 0o750)
	}
	return err
}

// findDeploy returns deploy/ of the repository in which the working directory is.
func findDeploy() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		deploy := filepath.Join(dir, "deploy")
		if _, err := os.Stat(filepath.Join(deploy, "prometheus", "rules")); err == nil {
			return deploy, nil
		}
		above := filepath.Dir(dir)
		if above == dir {
			return "", errors.New("no deploy/prometheus/rules here or above: start this in the repository")
		}
		dir = above
	}
}

// address returns the address to listen on, a free one of 127.0.0.1 for "". A wanted one
// that is in use is an error.
func address(wanted string) (string, error) {
	if wanted == "" {
		wanted = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", wanted)
	if err != nil {
		return "", err
	}
	got := listener.Addr().String()
	return got, listener.Close()
}

// FreeAddress is an address of 127.0.0.1 that nobody listens on; "" if there is none.
func FreeAddress() string {
	free, err := address("")
	if err != nil {
		return ""
	}
	return free
}
