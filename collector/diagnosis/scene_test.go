package diagnosis

import (
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/capture/embedded"
	"gdr_exporter/collector/kmsg"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/snapshot/snapshottest"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/affinity"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// everything asks for all collectors.
func everything(string) bool { return true }

// taken are Snapshots of captures that were taken once, by capture and second.
var taken sync.Map

// capturedAt is the Snapshot of an embedded capture after some time, read by the real
// readers. It is the caller's own.
func capturedAt(t testing.TB, name string, after time.Duration) *snapshot.Snapshot {
	t.Helper()
	key := name + after.String()
	if s, found := taken.Load(key); found {
		return deepCopy(s.(*snapshot.Snapshot))
	}
	recording, err := embedded.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	begun := recording.Header.Began
	now := begun
	clock := func() time.Time { return now }
	p := capture.Move(recording, clock)
	defer p.Close()
	taker := snapshottest.Builder(recording, p, clock).Taker()
	defer taker.Close()
	taker.Take(t.Context(), everything)
	now = begun.Add(after)
	s := taker.Take(t.Context(), everything)
	// A log that can be read and says nothing, which captures of before it have not.
	s.KernelLog = &snapshot.KernelLogPart{Units: []snapshot.UnitPart[kmsg.Reading]{{Name: "kmsg", Data: &kmsg.Reading{Since: begun, Last: map[kmsg.Pattern]kmsg.Event{}}}}}
	taken.Store(key, s)
	return deepCopy(s)
}

// captured is capturedAt the beginning.
func captured(t testing.TB, name string) *snapshot.Snapshot {
	return capturedAt(t, name, 3*time.Second)
}

// deepCopy copies what is reached through exported fields.
func deepCopy[T any](v T) T {
	return copyValue(reflect.ValueOf(&v).Elem()).Interface().(T)
}

func copyValue(v reflect.Value) reflect.Value {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return v
		}
		to := reflect.New(v.Type().Elem())
		to.Elem().Set(copyValue(v.Elem()))
		return to
	case reflect.Slice:
		if v.IsNil() {
			return v
		}
		to := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			to.Index(i).Set(copyValue(v.Index(i)))
		}
		return to
	case reflect.Map:
		if v.IsNil() {
			return v
		}
		to := reflect.MakeMap(v.Type())
		for _, key := range v.MapKeys() {
			to.SetMapIndex(key, copyValue(v.MapIndex(key)))
		}
		return to
	case reflect.Struct:
		to := reflect.New(v.Type()).Elem()
		to.Set(v)
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				to.Field(i).Set(copyValue(v.Field(i)))
			}
		}
		return to
	default:
		return v
	}
}

// scene is a node as one test has it. The pair that tests are about is the first.
type scene struct {
	*snapshot.Snapshot
}

const (
	testGPU = 0 // index of the first pair
)

func (s *scene) pair() *prober.PairStatus { return &s.Prober.Pairs[testGPU] }

// firstDevice is the name of its device, "" without pairs.
func (s *scene) firstDevice() string {
	if s.Prober == nil || len(s.Prober.Pairs) == 0 {
		return ""
	}
	return s.pair().Device
}

// device is the RDMA device of the first pair.
func (s *scene) device() *rdma.Device {
	for i := range s.RDMA.Units {
		if s.RDMA.Units[i].Name == s.pair().Device {
			return s.RDMA.Units[i].Data
		}
	}
	return nil
}

func (s *scene) port() *rdma.Port        { return &s.device().Ports[0] }
func (s *scene) gpu() *gpu.GPU           { return s.gpuAt(s.pair().GPU) }
func (s *scene) driver() *driver.Reading { return s.DriverState() }
func (s *scene) log() *kmsg.Reading      { return s.KernelLogState() }

func (s *scene) gpuAt(address string) *gpu.GPU {
	gpus := s.NVML().GPUs
	for i := range gpus {
		if gpus[i].Address == address {
			return &gpus[i]
		}
	}
	return nil
}

// tree is the first pair in the PCIe tree.
func (s *scene) tree() *affinity.Pair {
	pairs := s.Affinity.Listing.Pairs
	for i := range pairs {
		if pairs[i].GPU == s.pair().GPU && pairs[i].Device == s.pair().Device {
			return &pairs[i]
		}
	}
	return nil
}

// function is a PCI function.
func (s *scene) function(address string) *affinity.Function {
	for i := range s.Affinity.Units {
		if s.Affinity.Units[i].Name == address {
			return s.Affinity.Units[i].Data
		}
	}
	return nil
}

func (s *scene) peermem() *driver.PeerModule { return &s.driver().Peermem[0] }

// later moves the clock.
func (s *scene) later(by time.Duration) { s.Taken = s.Taken.Add(by) }

// nothing makes the first pair one of which no result stands.
func (s *scene) nothing(withdrawn string) {
	p := s.pair()
	p.Full, p.Registration, p.Withdrawn = nil, nil, withdrawn
}

// full is a full run of the first pair, judged as the prober judges.
func (s *scene) full(change func(r *loopback.Result)) {
	p := s.pair()
	c := deepCopy(p.Full)
	change(&c.Result)
	c.Judgement = loopback.Judge(&c.Result, p.Direct, loopback.DefaultLimits)
	p.Full, p.Registration = c, c
	p.LastSuccess = maps.Clone(p.LastSuccess)
}

// fresh makes the first pair one that never was direct.
func (s *scene) fresh() { s.pair().LastSuccess = nil }

// ratio sets a path's ratio to the host path.
func ratio(r *loopback.Result, at loopback.Path, to float64) {
	host := pathOf(r, loopback.PathHost)
	p := pathOf(r, at)
	p.Ratio.Value, p.BytesPerSecond.Value = to, to*host.BytesPerSecond.Value
	p.Ratio.Known, p.BytesPerSecond.Known = true, true
}

func pathOf(r *loopback.Result, at loopback.Path) *loopback.PathResult {
	i := slices.IndexFunc(r.Paths, func(p loopback.PathResult) bool { return p.Path == at })
	return &r.Paths[i]
}

// slowly makes both directions slow.
func slowly(r *loopback.Result) {
	ratio(r, loopback.PathGPURead, 0.46)
	ratio(r, loopback.PathGPUWrite, 0.7)
	ratio(r, loopback.PathGPU, 0.45)
}

// refused makes both registrations fail.
func refused(peermem, dmabuf error) func(*loopback.Result) {
	return func(r *loopback.Result) {
		r.Registrations = []loopback.Registration{{Method: loopback.MethodPeermem, Err: peermem}, {Method: loopback.MethodDMABuf, Err: dmabuf}}
		r.Method = ""
		for i := range r.Paths {
			if p := &r.Paths[i]; p.Path != loopback.PathHost && p.Path != loopback.PathStaged {
				*p = loopback.PathResult{Path: p.Path, Stage: loopback.StageRegister, Err: loopback.ErrNotRegistered}
			}
		}
	}
}

// found are the rules with a finding, sorted.
func found(d *Diagnosis) []string {
	ids := make([]string, 0, len(d.Findings))
	for i := range d.Findings {
		ids = append(ids, d.Findings[i].Rule)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func resultOf(d *Diagnosis, rule string) RuleResult {
	i := slices.IndexFunc(d.Rules, func(r RuleResult) bool { return r.Rule == rule })
	return d.Rules[i]
}
