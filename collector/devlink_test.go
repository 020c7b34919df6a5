package collector

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/devlink"
)

func reporter(name string, state int, errs, recoveries uint64) devlink.Reporter {
	return devlink.Reporter{Bus: "pci", Device: "0000:18:00.0", Name: name,
		State: sysread.Some(state), Errors: sysread.Some(errs), Recoveries: sysread.Some(recoveries)}
}

func TestDevlinkGolden(t *testing.T) {
	fatal := reporter("fw_fatal", devlink.StateError, 1, 0)
	fatal.LastDump = sysread.Some(time.UnixMilli(1_799_999_999_500))
	reading := devlink.Reading{Read: goldenTime, Supported: sysread.Some(true), Reporters: []devlink.Reporter{
		reporter("fw", devlink.StateHealthy, 2, 0), fatal, reporter("tx", devlink.StateHealthy, 5, 5), reporter("rx", devlink.StateHealthy, 0, 0),
		{Bus: "pci", Device: "0000:18:00.0", Name: "silent"},
		{Bus: "auxiliary", Device: "mlx5_core.sf.4", Name: "fw", State: sysread.Some(1)},
	}}
	p := newPage()
	var cache labelCache
	showDevlink(p, &reading)
	showReporters(p, &cache, cache.of("mlx5_0", ""), devlink.ByAddress(reading.Reporters)["0000:18:00.0"])
	comparePage(t, p, filepath.Join("testdata", "devlink", "mlx5.metrics"))
}

func TestDevlinkBounds(t *testing.T) {
	var many []devlink.Reporter
	for i := range 100 {
		many = append(many, reporter(fmt.Sprint("r", i), 1, 1, 0))
	}
	p := newPage()
	var cache labelCache
	showDevlink(p, &devlink.Reading{})
	showReporters(p, &cache, cache.of("mlx5_0", ""), many)
	if p.used != 3*maxReporters {
		t.Errorf("%d series", p.used)
	}
}
