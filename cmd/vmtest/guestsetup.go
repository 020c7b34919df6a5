package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// setUpGuest brings the VM from init's state to that of a booted machine.
func setUpGuest(config guestConfig) error {
	steps := []func(guestConfig) error{
		setEnvironment, setLimits, mountKernelFiles, mountModules, mountShares,
		setUpNetwork, setUpRails, writeHosts, linkBarrier, loadModules, addDevices, enterDir,
	}
	for _, step := range steps {
		if err := step(config); err != nil {
			return err
		}
	}
	return nil
}

func setEnvironment(config guestConfig) error {
	os.Clearenv()
	for _, entry := range config.Env {
		name, value, _ := strings.Cut(entry, "=")
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("environment %s: %w", name, err)
		}
	}
	return nil
}

// setLimits allows what RDMA programs need. The command inherits the limits.
func setLimits(config guestConfig) error {
	const files = 1 << 20
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: files, Max: files}); err != nil {
		return fmt.Errorf("limit on open files: %w", err)
	}
	unlimited := syscall.Rlimit{Cur: math.MaxUint64, Max: math.MaxUint64}
	if err := syscall.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited); err != nil {
		return fmt.Errorf("limit on locked memory: %w", err)
	}
	if err := unix.Sethostname([]byte(config.hostName())); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	return nil
}

// mountKernelFiles mounts what init has left out.
func mountKernelFiles(config guestConfig) error {
	if config.Systemd {
		return nil
	}
	mounts := []struct{ kind, target, options string }{
		{"devpts", "/dev/pts", "gid=5,mode=620,ptmxmode=666"},
		{"tmpfs", "/dev/shm", "mode=1777"},
		{"mqueue", "/dev/mqueue", ""},
		{"debugfs", "/sys/kernel/debug", ""},
		{"tracefs", "/sys/kernel/tracing", ""},
		{"cgroup2", "/sys/fs/cgroup", ""},
		{"tmpfs", "/run/lock", "mode=1777"},
	}
	for _, m := range mounts {
		if err := mount(m.kind, m.target, m.kind, 0, m.options); err != nil {
			return err
		}
	}
	return linkDescriptors()
}

// linkDescriptors makes the links in /dev that udev would make.
func linkDescriptors() error {
	links := map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	}
	for name, target := range links {
		if err := os.Symlink(target, name); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("devices: %w", err)
		}
	}
	return nil
}

// mountModules makes modprobe work with the VM's kernel.
func mountModules(config guestConfig) error {
	return mount9p(modulesTag, filepath.Join("/lib/modules", config.Release), unix.MS_RDONLY, "loose")
}

// mountShares mounts the writable directories. Their cache mode lets mmap work
// without keeping what the machine writes from being seen. What other VMs write,
// rename and remove must be seen at once, and is without any cache only.
func mountShares(config guestConfig) error {
	cache := "mmap"
	if config.Nodes > 0 {
		cache = "none"
		if err := mount9p(sharedTag, sharedDir, 0, cache); err != nil {
			return err
		}
	}
	for _, share := range config.Shares {
		if err := mount9p(share.Tag, share.Path, 0, cache); err != nil {
			return err
		}
	}
	return nil
}

func mount9p(tag, target string, flags uintptr, cache string) error {
	return mount(tag, target, "9p", flags, "trans=virtio,version=9p2000.L,msize=512000,cache="+cache)
}

// mount makes the mount point if need be.
func mount(source, target, kind string, flags uintptr, options string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	if err := unix.Mount(source, target, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s (%s): %w", target, kind, err)
	}
	return nil
}

