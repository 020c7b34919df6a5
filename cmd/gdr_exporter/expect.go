package main

import (
	"github.com/alecthomas/kingpin/v2"
	"go.uber.org/zap"

	"gdr_exporter/collector/host"
	"gdr_exporter/collector/profile"
	"gdr_exporter/collector/snapshot"
)

// Values of --profile that are no files.
const (
	profileAuto = "auto"
	profileNone = "none"
)

// profileConfig is what the command line says of what the node should have.
type profileConfig struct {
	of   string
	site *profile.Site // what the file says, nil for none
}

// profileFlags adds the flag of what the node should have.
func profileFlags(app *kingpin.Application, c *config) {
	app.Flag("profile", "What the node should have: auto (the profile of a usual platform, if it is one, and the best that was seen here, which is kept in --state.dir), "+
		"none, or a YAML file (see the README; ./auto for a file of that name).").
		Default(profileAuto).PlaceHolder("auto|none|FILE").StringVar(&c.profile.of)
}

// load reads the file that --profile names. A mistake costs one line.
func (p *profileConfig) load() error {
	switch {
	case p.of == profileAuto, p.of == profileNone, p.site != nil:
		return nil
	case p.of == "":
		return usagef("--profile is empty: must be auto, none or a file")
	}
	site, err := profile.Load(p.of)
	if err != nil {
		return usagef("--profile=%s: %w", p.of, err)
	}
	p.site = site
	return nil
}

// addHost adds the reader of how the host is wired.
func (c *config) addHost(builder *snapshot.Builder, o *origin) {
	if !c.reads(snapshot.CollectorPath) || o.host == nil {
		return
	}
	builder.Host(host.NewReader(host.Options{
		Sysfs: c.sysfs, Procfs: c.procfs, Files: o.files, Kernel: o.host, Include: c.includes, SlowInterval: c.slowInterval,
	}))
}

// expects has Snapshots say what the node should have.
func (d *daemon) expects(builder *snapshot.Builder) {
	if d.config.profile.of != profileNone {
		builder.Expect(func(f *profile.Facts) profile.Expectation { return d.book.Expect(f) })
	}
}

// openBook makes what says what the node should have, and learns it in stateDir,
// or nowhere if that is "". Of a replay nothing is learned.
func (d *daemon) openBook(stateDir string) {
	c, logger := d.config, d.logger.With(zap.String("component", "profile"))
	d.book = profile.New(profile.Options{
		Site: c.profile.site, Platforms: profile.Embedded(), Selection: c.selection(),
		Learn: c.replay == nil && c.profile.of != profileNone, StateDir: stateDir,
		Tell: func(text string, err error) {
			if err != nil {
				logger.Warn(text, zap.Error(err))
				return
			}
			logger.Info(text)
		},
	})
}

// selection is what the command line leaves out of the node.
func (c *config) selection() profile.Selection {
	return profile.Selection{
		Device:      c.includes,
		SomeDevices: c.rdmaInclude != nil || c.rdmaExclude != nil || len(c.roles) > 0,
		SomeGPUs:    c.gpuInclude != nil || c.gpuExclude != nil,
	}
}

// forgetLearned drops what was learned, in the file of a daemon that does not run.
func (x *stateConfig) forgetLearned(dir string) (int, error) {
	learned, err := profile.ReadLearned(dir)
	if err != nil {
		return 0, err
	}
	forgotten := learned.Forget(x.gpu, x.device)
	if forgotten == 0 {
		return 0, nil
	}
	return forgotten, learned.Write(dir)
}
