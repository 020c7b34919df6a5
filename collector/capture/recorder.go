package capture

import (
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/devlink"
	"gdr_exporter/rdma/netdev"
)

// Recorder records what readers read. Its methods return what is given to the
// readers in the place of what they get; those may be used concurrently.
type Recorder struct {
	header  Header
	now     func() time.Time
	files   *fileRecorder
	answers *answerRecorder
	nvml    nvmlRecorder
	monitor *rdma.Monitor
}

// NewRecorder returns a recorder of files, nil being those of the running system.
// header is kept with the times filled in; now is the clock, nil for time.Now.
func NewRecorder(files sysread.Files, header Header, now func() time.Time) *Recorder {
	if files == nil {
		files = sysread.System
	}
	if now == nil {
		now = time.Now
	}
	r := &Recorder{header: header, now: now, files: newFileRecorder(files), answers: newAnswerRecorder()}
	r.header.Began = now().UTC().Round(0)
	r.nvml.answers = r.answers
	return r
}

// Files are for the Options of readers, and for sysread.IO.
func (r *Recorder) Files() sysread.Files { return r.files }

// Netlink is for rdma.Options.Netlink.
func (r *Recorder) Netlink(dial rdma.Dialer) rdma.Dialer { return recordDialer(r.answers, dial) }

// Kernel is for rdma.Options.Kernel; a nil kernel is the running one.
func (r *Recorder) Kernel(kernel func() netdev.Kernel) func() netdev.Kernel {
	if kernel == nil {
		kernel = netdev.NewKernel
	}
	return func() netdev.Kernel { return &recordedKernel{kernel(), r.answers} }
}

// Devlink is for devlink.NewReaderOf; a nil dial is devlink.Dial.
func (r *Recorder) Devlink(dial func() (devlink.Conn, error)) func() (devlink.Conn, error) {
	if dial == nil {
		dial = devlink.Dial
	}
	return recordDevlink(r.answers, dial)
}

// NVML is for gpu.Options.Open; a nil open is gpu.OpenLibrary.
func (r *Recorder) NVML(open func(path string) (gpu.Library, error)) func(path string) (gpu.Library, error) {
	if open == nil {
		open = gpu.OpenLibrary
	}
	return r.nvml.open(open)
}

// Monitor has the events counted that monitor hears until Recording is called.
func (r *Recorder) Monitor(monitor *rdma.Monitor) *rdma.Monitor {
	r.monitor = monitor
	return monitor
}

// events is what rdma.Monitor.Events says.
type events struct {
	Counts map[string]uint64 `json:"counts"`
	Up     bool              `json:"up"`
}

const questionEvents = "MONITOR"

// Recording returns what has been recorded so far. What has not been answered is
// in it as hanging.
func (r *Recorder) Recording() *Recording {
	if counts, up := r.monitor.Events(); counts != nil {
		note(r.answers, answerKey{PartEvents, questionEvents}, events{counts, up}, nil)
	}
	recording := &Recording{Header: r.header, Files: r.files.recorded(), Answers: append(r.answers.recorded(), r.nvml.recorded()...)}
	recording.Header.Ended = r.now().UTC().Round(0) // without a monotonic clock
	recording.sort()
	return recording
}
