package driver

import (
	"bufio"
	"bytes"
	"regexp"
	"strconv"
	"strings"

	"gdr_exporter/collector/sysread"
)

// maxProcFile bounds the driver's procfs files, which are of some 2 KiB.
const maxProcFile = 1 << 16

// procVersion is what /proc/driver/nvidia/version says.
type procVersion struct {
	version sysread.Maybe[string]
	flavor  Flavor
}

// procFile reads a file of the driver and what parse makes of it.
func procFile[T any](p *pass, file string, parse func(text []byte) (T, error)) sysread.Maybe[T] {
	var value T
	source := "driver/nvidia/" + file
	path := p.options.Procfs + "/" + source
	o := p.try(deviceName, source, path, func() error {
		text, err := p.io.ReadLines(path, maxProcFile, nil)
		if err == nil {
			value, err = parse(text)
		}
		return err
	})
	return sysread.Maybe[T]{Value: value, Known: o == found}
}

func (p *pass) procVersion() sysread.Maybe[procVersion] {
	return procFile(p, "version", parseProcVersion)
}

// driverVersion matches the version of an NVIDIA driver, such as 580.95.05 or 390.48.
var driverVersion = regexp.MustCompile(`^[0-9]{3,4}(\.[0-9]{1,4}){1,2}$`)

// parseProcVersion reads lines like
//
//	NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@...)  ...
//	NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023
func parseProcVersion(text []byte) (procVersion, error) {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	before, after, isModule := strings.Cut(string(line), "Kernel Module")
	if !isModule || !strings.HasPrefix(before, "NVRM version:") {
		return procVersion{}, sysread.Invalid(string(line))
	}
	v := procVersion{flavor: FlavorProprietary}
	if strings.HasSuffix(before, " Open ") {
		v.flavor = FlavorOpen
	}
	for _, word := range strings.Fields(after) {
		if driverVersion.MatchString(word) {
			v.version = sysread.Some(word)
			break
		}
	}
	return v, nil
}

// overrideOption is the driver's option that switches its check of the PCIe
// topology off: Azure/azhpc-images#589.
const overrideOption = "GrdmaPciTopoCheckOverride"

// topologyOverride reads the driver's options from procfs, or those that sysfs
// shows if procfs does not: usually none, since the driver hides them.
func (p *pass) topologyOverride() sysread.Maybe[uint64] {
	if value := procFile(p, "params", parseOverride); value.Known {
		return value
	}
	const module, option = "nvidia", "parameters/NVreg_" + overrideOption
	text, o := p.text(module, option, p.moduleFile(module, option))
	if o == found {
		value, err := strconv.ParseUint(text, 0, 32)
		if err == nil {
			return sysread.Some(value)
		}
		p.fail(module, option, sysread.Invalid(text))
	}
	text, o = p.text("nvidia", "parameters/NVreg_RegistryDwords", p.moduleFile("nvidia", "parameters/NVreg_RegistryDwords"))
	if o == found {
		return sysread.Some(parseDwords(text))
	}
	return sysread.Maybe[uint64]{}
}

// parseOverride finds the option in /proc/driver/nvidia/params, whose lines are
// "Name: number" and "Name: "text"". Newer drivers have a line for the option
// itself; it may also be one of the RegistryDwords, of all GPUs or of one.
func parseOverride(text []byte) (uint64, error) {
	var value uint64
	lines := 0
	for scanner := bufio.NewScanner(bytes.NewReader(text)); scanner.Scan(); {
		name, setting, isOption := strings.Cut(scanner.Text(), ": ")
		if !isOption {
			continue
		}
		lines++
		switch name {
		case overrideOption:
			number, err := strconv.ParseUint(strings.TrimSpace(setting), 10, 32)
			if err != nil {
				return 0, sysread.Invalid(scanner.Text())
			}
			value = max(value, number)
		case "RegistryDwords", "RegistryDwordsPerDevice":
			value = max(value, parseDwords(setting))
		}
	}
	if lines == 0 {
		return 0, sysread.Invalid(string(text))
	}
	return value, nil
}

// parseDwords finds the option in "key=value;key=value", in quotes or not.
func parseDwords(text string) uint64 {
	var value uint64
	for pair := range strings.SplitSeq(strings.Trim(strings.TrimSpace(text), `"`), ";") {
		key, setting, _ := strings.Cut(pair, "=")
		if strings.TrimSpace(key) != overrideOption {
			continue
		}
		if number, err := strconv.ParseUint(strings.TrimSpace(setting), 0, 32); err == nil {
			value = number
		}
	}
	return value
}

// pciAddress matches the name of a GPU's directory in procfs.
var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// maxGPUs bounds the GPUs taken from procfs.
const maxGPUs = 1024

func (p *pass) procGPUs() sysread.Maybe[[]string] {
	const source = "driver/nvidia/gpus"
	names, o := p.names(deviceName, source, p.options.Procfs+"/"+source)
	if o != found {
		return sysread.Maybe[[]string]{}
	}
	addresses := make([]string, 0, len(names))
	for _, name := range names[:min(len(names), maxGPUs)] {
		address := strings.ToLower(name)
		if !pciAddress.MatchString(address) {
			p.fail(deviceName, source, sysread.Invalid(name))
			continue
		}
		addresses = append(addresses, address)
	}
	return sysread.Some(addresses)
}

// partial reports whether something is mounted over the driver's directory in
// procfs: libnvidia-container puts a tmpfs there with the GPUs that it gives to
// the container.
func (p *pass) partial() bool {
	dir := p.options.Procfs + "/driver/nvidia"
	over := func(line []byte) bool {
		fields := strings.Fields(string(line)) // id, parent, device, root, mount point, ...
		return len(fields) > 4 && (fields[4] == dir || strings.HasPrefix(fields[4], dir+"/"))
	}
	var text []byte
	p.try(deviceName, "mountinfo", p.options.Mounts, func() (err error) {
		text, err = p.io.ReadLines(p.options.Mounts, 1<<20, over)
		return err
	})
	return len(text) > 0
}
