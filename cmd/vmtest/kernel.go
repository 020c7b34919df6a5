package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// The kernels of --kernel.
const (
	kernelStable    = "stable"
	kernelBackports = "backports"
)

// kernel is an unpacked Debian kernel in the cache.
type kernel struct {
	dir     string // holds boot/, lib/modules/, usr/src/
	release string // as uname -r
}

func (k kernel) compressedImage() string { return filepath.Join(k.dir, "boot", "vmlinuz-"+k.release) }
func (k kernel) plainImage() string      { return filepath.Join(k.dir, "boot", "vmlinux-"+k.release) }
func (k kernel) modulesDir() string      { return filepath.Join(k.dir, "lib", "modules", k.release) }
func (k kernel) headersDir() string {
	return filepath.Join(k.dir, "usr", "src", "linux-headers-"+k.release)
}

// image returns what QEMU boots.
func (k kernel) image() string {
	if exists(k.plainImage()) {
		return k.plainImage()
	}
	return k.compressedImage()
}

// releaseFile holds the kernel's release at the top of its directory.
const releaseFile = "release"

// getKernel returns the cached kernel, fetched on first use.
func getKernel(ctx context.Context, cache, name string) (kernel, error) {
	dir := filepath.Join(cache, "kernels", name)
	fill := func(ctx context.Context, part string) error { return fetchKernel(ctx, part, name) }
	if err := cached(ctx, dir, fill); err != nil {
		return kernel{}, fmt.Errorf("kernel package (%s): %w", name, err)
	}
	release, err := os.ReadFile(filepath.Join(dir, releaseFile))
	if err != nil {
		return kernel{}, fmt.Errorf("kernel cache: %w", err)
	}
	return kernel{dir: dir, release: strings.TrimSpace(string(release))}, nil
}

// fetchKernel downloads and unpacks a kernel into dir. Nothing is installed.
func fetchKernel(ctx context.Context, dir, name string) error {
	fmt.Fprintf(os.Stderr, "vmtest: fetching Debian's %s kernel (once, about 90 MB)\n", name)
	scratch := filepath.Join(dir, "download")
	if err := os.Mkdir(scratch, 0o755); err != nil {
		return err
	}
	packages, err := download(ctx, scratch, name)
	if err != nil {
		return err
	}
	if err := unpack(ctx, scratch, dir); err != nil {
		return err
	}
	if err := os.RemoveAll(scratch); err != nil {
		return err
	}
	k := kernel{dir: dir, release: packages.release}
	if err := finishKernel(ctx, k); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, releaseFile), []byte(k.release+"\n"), 0o644)
}

// download fetches the kernel's packages into dir.
func download(ctx context.Context, dir, name string) (kernelPackages, error) {
	if name == kernelBackports {
		return downloadBackports(ctx, dir)
	}
	source := machineApt()
	packages, err := source.fetch(ctx, dir)
	if err == nil || ctx.Err() != nil || !isExit(err) {
		return packages, err
	}
	// The machine has no package lists, or old ones that name packages which
	// the mirror has replaced.
	source = source.privateLists(dir)
	updateErr := source.update(ctx, dir)
	packages, err = source.fetch(ctx, dir)
	if err != nil {
		return packages, errors.Join(err, updateErr)
	}
	return packages, nil
}

// downloadBackports fetches from the backports suite of the machine's Debian
// release, which its own sources usually lack.
func downloadBackports(ctx context.Context, dir string) (kernelPackages, error) {
	codename, err := debianCodename()
	if err != nil {
		return kernelPackages{}, err
	}
	suite := codename + "-backports"
	mirror, err := machineApt().mirror(ctx, codename)
	if err != nil {
		return kernelPackages{}, err
	}
	line := fmt.Sprintf("deb %s%s %s main", keyringOption(), mirror, suite)
	source, err := machineApt().privateLists(dir).onlySource(dir, line)
	if err != nil {
		return kernelPackages{}, err
	}
	if err := source.update(ctx, dir); err != nil {
		return kernelPackages{}, fmt.Errorf("%s cannot be reached (%s): %w", suite, line, err)
	}
	packages, err := source.fetch(ctx, dir)
	if err != nil {
		return packages, fmt.Errorf("%s cannot be used (%s): %w", suite, line, err)
	}
	return packages, nil
}

// fetch downloads the packages of today's kernel into dir.
func (a apt) fetch(ctx context.Context, dir string) (kernelPackages, error) {
	packages, err := a.resolveKernel(ctx)
	if err != nil {
		return kernelPackages{}, err
	}
	_, err = a.run(ctx, dir, "apt-get", append([]string{"download", "-q"}, packages.names...)...)
	return packages, err
}

// unpack extracts every package in from below to.
func unpack(ctx context.Context, from, to string) error {
	files, err := filepath.Glob(filepath.Join(from, "*.deb"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if _, err := runProgram(ctx, "", "dpkg-deb", "-x", file, to); err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(file), err)
		}
	}
	return nil
}

// finishKernel does what the packages' install scripts would have done, and
// prepares the kernel for a fast boot.
func finishKernel(ctx context.Context, k kernel) error {
	if _, err := runProgram(ctx, "", "depmod", "-b", k.dir, k.release); err != nil {
		return err
	}
	if err := extractVmlinux(ctx, k); err != nil {
		fmt.Fprintln(os.Stderr, "vmtest: boots will be slower:", err)
	}
	return relocateHeaders(k.headersDir())
}

// headersInclude is the line that ties the headers to /usr/src.
var headersInclude = regexp.MustCompile(`(?m)^include /usr/src/(\S+)$`)

// relocateHeaders makes the headers' Makefile find the common headers beside
// it, wherever the cache is.
func relocateHeaders(dir string) error {
	file := filepath.Join(dir, "Makefile")
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("kernel headers: %w", err)
	}
	if !headersInclude.Match(text) {
		return fmt.Errorf("kernel headers: %s includes nothing from /usr/src", file)
	}
	text = headersInclude.ReplaceAll(text, []byte("include $$(dir $$(lastword $$(MAKEFILE_LIST)))../$1"))
	return os.WriteFile(file, text, 0o644)
}

var codenameLine = regexp.MustCompile(`(?m)^VERSION_CODENAME="?([a-z]+)"?$`)

// debianCodename returns the machine's Debian release, such as bookworm.
func debianCodename() (string, error) {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", fmt.Errorf("find the Debian release: %w", err)
	}
	match := codenameLine.FindSubmatch(text)
	if match == nil {
		return "", errors.New("find the Debian release: /etc/os-release has no VERSION_CODENAME")
	}
	return string(match[1]), nil
}

// keyringOption names Debian's keys where the machine keeps them out of apt's
// own trusted keys.
func keyringOption() string {
	const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	if exists(keyring) {
		return "[signed-by=" + keyring + "] "
	}
	return ""
}
