package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// debianPackages names the Debian package of each program vmtest needs, for
// the message when it is missing.
var debianPackages = map[string]string{
	"qemu-system-x86_64": "qemu-system-x86",
	"busybox":            "busybox-static",
	"depmod":             "kmod",
	"xz":                 "xz-utils",
	"zstd":               "zstd",
	"ip":                 "iproute2",
	"rdma":               "iproute2",
	"modprobe":           "kmod",
	"modinfo":            "kmod",
	"insmod":             "kmod",
	"gcc":                "gcc",
	"make":               "make",
	"apt-get":            "apt",
	"apt-cache":          "apt",
	"dpkg-deb":           "dpkg",
}

// findProgram looks a program up in PATH and, for users whose PATH lacks them,
// in the administrator's directories.
func findProgram(name string) (string, error) {
	for _, candidate := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s not found: install the Debian package %s", name, debianPackages[name])
}

// runProgram runs a helper program to its end and returns its standard output.
// What it wrote is part of the error if it fails.
func runProgram(ctx context.Context, dir, name string, args ...string) (string, error) {
	path, err := findProgram(name)
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Stdout = &stdout
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// make and apt-get have children of their own; none may outlive the run.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Env = helperEnv(os.Environ())
	if err := cmd.Run(); err != nil {
		return "", programError(name, err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// helperEnv fixes the language, since output is parsed and quoted, and drops
// what a calling make or a cross compiler's user would pass on to the kernel's
// own make files.
func helperEnv(env []string) []string {
	var kept []string
	for _, entry := range env {
		switch name, _, _ := strings.Cut(entry, "="); name {
		case "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "GNUMAKEFLAGS",
			"ARCH", "CROSS_COMPILE", "KBUILD_OUTPUT", "V", "W", "C", "O", "M":
		default:
			kept = append(kept, entry)
		}
	}
	return append(kept, "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
}

// programError says what failed with the last lines of what it wrote.
func programError(name string, err error, stdout, stderr string) error {
	text := strings.TrimSpace(stderr)
	if text == "" {
		text = strings.TrimSpace(stdout)
	}
	if text == "" {
		return fmt.Errorf("%s: %w", name, err)
	}
	return fmt.Errorf("%s: %w:\n%s", name, err, lastLines(text, 30))
}

// lastLines returns the last n lines of text.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\r\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

// isExit reports whether err is a program's own failure, as against a program
// that could not be started.
func isExit(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit)
}
