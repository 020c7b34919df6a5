package loopback

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

// callsOfRun are the calls of a run without failures.
func callsOfRun(t *testing.T) []string {
	l := newLedger(t)
	runOnThread(t.Context(), newFakeHost(t).spec(newHostGPU(l)), newFakeVerbs(l).load)
	return l.calls
}

func (h fakeHost) remove(path string) {
	h.t.Helper()
	if err := os.RemoveAll(path); err != nil {
		h.t.Fatal(err)
	}
}

// TestSkipReason: what keeps a run from beginning has a reason, what breaks it has
// none.
func TestSkipReason(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Spec, *fakeVerbs, fakeHost)
		want   string
	}{
		"nothing":    {func(*Spec, *fakeVerbs, fakeHost) {}, ""},
		"port":       {func(_ *Spec, v *fakeVerbs, _ fakeHost) { v.port.state = 2 }, SkipPort},
		"GPU memory": {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.FreeGPUMemory = 4 << 30 }, SkipMemory},
		"GPU memory, alone": {func(s *Spec, v *fakeVerbs, _ fakeHost) {
			s.FreeGPUMemory, s.RegisterOnly, v.port.state = 4<<30, true, 1
		}, SkipMemory},
		"no such device":   {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.Device = "fake1" }, SkipNode},
		"no verbs device":  {func(_ *Spec, _ *fakeVerbs, h fakeHost) { h.remove(h.sys + "/class/infiniband_verbs/uverbs0") }, SkipNode},
		"no verbs class":   {func(_ *Spec, _ *fakeVerbs, h fakeHost) { h.remove(h.sys + "/class/infiniband_verbs") }, SkipNode},
		"no device file":   {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.DevRoot += "x" }, SkipNode},
		"device file busy": {func(_ *Spec, _ *fakeVerbs, h fakeHost) { h.remove(h.dev + "/uverbs0"); h.write(h.dev+"/uverbs0/x", "") }, ""}, // EISDIR
		"P_Key":            {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.PKey = 0x8005 }, ""},
		"refused GPU":      {func(s *Spec, _ *fakeVerbs, _ fakeHost) { s.OpenGPU = func() (GPU, error) { return nil, loudError{} } }, "mig"},
		"late refusal": {func(_ *Spec, v *fakeVerbs, _ fakeHost) {
			v.failAt, v.err = slices.Index(callsOfRun(v.t), "make GPU memory"), loudError{}
		}, ""},
	} {
		l := newLedger(t)
		v, h := newFakeVerbs(l), newFakeHost(t)
		spec := h.spec(newHostGPU(l))
		test.change(&spec, v, h)
		r := runOnThread(t.Context(), spec, v.load)
		back := carried(t, r)
		if got := r.SkipReason(); got != test.want || back.SkipReason() != got {
			t.Errorf("%s: %q, after JSON %q, want %q: %v", name, got, back.SkipReason(), test.want, r.Err())
		}
		if refused := strings.HasSuffix(name, "refusal") || name == "refused GPU"; r.Sticky() != refused {
			t.Errorf("%s: sticky %v", name, r.Sticky())
		}
	}
	dir := t.TempDir()
	newFakeHost(t).write(dir+"/"+libraryName, "no library")
	if _, _, err := loadLibrary([]string{dir}); SkipReason(err) != SkipLibrary {
		t.Errorf("%v is skipped for %q", err, SkipReason(err))
	}
	path := t.TempDir() + "/lock"
	lock, err := TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Unlock() }()
	spec := newFakeHost(t).spec(nil)
	spec.LockPath = path
	l := newLedger(t)
	if r := runOnThread(t.Context(), spec, newFakeVerbs(l).load); r.SkipReason() != SkipLocked || !errors.Is(r.Err(), ErrLocked) {
		t.Errorf("%v is skipped for %q", r.Err(), r.SkipReason())
	}
	if SkipReason(nil) != "" || SkipReason(errTest) != "" {
		t.Error("no reason is one")
	}
}
