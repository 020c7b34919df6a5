package diagnosis

import (
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu"
	"gdr_exporter/gpu/gputest"
	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/loopback/prober"
)

// next is a later Snapshot of a scene.
func next(s *scene, by time.Duration, change func(*scene)) *scene {
	s = &scene{Snapshot: deepCopy(s.Snapshot)}
	s.later(by)
	change(s)
	return s
}

// TestPartialSnapshotChangesNothing: what was asked for a part only, or is older,
// says nothing: the last Diagnosis stands.
func TestPartialSnapshotChangesNothing(t *testing.T) {
	e := NewEngine(EngineOptions{})
	s := &scene{Snapshot: captured(t, "h100-8x8")}
	partial := next(s, time.Second, func(s *scene) {
		s.Asked[snapshot.CollectorPath] = false
		s.RDMA, s.GPU, s.Driver, s.Prober = nil, nil, nil, nil
	})
	if d := e.Diagnose(partial.Snapshot); d != nil {
		t.Errorf("the first Snapshot is partial, and the Diagnosis %+v", d)
	}
	first := e.Diagnose(s.Snapshot)
	if d := e.Diagnose(partial.Snapshot); d != first {
		t.Error("a partial Snapshot gives another Diagnosis")
	}
	if d := e.Diagnose(s.Snapshot); d != first {
		t.Error("the same Snapshot gives another Diagnosis")
	}
	older := next(s, -10*time.Second, func(s *scene) { s.noLink(1, 2) })
	if d := e.Diagnose(older.Snapshot); d != first {
		t.Error("an older Snapshot gives another Diagnosis")
	}
	if d := e.Diagnose(nil); d != first || e.Last() != first {
		t.Error("no Snapshot gives another Diagnosis")
	}
}

// TestClockSetBack: a clock that is set back does not stop the diagnosis.
func TestClockSetBack(t *testing.T) {
	e := NewEngine(EngineOptions{})
	s := &scene{Snapshot: captured(t, "h100-8x8")}
	e.Diagnose(s.Snapshot)
	d := e.Diagnose(next(s, -time.Hour, func(s *scene) { s.noLink(1, 2) }).Snapshot)
	if got := found(d); !slices.Equal(got, []string{idPortDown}) {
		t.Errorf("findings %q after the clock was set back", got)
	}
}

// TestChangesAreToldOnce: each change of a state and of a finding, with numbers and
// reason, and nothing while nothing changes.
func TestChangesAreToldOnce(t *testing.T) {
	var changes []Change
	e := NewEngine(EngineOptions{Changed: func(c Change) { changes = append(changes, c) }})
	s := &scene{Snapshot: captured(t, "h100-8x8")}
	e.Diagnose(s.Snapshot)
	if len(changes) != len(s.Prober.Pairs) {
		t.Errorf("%d changes at first, of %d pairs", len(changes), len(s.Prober.Pairs))
	}
	for i := range changes {
		if c := &changes[i]; c.Path == nil || c.Path.State != StateDirect || c.Before != "" || c.Numbers == "" {
			t.Errorf("change %+v", c)
		}
	}
	changes = nil
	s = next(s, time.Second, func(*scene) {})
	e.Diagnose(s.Snapshot)
	if len(changes) != 0 {
		t.Errorf("nothing happened, and %+v", changes)
	}
	bad := next(s, time.Second, func(s *scene) { s.full(slowly); s.acs(0x1d) })
	e.Diagnose(bad.Snapshot)
	if len(changes) != 3 {
		t.Fatalf("%d changes: %+v", len(changes), changes)
	}
	c := changes[0]
	if c.Path == nil || c.Before != StateDirect || c.Path.State != StateDegraded || c.Path.Cause != idACSRedirect ||
		c.Numbers == "" || len(c.Path.Reasons) == 0 || c.Path.Since != bad.Taken {
		t.Errorf("change %+v, path %+v", c, c.Path)
	}
	for _, c := range changes[1:] {
		if c.Finding == nil || c.Gone || c.Finding.Seen == "" || c.Finding.Hint == "" || c.Finding.Since != bad.Taken {
			t.Errorf("change %+v", c)
		}
	}
	changes = nil
	good := next(s, time.Hour, func(*scene) {})
	e.Diagnose(good.Snapshot)
	if len(changes) != 3 || changes[0].Path.State != StateDirect || !changes[1].Gone || !changes[2].Gone {
		t.Errorf("changes %+v", changes)
	}
}

