package capture

import (
	"path"

	"gdr_exporter/collector/host"
	"gdr_exporter/collector/sysread"
)

// Questions of PartHost. That about a node ends with its name: "USABLE uverbs0".
const (
	questionUsable    = "USABLE "
	questionAddresses = "ADDRESSES"
	questionDaemons   = "DAEMONS"
)

// hostDaemon is host.Daemon in a recording.
type hostDaemon struct {
	Name string  `json:"name"`
	PID  int     `json:"pid"`
	Soft *uint64 `json:"soft,omitempty"`
	Hard *uint64 `json:"hard,omitempty"`
}

// recordedHost records what is asked of the kernel about the host. What was
// recorded of it only counts addresses, and names no processes but those that
// start jobs.
type recordedHost struct {
	host.Kernel
	answers *answerRecorder
}

func (k *recordedHost) Usable(node string) error {
	_, err := ask(k.answers, PartHost, questionUsable+path.Base(node), func() (bool, error) { return true, k.Kernel.Usable(node) })
	return err
}

func (k *recordedHost) Links(wanted func(name string) bool) (map[string]host.Link, error) {
	return ask(k.answers, PartHost, questionAddresses, func() (map[string]host.Link, error) { return k.Kernel.Links(wanted) })
}

func (k *recordedHost) Daemons() (daemons []host.Daemon, err error) {
	_, err = ask(k.answers, PartHost, questionDaemons, func() ([]hostDaemon, error) {
		daemons, err = k.Kernel.Daemons()
		return each(daemons, func(d host.Daemon) hostDaemon { return hostDaemon{d.Name, d.PID, pointer(d.Soft), pointer(d.Hard)} }), err
	})
	return daemons, err
}

// playedHost answers from a recording.
type playedHost struct{ answers *answerPlayer }

func (k playedHost) Usable(node string) error {
	usable, err := answer[bool](k.answers, PartHost, questionUsable+path.Base(node))
	if err == nil && !usable {
		return sysread.Invalid(questionUsable + path.Base(node))
	}
	return err
}

func (k playedHost) Links(func(name string) bool) (map[string]host.Link, error) {
	return answer[map[string]host.Link](k.answers, PartHost, questionAddresses)
}

func (k playedHost) Daemons() ([]host.Daemon, error) {
	kept, err := answer[[]hostDaemon](k.answers, PartHost, questionDaemons)
	return each(kept, func(d hostDaemon) host.Daemon {
		return host.Daemon{Name: d.Name, PID: d.PID, Soft: maybe(d.Soft), Hard: maybe(d.Hard)}
	}), err
}

// Host is for host.Options.Kernel.
func (r *Recorder) Host(kernel host.Kernel) host.Kernel { return &recordedHost{kernel, r.answers} }

// Host is for host.Options.Kernel. Unless the recording Has PartHost, nobody read
// how the host was wired.
func (p *Player) Host() host.Kernel { return playedHost{p.answers} }
