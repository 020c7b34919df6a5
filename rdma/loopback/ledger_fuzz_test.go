package loopback

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzLedger: whatever the file holds, there is a ledger that can be added to,
// and one that was read has the version that is written.
func FuzzLedger(f *testing.F) {
	f.Add([]byte(`{"version":1,"transferred_bytes":{"mlx5_0":18446744073709551615},"gpus":{"0000:1b:00.0":{"driver_version":"580.95.05"}}}`))
	f.Add([]byte(`{"version":1,"transferred_bytes":null,"gpus":null}`))
	f.Add([]byte(`{}`))
	f.Add([]byte("\x00"))
	path := filepath.Join(f.TempDir(), "ledger")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		ledger, err := ReadLedger(path)
		if ledger.Transferred == nil || ledger.GPUs == nil || ledger.Version != ledgerVersion {
			t.Errorf("%q: %+v", text, ledger)
		}
		if err != nil && len(ledger.Transferred)+len(ledger.GPUs) > 0 {
			t.Errorf("%q: %+v and %v", text, ledger, err)
		}
	})
}
