package main

import (
	"fmt"
	"slices"

	"github.com/alecthomas/kingpin/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"gdr_exporter/collector/diagnosis"
	"gdr_exporter/collector/snapshot"
	"gdr_exporter/rdma/loopback/prober"
)

// libraryList is the value of --libraries.
type libraryList []string

// Set implements kingpin.Value.
func (l *libraryList) Set(text string) error {
	if _, _, err := diagnosis.ParseLibrary(text); err != nil {
		return err
	}
	*l = append(*l, text)
	return nil
}

// String implements kingpin.Value.
func (l *libraryList) String() string { return fmt.Sprint([]string(*l)) }

// IsCumulative implements kingpin's repeatable value.
func (*libraryList) IsCumulative() bool { return true }

func verdictFlags(app *kingpin.Application, c *config) {
	app.Flag("libraries", "A communication library that jobs here use, ucx or nccl:VERSION: that it would not use GPUDirect RDMA on a pair is a finding then. Those that running jobs have loaded count too, where processes are read. May be repeated.").
		PlaceHolder("LIBRARY").SetValue(&c.libraries)
	app.Flag("live.suspect-after", "How long a NIC must look as if its job copied through host memory before that is a finding.").
		Hidden().Default("10m").DurationVar(&c.suspectAfter)
	app.Flag("live.flow", "Bytes per second that a NIC must move, both directions together, to count as in use by a job.").
		Hidden().Default("10e6").Float64Var(&c.liveFlow)
}

// named says which pairs --probe.pairs names, nil if it names none.
func (p *pairList) named() func(gpu, device string) bool {
	if len(p.listed) == 0 {
		return nil
	}
	return func(gpu, device string) bool {
		return slices.ContainsFunc(p.listed, func(pair prober.Pair) bool { return pair.GPU == gpu && pair.Device == device })
	}
}

// newEngine returns what diagnoses Snapshots.
func newEngine(c *config, logger *zap.Logger) *diagnosis.Engine {
	return diagnosis.NewEngine(diagnosis.EngineOptions{
		Libraries: c.libraries, Named: c.schedule.pairs.named(), SuspectAfter: c.suspectAfter, LiveFlow: c.liveFlow, Changed: logVerdict(logger),
	})
}

// diagnose says what a Snapshot means; nil if the collector path is switched off,
// or nothing is known yet.
func (d *daemon) diagnose(s *snapshot.Snapshot) *diagnosis.Diagnosis {
	if !d.config.reads(snapshot.CollectorPath) {
		return nil
	}
	return d.engine.Diagnose(s)
}

// severityLevels are the levels at which findings are logged.
var severityLevels = map[diagnosis.Severity]zapcore.Level{
	diagnosis.SeverityInfo: zapcore.InfoLevel, diagnosis.SeverityWarning: zapcore.WarnLevel, diagnosis.SeverityCritical: zapcore.ErrorLevel,
}

// logVerdict logs each change of a pair's state and each finding that comes or goes.
func logVerdict(logger *zap.Logger) func(diagnosis.Change) {
	return func(change diagnosis.Change) {
		if change.Path != nil {
			logPath(logger, &change)
			return
		}
		f := change.Finding
		fields := append([]zap.Field{zap.String("rule", f.Rule), zap.String("severity", string(f.Severity))}, subjectFields(&f.Subject)...)
		fields = append(fields, zap.String("seen", f.Seen))
		if change.Gone {
			logger.Info("finding gone", fields...)
			return
		}
		logger.Log(severityLevels[f.Severity], "finding", append(fields, zap.String("hint", f.Hint))...)
	}
}

// logPath logs a pair's state: one that got worse and is expected as a warning.
func logPath(logger *zap.Logger, change *diagnosis.Change) {
	p := change.Path
	level := zapcore.InfoLevel
	if p.Expected && (p.State == diagnosis.StateStaged || p.State == diagnosis.StateDegraded) {
		level = zapcore.WarnLevel
	}
	fields := []zap.Field{
		zap.String("gpu_address", p.GPU), zap.String("device", p.Device), zap.Int("port", p.Port), zap.String("distance", p.Distance), zap.Bool("expected", p.Expected),
		zap.String("state", string(p.State)), zap.String("before", string(change.Before)), zap.String("evidence", string(p.Evidence)),
	}
	if len(p.Reasons) > 0 {
		fields = append(fields, zap.Strings("reasons", p.Reasons))
	}
	if p.Cause != "" {
		fields = append(fields, zap.String("cause", p.Cause))
	}
	if change.Numbers != "" {
		fields = append(fields, zap.String("measured", change.Numbers))
	}
	logger.Log(level, "path", fields...)
}

// subjectFields name what a finding is about.
func subjectFields(s *diagnosis.Subject) []zap.Field {
	var fields []zap.Field
	for _, part := range []struct{ key, value string }{
		{"gpu_address", s.GPU}, {"device", s.Device}, {"address", s.Address}, {"subject", s.Other},
	} {
		if part.value != "" {
			fields = append(fields, zap.String(part.key, part.value))
		}
	}
	if s.Port > 0 {
		fields = append(fields, zap.Int("port", s.Port))
	}
	return fields
}