// TestFindingOutlivesAHang: a finding is not gone because its evidence hangs.
func TestFindingOutlivesAHang(t *testing.T) {
	e := NewEngine(EngineOptions{})
	s := &scene{Snapshot: captured(t, "h100-8x8")}
	stale := next(s, 0, func(s *scene) { s.peermem().Version = sysread.Some("570.86.15") })
	since := e.Diagnose(stale.Snapshot).Findings[0].Since
	hang := func(s *scene) { s.Driver.Units[0].Data, s.Driver.Units[0].StuckFor = nil, time.Minute }
	d := e.Diagnose(next(stale, time.Minute, hang).Snapshot)
	if got := found(d); !slices.Contains(got, idPeermemStale) || d.Findings[0].Since != since {
		t.Errorf("findings %+v while the driver's files hang", d.Findings)
	}
	if got := resultOf(d, idPeermemStale); got.Result != ResultFound || len(got.Missing) == 0 {
		t.Errorf("%+v", got)
	}
	d = e.Diagnose(next(stale, 20*time.Minute, hang).Snapshot)
	if got := resultOf(d, idPeermemStale); got.Result != ResultNotJudged {
		t.Errorf("%+v, long after", got)
	}
}

// TestFindingGoesBesideWhatIsUnknown: a pair that is well again is not called staged
// because nothing is known of another one.
func TestFindingGoesBesideWhatIsUnknown(t *testing.T) {
	e := NewEngine(EngineOptions{})
	other := func(s *scene) { s.Prober.Pairs[1].Full, s.Prober.Pairs[1].Registration = nil, nil }
	s := &scene{Snapshot: captured(t, "h100-8x8")}
	staged := next(s, time.Second, func(s *scene) {
		other(s)
		s.full(func(*loopback.Result) {})
		s.pair().Full.Judgement = loopback.Judgement{Outcome: loopback.Failed, Reasons: []string{"not registered"}}
	})
	if got := found(e.Diagnose(staged.Snapshot)); !slices.Contains(got, idStaged) {
		t.Fatalf("findings %q of a pair that is staged", got)
	}
	unknown := next(s, 2*time.Second, func(s *scene) { other(s); s.nothing(prober.WithdrawnPeermem) })
	if got := found(e.Diagnose(unknown.Snapshot)); !slices.Contains(got, idStaged) {
		t.Errorf("findings %q of a pair that was staged, and of which nothing is known now", got)
	}
	d := e.Diagnose(next(s, 3*time.Second, other).Snapshot)
	if got := found(d); slices.Contains(got, idStaged) {
		t.Errorf("findings %q of a pair that is well", got)
	}
	if got := resultOf(d, idStaged); got.Result != ResultNotJudged {
		t.Errorf("%+v, while nothing is known of another pair", got)
	}
}

// TestDeterministic: the same Snapshots give the same Diagnosis, byte for byte.
func TestDeterministic(t *testing.T) {
	for i := range allRows {
		r := &allRows[i]
		if i%7 != 0 && len(r.finds) < 3 {
			continue
		}
		if a, b := r.diagnose(t), r.diagnose(t); !reflect.DeepEqual(a, b) {
			t.Errorf("%s: two Diagnoses of the same Snapshots differ", r.name)
		}
	}
}

