package capture

import (
	"slices"
	"sync"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/tape"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/devlink"
	"gdr_exporter/rdma/netdev"
)

// Player stands in the kernel's place and answers from a recording. What its
// methods return is given to the readers and may be used concurrently.
type Player struct {
	files   *filePlayer
	answers *answerPlayer
	nvml    nvmlPlayer
	gaps    gaps
	closed  chan struct{}
	close   sync.Once
	shift   time.Duration // from times in the recording to those that are shown
}

// Play returns a player of a recording, which must not be changed any more. It
// stands still: see [Move].
func Play(recording *Recording) *Player {
	p := &Player{closed: make(chan struct{})}
	p.files = newFilePlayer(recording.Files, &p.gaps, p.closed)
	p.answers = newAnswerPlayer(recording.Answers, &p.gaps, p.closed)
	p.nvml = nvmlPlayer{p.answers, tape.Play(tapeOf(recording.Answers))}
	return p
}

// Close lets go of what hangs: it returns as interrupted, a call of NVML as timed
// out.
func (p *Player) Close() {
	p.close.Do(func() { close(p.closed) })
	p.nvml.player.Close()
}

// Unrecorded returns what was asked for in vain. The readers met an error
// instead, called not_recorded.
func (p *Player) Unrecorded() []string {
	all := append(p.gaps.list(), p.nvml.player.Unrecorded()...)
	slices.Sort(all)
	return all
}

// Has reports whether anything of a part was recorded, so that its reader has
// something to read.
func (p *Player) Has(part string) bool { return p.answers.has(part) }

// Files are for the Options of readers, and for sysread.IO.
func (p *Player) Files() sysread.Files { return p.files }

// Netlink is for rdma.Options.Netlink; nil if RDMA netlink was not asked.
func (p *Player) Netlink() rdma.Dialer {
	if !p.Has(PartNetlink) {
		return nil
	}
	return playedNetlink{p.answers}.dial
}

// Kernel is for rdma.Options.Kernel.
func (p *Player) Kernel() func() netdev.Kernel {
	return func() netdev.Kernel { return playedKernel{p.answers} }
}

// Devlink is for devlink.NewReaderOf.
func (p *Player) Devlink() func() (devlink.Conn, error) {
	return playedDevlink{p.answers, p.Shown}.dial
}

// NVML is for gpu.Options.Open.
func (p *Player) NVML() func(path string) (gpu.Library, error) { return p.nvml.open }

// Monitor is for rdma.Options.Monitor: it says what was heard, and hears nothing
// more. nil if nothing was listened to.
func (p *Player) Monitor() *rdma.Monitor {
	if !p.Has(PartEvents) {
		return nil
	}
	heard, err := answer[events](p.answers, PartEvents, questionEvents)
	if err != nil {
		return nil
	}
	return rdma.ReplayMonitor(heard.Counts, heard.Up)
}
