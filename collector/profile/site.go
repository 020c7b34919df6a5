package profile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v2"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/loopback/prober"
)

// Want are the numbers of a profile; nil is not expected.
type Want struct {
	GPUs        *Count   `yaml:"gpus"`
	Devices     *Count   `yaml:"devices"`       // RDMA devices of role compute
	NVLinks     *Count   `yaml:"nvlinks"`       // of each GPU
	DirectPairs *Count   `yaml:"direct_pairs"`  // pairs at PIX, PXB or P2C
	PortGbps    *float64 `yaml:"port_gbps"`     // of each port of a compute device, 10^9 bits per second
	Loopback    *float64 `yaml:"loopback_gbps"` // least rate of path host, 10^9 bits per second
}

// Count is a number of things.
type Count int

// UnmarshalYAML takes whole numbers only: by itself YAML's reader cuts off what is
// behind the point.
func (c *Count) UnmarshalYAML(unmarshal func(any) error) error {
	var number float64
	if err := unmarshal(&number); err != nil {
		return err
	}
	if number != math.Trunc(number) || math.Abs(number) > mostNumber {
		return fmt.Errorf("%v is no whole number of a usual size", number)
	}
	*c = Count(number)
	return nil
}

// mostNumber is beyond all that can be meant.
const mostNumber = 1 << 30

// Site is what the file of --profile says.
type Site struct {
	Name string `yaml:"name"` // default: the file's name
	// Learn: what the file leaves open is learned.
	Learn bool `yaml:"learn"`
	Want  `yaml:",inline"`
	// Ports are those that should be ACTIVE.
	Ports []SitePort `yaml:"ports"`
}

// SitePort is a port in a site's file.
type SitePort struct {
	Device string   `yaml:"device"`
	Port   Count    `yaml:"port"` // default: 1
	Gbps   *float64 `yaml:"gbps"` // default: port_gbps
}

// maxFile bounds the file of --profile.
const maxFile = 1 << 20

// The most that numbers may be: beyond is a mistake.
const (
	mostCount = 4096
	mostGbps  = 100_000
)

var errEmpty = errors.New("there is nothing in it")

// Load reads the file of --profile. The error is of one line.
func Load(path string) (*Site, error) {
	file, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, bare(err)
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil {
		return nil, bare(err)
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("no regular file")
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
		return nil, bare(err)
	case len(text) > maxFile:
		return nil, fmt.Errorf("longer than %d bytes", maxFile)
	}
	site, err := Parse(text)
	if err == nil && site.Name == "" {
		site.Name = filepath.Base(path)
	}
	return site, err
}

// bare takes the path off an error: whoever tells of it names the file.
func bare(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// Parse reads a site's profile. What is not known in it is an error, of one line.
func Parse(text []byte) (*Site, error) {
	site := &Site{}
	if err := decode(text, site); err != nil {
		return nil, err
	}
	if err := site.check(); err != nil {
		return nil, err
	}
	return site, nil
}

// decode reads one YAML document, in which every key must be known.
func decode(text []byte, to any) error {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.SetStrict(true)
	switch err := decoder.Decode(to); {
	case errors.Is(err, io.EOF):
		return errEmpty
	case err != nil:
		return oneLine(err)
	}
	if err := decoder.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return errors.New("more than one document")
	}
	return nil
}

// oneLine is the first thing that YAML says, without the names of Go's types.
func oneLine(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if of := (*yaml.TypeError)(nil); errors.As(err, &of) && len(of.Errors) > 0 {
		text = of.Errors[0]
	}
	text, _, _ = strings.Cut(text, " in type ")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
	const most = 200
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return errors.New(text)
}

func (w *Want) check() error {
	for _, n := range []struct {
		name  string
		value *Count
	}{{"gpus", w.GPUs}, {"devices", w.Devices}, {"nvlinks", w.NVLinks}, {"direct_pairs", w.DirectPairs}} {
		if n.value != nil && (*n.value < 1 || *n.value > mostCount) {
			return fmt.Errorf("%s: %d is not from 1 to %d", n.name, *n.value, mostCount)
		}
	}
	return errors.Join(checkGbps("port_gbps", w.PortGbps), checkGbps("loopback_gbps", w.Loopback))
}

func checkGbps(name string, value *float64) error {
	if value != nil && !(*value > 0 && *value <= mostGbps) { // not a number is neither
		return fmt.Errorf("%s: %v is not above 0 and at most %d", name, *value, mostGbps)
	}
	return nil
}

func (s *Site) check() error {
	if err := s.Want.check(); err != nil {
		return one(err)
	}
	seen := map[prober.Port]bool{}
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Port == 0 {
			p.Port = 1
		}
		at := prober.Port{Device: p.Device, Number: int(p.Port)}
		switch err := checkGbps("gbps of "+p.Device, p.Gbps); {
		case p.Device == "":
			return errors.New("ports: one has no device")
		case strings.ContainsFunc(p.Device, func(r rune) bool { return r <= ' ' || r == '/' || r >= 0x7f }) || len(p.Device) > 64:
			return fmt.Errorf("ports: %.70q is no name of a device", p.Device)
		case p.Port < 1 || p.Port > 255:
			return fmt.Errorf("ports: %d is no port of %s", p.Port, p.Device)
		case seen[at]:
			return fmt.Errorf("ports: %s port %d is there twice", p.Device, p.Port)
		case err != nil:
			return err
		}
		seen[at] = true
	}
	return nil
}

// one is the first of joined errors: a message has one line.
func one(err error) error {
	if joined, is := err.(interface{ Unwrap() []error }); is {
		return joined.Unwrap()[0]
	}
	return err
}

// fields are the fields that are wanted.
func (w *Want) fields() map[Field]bool {
	fields := map[Field]bool{}
	for field, wanted := range map[Field]bool{
		FieldGPUs: w.GPUs != nil, FieldDevices: w.Devices != nil, FieldNVLinks: w.NVLinks != nil, FieldDirectPairs: w.DirectPairs != nil,
		FieldPortRate: w.PortGbps != nil, FieldLoopback: w.Loopback != nil,
	} {
		if wanted {
			fields[field] = true
		}
	}
	return fields
}

// bytesPerGbps are the bytes per second of 10^9 bits per second.
const bytesPerGbps = 1e9 / 8

// rate is Gb/s in bytes per second.
func rate(gbps *float64) sysread.Maybe[uint64] {
	if gbps == nil {
		return sysread.Maybe[uint64]{}
	}
	return sysread.Some(uint64(*gbps * bytesPerGbps))
}

func compare(a, b string) int { return cmp.Compare(a, b) }