// TestSurvivesHoles: whatever is missing from a Snapshot, it is diagnosed, and what
// is missing is not taken for a fault.
func TestSurvivesHoles(t *testing.T) {
	whole := &scene{Snapshot: captured(t, "acs-on")}
	whole.hostPart()
	whole.job(8<<20, map[string]string{"NCCL_NET_GDR_LEVEL": "LOC"})
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // reproducible
	for range 100 {
		e := NewEngine(EngineOptions{})
		for range 3 {
			s := next(whole, time.Second, func(*scene) {})
			punch(reflect.ValueOf(s.Snapshot).Elem(), random, 0.02)
			s.Asked = map[string]bool{snapshot.CollectorPath: true}
			s.Taken = whole.Taken.Add(time.Minute)
			if d := e.Diagnose(s.Snapshot); d == nil || len(d.Rules) != len(rules) {
				t.Fatal("no Diagnosis")
			}
		}
	}
	for i := range reflect.TypeFor[snapshot.Snapshot]().NumField() {
		s := next(whole, time.Second, func(*scene) {})
		field := reflect.ValueOf(s.Snapshot).Elem().Field(i)
		if kind := field.Kind(); kind != reflect.Pointer && kind != reflect.Slice {
			continue
		}
		field.SetZero()
		d := NewEngine(EngineOptions{}).Diagnose(s.Snapshot)
		for k := range d.Findings {
			switch d.Findings[k].Rule {
			case idDegraded, idACSRedirect, idJobDisables, idJobMemlock, idUnverified:
			default:
				t.Errorf("without %s: %+v", reflect.TypeFor[snapshot.Snapshot]().Field(i).Name, d.Findings[k])
			}
		}
	}
}

// punch makes holes: each exported pointer, slice, map or field becomes zero with
// a small probability.
func punch(v reflect.Value, random *rand.Rand, chance float64) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			punch(v.Elem(), random, chance)
		}
	case reflect.Slice:
		for i := range v.Len() {
			punch(v.Index(i), random, chance)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; !v.Type().Field(i).IsExported() || name == "Info" { // no counter is without
				continue
			}
			if field := v.Field(i); random.Float64() < chance && field.CanSet() {
				field.SetZero()
			} else {
				punch(field, random, chance)
			}
		}
	default:
	}
}

// TestHealthyMachines: GPUs as they are in the field (MIG, vGPU, GB200, H100 NVL),
// looked at for half an hour, without RDMA devices.
func TestHealthyMachines(t *testing.T) {
	for name, machine := range gputest.Scenarios() {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1_800_000_000, 0)
			taker := snapshot.New(snapshot.Options{Deadline: time.Minute, Now: func() time.Time { return now }}).
				GPU(gpu.NewReader(gpu.Options{NVLink: true, Fabric: true, Open: machine().Open})).Taker()
			defer taker.Close()
			e := NewEngine(EngineOptions{})
			var d *Diagnosis
			for range 4 {
				d = e.Diagnose(taker.Take(context.Background(), everything))
				now = now.Add(10 * time.Minute)
			}
			for i := range d.Findings {
				if f := &d.Findings[i]; f.Severity != SeverityInfo {
					t.Errorf("%+v", f)
				}
			}
			if got := resultOf(d, idNVLinks); got.Result != ResultClear {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestLine: what a process or a driver wrote stays on one line.
func TestLine(t *testing.T) {
	for text, want := range map[string]string{"a\nb\tc": "a b c", "\x1b[31mred": "[31mred", "\xff": "", "fine": "fine"} {
		if got := line(text); got != want {
			t.Errorf("line(%q) is %q, want %q", text, got, want)
		}
	}
	if got := line(string(make([]byte, 9999)) + "x"); got != "x" {
		t.Errorf("%q", got)
	}
	if got := line(string(slices.Repeat([]byte("é"), 500))); len(got) > maxSeen+4 {
		t.Errorf("%d bytes", len(got))
	}
}

// BenchmarkDiagnose8x8 diagnoses a node with 8 GPUs and 8 NICs whose Snapshot is new
// each time.
func BenchmarkDiagnose8x8(b *testing.B) {
	s := captured(b, "acs-on")
	e := NewEngine(EngineOptions{})
	snapshots := make([]snapshot.Snapshot, 2)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		at := &snapshots[i%2]
		*at = *s
		at.Taken = s.Taken.Add(time.Duration(i) * time.Second)
		if d := e.Diagnose(at); len(d.Findings) == 0 {
			b.Fatal("no findings")
		}
	}
}
