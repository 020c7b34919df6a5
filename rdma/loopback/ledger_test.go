package loopback

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"gdr_exporter/collector/sysread"
)

// TestLedger: runs add up, attributes are of the last run, and others read the
// file at any time.
func TestLedger(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "probe.json")
	if l, err := ReadLedger(path); err != nil || len(l.Transferred)+len(l.GPUs) != 0 {
		t.Errorf("before any run: %+v, %v", l, err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "sys/module/nvidia"), 0o755); err != nil {
		t.Fatal(err)
	}
	version := filepath.Join(dir, "sys/module/nvidia/version")
	run := func(device string, bytes uint64, driver string, facts sysread.Maybe[GPUFacts]) {
		t.Helper()
		if err := os.WriteFile(version, []byte(driver+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		r := run{spec: Spec{Device: device, LedgerPath: path, SysfsRoot: filepath.Join(dir, "sys")}, result: Result{TransferredBytes: bytes, GPU: facts}}
		if err := r.record(); err != nil {
			t.Fatal(err)
		}
	}
	facts := GPUFacts{Address: "0000:1b:00.0", GPUDirectRDMA: true, DMABuf: true}
	run("mlx5_0", 100, "580.1", sysread.Some(facts))
	run("mlx5_1", 7, "580.1", sysread.Maybe[GPUFacts]{})
	facts.DMABuf = false
	run("mlx5_0", 11, "590.1", sysread.Some(facts))
	want := Ledger{
		Version: 1, Transferred: map[string]uint64{"mlx5_0": 111, "mlx5_1": 7},
		GPUs: map[string]LedgerGPU{"0000:1b:00.0": {"590.1", true, false}},
	}
	if got, err := ReadLedger(path); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
}

// TestLedgerGarbage: what is no ledger is an error to a reader and a fresh start
// to a run.
func TestLedgerGarbage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "probe.json")
	for _, text := range []string{"", "{", "[]", "{}", `{"version":2,"transferred_bytes":{},"gpus":{}}`, `{"version":1,"transferred_bytes":null,"gpus":null}`, `{"version":1,"transferred_bytes":{"a":-1},"gpus":{}}`} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		l, err := ReadLedger(path)
		if err == nil || l.Transferred == nil || len(l.Transferred) != 0 || l.GPUs == nil {
			t.Errorf("%q: %+v, %v", text, l, err)
		}
		r := run{spec: Spec{Device: "mlx5_0", LedgerPath: path}, result: Result{TransferredBytes: 5}}
		if err := r.record(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if l, err := ReadLedger(path); err != nil || l.Transferred["mlx5_0"] != 5 {
			t.Errorf("after %q: %+v, %v", text, l, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadLedger(path); err == nil {
		t.Error("a directory is a ledger")
	}
	r := run{spec: Spec{Device: "mlx5_0", LedgerPath: path}}
	if err := r.record(); err == nil {
		t.Error("a run replaced a directory")
	}
}

// TestLedgerWithoutLock: whoever holds the lock himself still has runs added up.
func TestLedgerWithoutLock(t *testing.T) {
	l := newLedger(t)
	spec := newFakeHost(t).spec(nil)
	spec.LedgerPath = filepath.Join(t.TempDir(), "probe.json")
	r := runOnThread(t.Context(), spec, newFakeVerbs(l).load)
	ledger, err := ReadLedger(spec.LedgerPath)
	if err != nil || r.TransferredBytes == 0 || ledger.Transferred["fake0"] != r.TransferredBytes {
		t.Errorf("%+v, %v, %d bytes transferred", ledger, err, r.TransferredBytes)
	}
}
