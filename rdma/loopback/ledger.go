package loopback

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// LedgerPath is the file in which runs leave what others want to know of them.
// It lies beside the lock, in a directory that does not outlive a boot.
const LedgerPath = "/run/gdr_exporter/probe.json"

// ledgerVersion is the version of the file's form.
const ledgerVersion = 1

// Ledger is what all runs since boot add up to, whichever process made them. A
// run writes it before it gives the lock back.
type Ledger struct {
	Version int `json:"version"`
	// Transferred are the bytes that runs moved over each RDMA device, so that
	// graphs of its traffic can leave them out.
	Transferred map[string]uint64 `json:"transferred_bytes"`
	// GPUs are what libcuda says of GPUs, by PCI address: asking needs cuInit,
	// which nobody does outside a run.
	GPUs map[string]LedgerGPU `json:"gpus"`
}

// LedgerGPU are the attributes of a GPU under one version of the driver.
type LedgerGPU struct {
	DriverVersion string `json:"driver_version"` // /sys/module/nvidia/version at the time
	GPUDirectRDMA bool   `json:"gpu_direct_rdma"`
	DMABuf        bool   `json:"dma_buf"`
}

// emptyLedger is a ledger without runs.
func emptyLedger() Ledger {
	return Ledger{Version: ledgerVersion, Transferred: map[string]uint64{}, GPUs: map[string]LedgerGPU{}}
}

// ReadLedger reads the file. That there is none is no error: there was no run.
// With an error it returns one without runs.
func ReadLedger(path string) (Ledger, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return emptyLedger(), nil
	}
	if err != nil {
		return emptyLedger(), err
	}
	var read Ledger
	if err := json.Unmarshal(text, &read); err != nil {
		return emptyLedger(), fmt.Errorf("%s: %w", path, err)
	}
	if read.Version != ledgerVersion || read.Transferred == nil || read.GPUs == nil {
		return emptyLedger(), fmt.Errorf("%s is no ledger of version %d", path, ledgerVersion)
	}
	return read, nil
}

// write puts the file in place at once: a reader sees the old one or the new one.
func (l *Ledger) write(path string) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	// World-readable: the daemon need not be root.
	err = errors.Join(err, file.Chmod(0o644), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}

// record adds the run to the ledger. The lock is held. One that cannot be read
// is begun afresh.
func (r *run) record() error {
	ledger, _ := ReadLedger(r.spec.LedgerPath)
	ledger.Transferred[r.spec.Device] += r.result.TransferredBytes
	if facts := r.result.GPU; facts.Known {
		version, _ := os.ReadFile(filepath.Join(r.spec.SysfsRoot, "module/nvidia/version"))
		ledger.GPUs[facts.Value.Address] = LedgerGPU{strings.TrimSpace(string(version)), facts.Value.GPUDirectRDMA, facts.Value.DMABuf}
	}
	return ledger.write(r.spec.LedgerPath)
}
