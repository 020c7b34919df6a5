package isolate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"gdr_exporter/rdma/loopback"
)

// ChildCommand is the argument with which this binary is a child.
const ChildCommand = "probe-child"

// ChildMain makes the run that it reads from in, and tells out of it. It stops the
// run when ctx ends, and when in does: then the parent is gone. That the run failed
// is no error.
func ChildMain(ctx context.Context, in io.Reader, out io.Writer, open func(GPUSettings) func() (loopback.GPU, error)) error {
	return childMain(ctx, in, out, open, loopback.Run)
}

func childMain(ctx context.Context, in io.Reader, out io.Writer, open Opener, run runFunc) error {
	o, err := readOrder(in)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	told := &teller{out: out, broken: cancel}
	o.Spec.OnStage = func(stage loopback.Stage, path loopback.Path) { told.tell(message{Stage: stage, Path: path}) }
	if o.GPU != nil {
		o.Spec.OpenGPU = open(*o.GPU)
	}
	result := run(ctx, o.Spec)
	told.tell(message{Result: &result})
	return told.err
}

// teller writes messages, until one cannot be written: the parent is gone then.
type teller struct {
	mu     sync.Mutex
	out    io.Writer
	broken func()
	err    error
}

func (t *teller) tell(m message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return
	}
	line, err := json.Marshal(m)
	if err == nil {
		_, err = t.out.Write(append(line, '\n'))
	}
	if err != nil {
		t.err = fmt.Errorf("telling the parent: %w", err)
		t.broken()
	}
}
