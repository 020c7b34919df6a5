package isolate

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/child"
)

// Bounds of what parent and child take from each other: an order is about 1 KiB, a
// result a few, and no run has a thousand stages.
const (
	mostOrder  = 64 << 10
	mostLine   = 1 << 20
	mostOutput = 4 << 20
)

// GPUSettings say which GPU to open, and how: what cuda.Options has, without a need
// to know package cuda.
type GPUSettings struct {
	Address string   `json:"address"` // PCI address as sysfs writes it
	Roots   []string `json:"roots"`   // where the driver's libraries are installed
	MinFree uint64   `json:"min_free"`
}

// Opener returns what opens a GPU for one run, on the thread of the run.
type Opener func(GPUSettings) func() (loopback.GPU, error)

// order is what a child is to do.
type order struct {
	Spec loopback.Spec `json:"spec"`
	GPU  *GPUSettings  `json:"gpu,omitempty"` // nil: host memory alone
}

// message is what a child says: that a stage begins, or the result.
type message struct {
	Stage  loopback.Stage   `json:"stage,omitempty"`
	Path   loopback.Path    `json:"path,omitempty"`
	Result *loopback.Result `json:"result,omitempty"`
}

// readOrder reads an order, and nothing after it.
func readOrder(in io.Reader) (order, error) {
	var o order
	line, err := bufio.NewReaderSize(io.LimitReader(in, mostOrder), 4096).ReadBytes('\n')
	if err != nil {
		return o, fmt.Errorf("order of %d bytes: %w", len(line), err)
	}
	if err := json.Unmarshal(line, &o); err != nil {
		return o, fmt.Errorf("order: %w", err)
	}
	return o, nil
}

// readMessages tells what a child says until it ends. Lines that are no messages
// are left out: a library may have written them.
func readMessages(out io.Reader, tell func(message)) error {
	return child.ReadLines(out, mostLine, mostOutput, func(line []byte) (more bool) {
		var m message
		if json.Unmarshal(line, &m) == nil {
			tell(m)
		}
		return true
	})
}
