package main

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// systemdProgram is where a root file system has systemd.
const systemdProgram = "/lib/systemd/systemd"

// agentUnit has systemd start the guest agent.
//
//go:embed vmtest.service
var agentUnit []byte

// checkRoot checks the directory that is to be the VM's root.
func (r *rawFlags) checkRoot(opts *options) error {
	dir, err := existingDir(r.root)
	if err != nil {
		return usagef("--root %s: %v", r.root, err)
	}
	if strings.Contains(dir, ",") {
		return usagef("--root %s: QEMU cannot share a path with a comma", r.root)
	}
	opts.root, opts.systemd = dir, r.systemd
	if !opts.systemd {
		return nil
	}
	info, err := os.Stat(filepath.Join(dir, systemdProgram))
	if err != nil || !info.Mode().IsRegular() {
		return usagef("--systemd: there is no %s in %s", systemdProgram, dir)
	}
	return nil
}

// workingDir is where the command starts: here, unless the VM has another root.
func (o *options) workingDir() (string, error) {
	if o.root != "/" {
		return "/", nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("working directory: %w", err)
	}
	return dir, nil
}

// systemdArgs are kernel arguments for a systemd that has nobody to talk to.
func (o *options) systemdArgs() []string {
	if !o.systemd {
		return nil
	}
	return []string{
		"systemd.unit=multi-user.target", "systemd.show_status=0", "systemd.log_target=kmsg", "systemd.firstboot=off",
		// Of no use here, and slow under emulation.
		"systemd.mask=serial-getty@ttyS0.service", "systemd.mask=getty@tty1.service", "systemd.mask=apt-daily.timer", "systemd.mask=apt-daily-upgrade.timer",
		"systemd.mask=systemd-networkd-wait-online.service", "systemd.mask=dpkg-db-backup.timer", "systemd.mask=fstrim.timer", "systemd.mask=e2scrub_all.timer",
	}
}

// addSystemd adds what init needs to leave the first process to systemd.
func (r *initramfs) addSystemd(archive *cpioWriter) {
	if !r.config.Systemd {
		return
	}
	archive.file("vmtest/vmtest.service", 0o644, agentUnit)
}
