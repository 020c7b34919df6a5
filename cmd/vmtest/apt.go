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

// apt runs apt-get and apt-cache with package lists of vmtest's own, if need
// be, so that neither /etc/apt nor the machine's lists are ever changed.
type apt struct {
	options []string
}

// machineApt uses the machine's sources and the lists it already has.
func machineApt() apt {
	return apt{options: []string{
		"-o", "APT::Sandbox::User=root", // _apt may not write to the cache
		"-o", "Acquire::Retries=2",
		"-o", "Acquire::http::Timeout=60",
		"-o", "Acquire::https::Timeout=60",
	}}
}

// privateLists returns a with package lists in dir instead of the machine's.
func (a apt) privateLists(dir string) apt {
	return apt{options: append(a.options[:len(a.options):len(a.options)],
		"-o", "Dir::State::lists="+filepath.Join(dir, "lists"),
		"-o", "Dir::Cache="+filepath.Join(dir, "cache"),
	)}
}

// onlySource returns a with this source line instead of the machine's sources.
func (a apt) onlySource(dir, line string) (apt, error) {
	file := filepath.Join(dir, "sources.list")
	if err := os.WriteFile(file, []byte(line+"\n"), 0o644); err != nil {
		return apt{}, fmt.Errorf("apt source: %w", err)
	}
	return apt{options: append(a.options[:len(a.options):len(a.options)],
		"-o", "Dir::Etc::sourcelist="+file,
		"-o", "Dir::Etc::sourceparts=-",
	)}, nil
}

func (a apt) run(ctx context.Context, dir, program string, args ...string) (string, error) {
	return runProgram(ctx, dir, program, append(a.options[:len(a.options):len(a.options)], args...)...)
}

// update fetches the package lists. It needs directories that apt makes only
// for the machine's own lists.
func (a apt) update(ctx context.Context, dir string) error {
	for _, sub := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return fmt.Errorf("apt lists: %w", err)
		}
	}
	_, err := a.run(ctx, "", "apt-get", "update", "-q")
	return err
}

// depends returns the names of the packages that a package depends on.
func (a apt) depends(ctx context.Context, name string) ([]string, error) {
	record, err := a.run(ctx, "", "apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		return nil, fmt.Errorf("package %s: %w", name, err)
	}
	return parseDepends(record), nil
}

// dependName is one package name within a Depends field.
var dependName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]*`)

// parseDepends reads the Depends field of a package record. Of alternatives
// (a | b) the first counts.
func parseDepends(record string) []string {
	var names []string
	for line := range strings.Lines(record) {
		field, ok := strings.CutPrefix(line, "Depends:")
		if !ok {
			continue
		}
		for entry := range strings.SplitSeq(field, ",") {
			if name := dependName.FindString(strings.TrimSpace(entry)); name != "" {
				names = append(names, name)
			}
		}
	}
	return names
}

// kernelPackages are the packages of one kernel version. The headers come with
// the image: mirrors keep only the newest version, so a later download would
// not fit the cached kernel any more.
type kernelPackages struct {
	release string // as uname -r
	names   []string
}

// resolveKernel follows the meta packages to the packages of today's kernel.
func (a apt) resolveKernel(ctx context.Context) (kernelPackages, error) {
	depends, err := a.depends(ctx, "linux-image-amd64")
	if err != nil {
		return kernelPackages{}, err
	}
	image, ok := withPrefix(depends, "linux-image-")
	if !ok {
		return kernelPackages{}, errors.New("package linux-image-amd64 names no kernel image")
	}
	release := strings.TrimPrefix(image, "linux-image-")
	headers := "linux-headers-" + release
	depends, err = a.depends(ctx, headers)
	if err != nil {
		return kernelPackages{}, err
	}
	common, okCommon := withPrefix(depends, "linux-headers-")
	kbuild, okKbuild := withPrefix(depends, "linux-kbuild-")
	if !okCommon || !okKbuild {
		return kernelPackages{}, fmt.Errorf("package %s names no common headers and kbuild: depends on %v", headers, depends)
	}
	return kernelPackages{release: release, names: []string{image, headers, common, kbuild}}, nil
}

func withPrefix(names []string, prefix string) (string, bool) {
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			return name, true
		}
	}
	return "", false
}

// mirror returns where this machine gets the given Debian release from, so
// that backports come from the same mirror.
func (a apt) mirror(ctx context.Context, codename string) (string, error) {
	text, err := a.run(ctx, "", "apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		release, uri, _ := strings.Cut(strings.TrimSpace(line), " ")
		if release == codename && uri != "" {
			return uri, nil
		}
	}
	return "", fmt.Errorf("apt's sources name no mirror of Debian %s, and so none of its backports", codename)
}