// setUpNetwork gives eth0 its fixed address in QEMU's user network. IPv6
// addresses are valid at once, since nothing here can hold a duplicate.
func setUpNetwork(guestConfig) error {
	for _, name := range []string{"all", "default"} {
		file := filepath.Join("/proc/sys/net/ipv6/conf", name, "accept_dad")
		if err := os.WriteFile(file, []byte("0"), 0); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	return batch("ip",
		"link set lo up",
		"addr add "+guestAddress+"/24 dev eth0",
		"link set eth0 up",
		"route add default via "+gateway,
	)
}

// loadModules loads the topology's modules and then the test modules, after
// what those depend on.
func loadModules(config guestConfig) error {
	if err := modprobe(config.Modprobe); err != nil {
		return err
	}
	for _, module := range config.Modules {
		if err := loadTestModule(module); err != nil {
			return fmt.Errorf("module %s: %w", moduleName(module.File), err)
		}
	}
	return nil
}

func modprobe(names []string) error {
	if len(names) == 0 {
		return nil
	}
	return runQuietly("", "modprobe", append([]string{"-a"}, names...)...)
}

func loadTestModule(module guestModule) error {
	file := filepath.Join(guestDir, module.File)
	depends, err := runProgram(context.Background(), "", "modinfo", "-F", "depends", file)
	if err != nil {
		return err
	}
	if err := modprobe(strings.FieldsFunc(depends, isListSeparator)); err != nil {
		return err
	}
	return runQuietly("", "insmod", append([]string{file}, module.Params...)...)
}

func isListSeparator(r rune) bool { return r == ',' || r == ' ' || r == '\n' }

// addDevices makes soft-RoCE devices, the first ones on the rails to other VMs, if
// there are any. Each of the others sits on one end of a veth pair whose other end is
// up as well: that is what gives it a carrier. Jumbo frames, as on real RoCE networks,
// allow RDMA packets of 4096 bytes.
func addDevices(config guestConfig) error {
	if config.Devices == 0 {
		return nil
	}
	var links, devices []string
	for i := range config.Devices {
		if i < config.Rails {
			devices = append(devices, fmt.Sprintf("link add rxe%d type rxe netdev %s", i, railName(i)))
			continue
		}
		links = append(links,
			fmt.Sprintf("link add veth%d mtu 9000 type veth peer name veth%dp mtu 9000", i, i),
			fmt.Sprintf("addr add 10.77.%d.1/24 dev veth%d", i, i),
			fmt.Sprintf("link set veth%d up", i),
			fmt.Sprintf("link set veth%dp up", i),
		)
		devices = append(devices, fmt.Sprintf("link add rxe%d type rxe netdev veth%d", i, i))
	}
	if len(links) > 0 {
		if err := batch("ip", links...); err != nil {
			return err
		}
	}
	if err := batch("rdma", devices...); err != nil {
		return err
	}
	return waitActive(config.Devices)
}

// waitActive waits until every port is up: the driver follows its network
// interface a moment later.
func waitActive(devices int) error {
	deadline := time.Now().Add(20 * time.Second)
	for i := range devices {
		file := fmt.Sprintf("/sys/class/infiniband/rxe%d/ports/1/state", i)
		for {
			state, err := os.ReadFile(file)
			if err == nil && bytes.HasPrefix(state, []byte("4:")) {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("device rxe%d does not become active: %q, %w", i, bytes.TrimSpace(state), err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}

// enterDir changes to the caller's working directory.
func enterDir(config guestConfig) error {
	if err := os.Chdir(config.Dir); err != nil {
		return fmt.Errorf("working directory (is it below /run, /dev or /proc? those are the VM's own): %w", err)
	}
	return nil
}

// batch runs commands through iproute2's batch mode: one process, since
// starting one costs 50 ms here.
func batch(program string, commands ...string) error {
	return runQuietly(strings.Join(commands, "\n")+"\n", program, "-b", "-")
}

// runQuietly runs a program whose output matters only if it fails.
func runQuietly(stdin, name string, args ...string) error {
	path, err := findProgram(name)
	if err != nil {
		return err
	}
	cmd := exec.Command(path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	output, err := cmd.CombinedOutput()
	if err != nil {
		return programError(name+" "+strings.Join(args, " "), err, string(output), "")
	}
	return nil
}
