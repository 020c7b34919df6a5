package isolate

import (
	"context"
	"io"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/child"
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
	told := child.NewTeller(out, cancel)
	o.Spec.OnStage = func(stage loopback.Stage, path loopback.Path) { told.Tell(message{Stage: stage, Path: path}) }
	if o.GPU != nil {
		o.Spec.OpenGPU = open(*o.GPU)
	}
	result := run(ctx, o.Spec)
	told.Tell(message{Result: &result})
	return told.Err()
}
