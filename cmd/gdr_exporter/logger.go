package main

import (
	"io"
	"log/slog"
	"time"

	zaplogfmt "github.com/jsternberg/zap-logfmt"
	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"
	"go.uber.org/zap/zapcore"

	"gdr_exporter/collector/snapshot"
	"gdr_exporter/collector/sysread"
)

// newLogger returns a logger that writes to w. level and format come from flags
// that admit only known values.
func newLogger(level, format string, w io.Writer) *zap.Logger {
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = func(t time.Time, enc zapcore.PrimitiveArrayEncoder) {
		enc.AppendString(t.UTC().Format("2006-01-02T15:04:05.000Z"))
	}
	encoder := zaplogfmt.NewEncoder(config)
	if format == "json" {
		encoder = zapcore.NewJSONEncoder(config)
	}
	least, err := zapcore.ParseLevel(level)
	if err != nil {
		least = zapcore.InfoLevel
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), least))
}

// toolkitLogger is the logger for exporter-toolkit, which wants slog's. Without
// a level for stack traces zapslog adds one to every error.
func toolkitLogger(logger *zap.Logger) *slog.Logger {
	return slog.New(zapslog.NewHandler(logger.Core(), zapslog.AddStacktraceAt(slog.LevelError+100)))
}

// logReadError logs a read error of a new kind. It is counted in
// gdr_read_errors_total each time, and logged here once.
func logReadError(logger *zap.Logger) func(string, sysread.ReadError) {
	return func(collector string, err sysread.ReadError) {
		logger.Warn("cannot read, further such errors are only counted",
			zap.String("collector", collector), zap.String("device", err.Device), zap.String("port", err.Port),
			zap.String("source", err.Source), zap.String("errno", err.Errno()), zap.Error(err.Err))
	}
}

// news are the log messages for conditions that came or went.
var news = map[snapshot.FactKind]struct {
	on, off string
	level   zapcore.Level
}{
	snapshot.FactClass:      {"devices found", "all devices vanished at once", zapcore.InfoLevel},
	snapshot.FactListed:     {"device appeared", "device vanished", zapcore.InfoLevel},
	snapshot.FactStuck:      {"reading the device does not return; it is left alone until it does", "the device answers again", zapcore.WarnLevel},
	snapshot.FactHidden:     {"counters hidden: the sysfs mount belongs to another network namespace", "counters visible again", zapcore.WarnLevel},
	snapshot.FactRestricted: {"every counter file refuses to be read; asked again rarely", "counters can be read again", zapcore.InfoLevel},
	snapshot.FactNoNetlink:  {"RDMA netlink does not answer; everything is read from sysfs", "RDMA netlink answers", zapcore.InfoLevel},
	snapshot.FactNVML:       {"NVML works", "NVML does not work any more", zapcore.InfoLevel},
	snapshot.FactNVMLFailed: {"NVML does not work although there is a driver; it is tried again", "NVML is not in that state any more", zapcore.WarnLevel},
	snapshot.FactLost:       {"the GPU is lost", "the GPU is back", zapcore.WarnLevel},
	snapshot.FactLoaded:     {"module loaded", "module not loaded any more", zapcore.InfoLevel},
	snapshot.FactMismatch:   {"kernel module and libraries of the driver are of different versions", "kernel module and libraries of the driver fit again", zapcore.WarnLevel},
	snapshot.FactNoLog:      {"the kernel's log cannot be read: that needs /dev/kmsg and CAP_SYSLOG; it is tried again every 5 minutes", "the kernel's log can be read again, or fails otherwise", zapcore.InfoLevel},
	snapshot.FactUnlistable: {"devices cannot be listed", "devices can be listed again", zapcore.WarnLevel},
}

// logChange logs a condition that came or went.
func logChange(logger *zap.Logger) func(snapshot.Change) {
	return func(change snapshot.Change) {
		text := news[change.Kind]
		message := text.off
		if change.Now {
			message = text.on
		}
		fields := []zap.Field{zap.String("collector", change.Collector)}
		if change.Device != "" {
			fields = append(fields, zap.String("device", change.Device))
		}
		if change.Port != "" {
			fields = append(fields, zap.String("port", change.Port))
		}
		logger.Log(text.level, message, fields...)
	}
}
