package profile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"gdr_exporter/rdma/loopback/prober"
)

// learnedVersion is the version of the file's form. A file of another one is set
// aside.
const learnedVersion = 1

// learnedFile is its name in the state directory.
const learnedFile = "learned.json"

// mostLearned bounds the file: a port is some 100 bytes.
const mostLearned = 4 << 20

// Learned is the best that was seen of a node. 0 of a number is: nothing yet.
type Learned struct {
	Version int `json:"version"`
	// Product is the machine's, "" where it does not say: what was learned of one
	// means nothing on another.
	Product string `json:"product"`
	// Platform is the embedded profile that matched last, "" for none.
	Platform    string        `json:"platform"`
	GPUs        int           `json:"gpus"`
	NVLinks     int           `json:"nvlinks"`
	Devices     int           `json:"devices"`
	DirectPairs int           `json:"direct_pairs"`
	Ports       []LearnedPort `json:"ports"`
}

// LearnedPort is a port that was ACTIVE.
type LearnedPort struct {
	Device   string `json:"device"`
	Port     int    `json:"port"`
	NodeGUID string `json:"node_guid"` // of the device; "" if it has none
	Rate     uint64 `json:"rate"`      // the best, in bytes per second; 0: not known
}

func (p *LearnedPort) at() prober.Port { return prober.Port{Device: p.Device, Number: p.Port} }

// empty reports whether nothing was learned.
func (l *Learned) empty() bool {
	return l.GPUs == 0 && l.NVLinks == 0 && l.Devices == 0 && l.DirectPairs == 0 && len(l.Ports) == 0
}

func (l *Learned) clone() *Learned {
	c := *l
	c.Ports = slices.Clone(l.Ports)
	return &c
}

// port returns what was learned of a port, nil if nothing was.
func (l *Learned) port(at prober.Port) *LearnedPort {
	for i := range l.Ports {
		if l.Ports[i].at() == at {
			return &l.Ports[i]
		}
	}
	return nil
}

func (l *Learned) sort() {
	slices.SortFunc(l.Ports, func(a, b LearnedPort) int { return cmp.Or(cmp.Compare(a.Device, b.Device), a.Port-b.Port) })
}

// Forget drops what was learned of a GPU or a device, or all of it, and returns of
// how many numbers and ports. A GPU that is taken out for good changes all counts
// of GPUs, a device those of devices; both are learned anew. What is said of a
// pair, GPU and device, is not about what the node has.
func (l *Learned) Forget(gpu, device string) int {
	forgotten := 0
	drop := func(counts ...*int) {
		for _, n := range counts {
			if *n != 0 {
				*n = 0
				forgotten++
			}
		}
	}
	before := len(l.Ports)
	switch {
	case gpu != "" && device != "":
		return 0
	case gpu != "":
		drop(&l.GPUs, &l.NVLinks, &l.DirectPairs)
	case device != "":
		l.Ports = slices.DeleteFunc(l.Ports, func(p LearnedPort) bool { return p.Device == device })
		drop(&l.Devices, &l.DirectPairs)
	default:
		l.Ports, l.Platform = nil, ""
		drop(&l.GPUs, &l.NVLinks, &l.Devices, &l.DirectPairs)
	}
	return forgotten + before - len(l.Ports)
}

// ReadLearned reads what was learned from a state directory. That there is no
// file is no error: nothing was learned.
func ReadLearned(dir string) (*Learned, error) {
	path := filepath.Join(dir, learnedFile)
	file, err := os.Open(filepath.Clean(path))
	if errors.Is(err, fs.ErrNotExist) {
		return &Learned{Version: learnedVersion}, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w", path, errDamaged)
	}
	text, err := io.ReadAll(io.LimitReader(file, mostLearned+1))
	if err != nil {
		return nil, err
	}
	l, err := parseLearned(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// errDamaged is about a file that this version did not write.
var errDamaged = errors.New("not what this version writes")

func parseLearned(text []byte) (*Learned, error) {
	if len(text) > mostLearned {
		return nil, fmt.Errorf("%w: longer than %d bytes", errDamaged, mostLearned)
	}
	l := &Learned{}
	if err := json.Unmarshal(text, l); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if l.Version != learnedVersion {
		return nil, fmt.Errorf("%w: version %d, not %d", errDamaged, l.Version, learnedVersion)
	}
	for _, n := range []int{l.GPUs, l.NVLinks, l.Devices, l.DirectPairs, len(l.Ports)} {
		if n < 0 || n > mostCount {
			return nil, fmt.Errorf("%w: a count of %d", errDamaged, n)
		}
	}
	l.sort()
	for i := range l.Ports {
		p := &l.Ports[i]
		if p.Device == "" || p.Port < 1 || p.Port > 255 || i > 0 && l.Ports[i-1].at() == p.at() {
			return nil, fmt.Errorf("%w: port %d of %.70q", errDamaged, p.Port, p.Device)
		}
	}
	return l, nil
}

// Write puts the file in place at once: a reader sees the old one or the new one,
// also after a power failure.
func (l *Learned) Write(dir string) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(l); err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(dir, learnedFile), text.Bytes(), 0o600, renameio.WithTempDir(dir))
}

// setAside keeps a damaged file for whoever wants to know.
func setAside(dir string) error {
	path := filepath.Join(dir, learnedFile)
	return os.Rename(path, path+".damaged")
}
