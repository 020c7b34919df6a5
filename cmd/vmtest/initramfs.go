package main

import (
	"bufio"
	"context"
	"debug/elf"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

//go:embed init.sh
var initScript []byte

// builtModule is a test module compiled for the VM's kernel.
type builtModule struct {
	file   string
	params []string
}

// initramfs holds what goes into the VM's first file system.
type initramfs struct {
	kernel  kernel
	names   []string // kernel modules to load at boot
	modules []builtModule
	config  guestConfig
}

// build writes the initramfs into memory that QEMU reads through the returned
// file: nothing is left on disk however vmtest ends.
func (r *initramfs) build(ctx context.Context) (*os.File, error) {
	fd, err := unix.MemfdCreate("initramfs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("initramfs: %w", err)
	}
	file := os.NewFile(uintptr(fd), "initramfs")
	if err := r.write(ctx, file); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("initramfs: %w", err)
	}
	return file, nil
}

func (r *initramfs) write(ctx context.Context, file *os.File) error {
	buffer := bufio.NewWriterSize(file, 1<<20)
	archive := newCpioWriter(buffer)
	for _, dir := range []string{"proc", "sys", "lower", "upper", "newroot"} {
		archive.directory(dir)
	}
	archive.character("dev/console", 0o600, 5, 1)
	archive.file("init", 0o755, initScript)
	if err := addPrograms(archive); err != nil {
		return err
	}
	if err := r.addKernelModules(ctx, archive); err != nil {
		return err
	}
	if err := r.addTestModules(archive); err != nil {
		return err
	}
	r.addSystemd(archive)
	if err := r.addConfig(archive); err != nil {
		return err
	}
	if err := archive.close(); err != nil {
		return err
	}
	return buffer.Flush()
}

// addPrograms adds busybox, for init, and vmtest itself as the guest agent.
func addPrograms(archive *cpioWriter) error {
	busybox, err := readBusybox()
	if err != nil {
		return err
	}
	archive.file("bin/busybox", 0o755, busybox)

	// By this name the running program is found even if its file has been
	// replaced since it was started.
	agent, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("guest agent: %w", err)
	}
	archive.file(filepath.Join("vmtest", guestName), 0o755, agent)
	return nil
}

// readBusybox reads the machine's busybox, which must run without libraries.
func readBusybox() ([]byte, error) {
	path, err := findProgram("busybox")
	if err != nil {
		return nil, err
	}
	program, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer func() { _ = program.Close() }()
	for _, segment := range program.Progs {
		if segment.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("%s is not static: install the Debian package %s", path, debianPackages["busybox"])
		}
	}
	return os.ReadFile(path)
}

// addKernelModules adds the kernel's modules and the order to load them in.
func (r *initramfs) addKernelModules(ctx context.Context, archive *cpioWriter) error {
	index, err := readModuleIndex(r.kernel.modulesDir())
	if err != nil {
		return err
	}
	files, err := index.loadOrder(r.names)
	if err != nil {
		return err
	}
	var order strings.Builder
	for _, file := range files {
		data, err := readModule(ctx, filepath.Join(r.kernel.modulesDir(), file))
		if err != nil {
			return err
		}
		name := moduleName(file) + ".ko"
		archive.file("modules/"+name, 0o644, data)
		fmt.Fprintln(&order, name)
	}
	archive.file("modules/order", 0o644, []byte(order.String()))
	return nil
}

// addTestModules adds the built modules for the guest agent to load.
func (r *initramfs) addTestModules(archive *cpioWriter) error {
	for _, module := range r.modules {
		data, err := os.ReadFile(module.file)
		if err != nil {
			return fmt.Errorf("test module: %w", err)
		}
		name := filepath.Base(module.file)
		archive.file("vmtest/"+name, 0o644, data)
		r.config.Modules = append(r.config.Modules, guestModule{File: name, Params: module.params})
	}
	return nil
}

func (r *initramfs) addConfig(archive *cpioWriter) error {
	data, err := json.Marshal(r.config)
	if err != nil {
		return fmt.Errorf("guest configuration: %w", err)
	}
	archive.file("vmtest/config.json", 0o644, data)
	return nil
}
