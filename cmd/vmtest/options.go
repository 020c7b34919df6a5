package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
)

// maxDevices bounds --devices: device i uses the network 10.77.i.0/24, and a
// larger number only makes the boot slow.
const maxDevices = 64

// options is the parsed and checked command line.
type options struct {
	topology   topology
	devices    int
	forwards   []forward
	modules    []moduleSpec
	shares     []string // absolute directories
	root       string   // absolute directory that is the VM's root
	systemd    bool     // the root's systemd is the first process
	env        []string // NAME=VALUE
	kernel     string   // "stable" or "backports"
	timeout    time.Duration
	memory     string
	consoleLog string
	nodes      int // VMs that run the command; 1: it is alone
	rails      int // LANs that join them
	mtu        int // of the LANs
	command    []string
}

// forward makes the VM's TCP port reachable at the machine's loopback address. Host 0
// stands for a port that is free.
type forward struct{ host, guest uint16 }

// moduleSpec is one --module: a source directory and module parameters.
type moduleSpec struct {
	dir    string
	params []string // "name=value"
}

// rawFlags are the flags as kingpin delivers them.
type rawFlags struct {
	topology, cmdline, kernel, memory, consoleLog, root string
	devices, nodes, rails, mtu                          int
	devicesSet, railsSet, mtuSet                        bool
	timeout                                             time.Duration
	systemd                                             bool
	forwards, modules, shares, env                      []string
}

// parseOptions reads the command line. Every error is a usageError.
func parseOptions(args []string) (*options, error) {
	flags, command := splitCommand(args)
	var raw rawFlags
	if err := parseFlags(flags, &raw); err != nil {
		return nil, usagef("%v (see --help)", err)
	}
	if len(command) == 0 {
		return nil, usagef("no command to run: give it after --")
	}
	opts, err := raw.check()
	if err != nil {
		return nil, err
	}
	opts.command = command
	return opts, nil
}

// splitCommand cuts at the first "--". kingpin must not see the command: it
// would expand arguments such as @file.
func splitCommand(args []string) (flags, command []string) {
	i := slices.Index(args, "--")
	if i < 0 {
		return args, nil
	}
	return args[:i], args[i+1:]
}

func parseFlags(args []string, raw *rawFlags) error {
	app := kingpin.New("vmtest", "Boot a kernel with soft-RoCE devices under QEMU and run a command in it: vmtest [FLAGS] -- COMMAND [ARG...]")
	app.Flag("topology", "PCIe and NUMA layout: "+strings.Join(topologyNames(), ", ")+", or a file.").Default("flat").PlaceHolder("NAME|FILE").StringVar(&raw.topology)
	app.Flag("cmdline", "Further kernel arguments, after the topology's.").PlaceHolder("ARGS").StringVar(&raw.cmdline)
	app.Flag("devices", "Number of soft-RoCE devices, rxe0 and up. 0 loads no RDMA modules unless --module is given.").Default("1").IsSetByUser(&raw.devicesSet).IntVar(&raw.devices)
	app.Flag("nodes", "Number of VMs that run the command at once, and reach each other.").Default("1").IntVar(&raw.nodes)
	app.Flag("rails", "Number of networks that join the VMs of --nodes. Device rxeK of each is on network K; those beyond are its own.").Default("1").IsSetByUser(&raw.railsSet).IntVar(&raw.rails)
	app.Flag("mtu", "MTU of the networks that join the VMs of --nodes.").Default(strconv.Itoa(defaultMTU)).IsSetByUser(&raw.mtuSet).IntVar(&raw.mtu)
	app.Flag("forward", "Make the VM's TCP port reachable at 127.0.0.1 on this machine: at HOSTPORT, and those of further --nodes at the ports after it. 0 stands for any free port. Which it is is told. Repeatable.").PlaceHolder("[HOSTPORT:]PORT").StringsVar(&raw.forwards)
	app.Flag("module", "Build this kernel module and load it before the command. Repeatable.").PlaceHolder("DIR[:PARAM=VALUE,...]").StringsVar(&raw.modules)
	app.Flag("share", "Directory of this machine that the VM may write. Repeatable.").PlaceHolder("DIR").StringsVar(&raw.shares)
	app.Flag("root", "Directory that is the VM's root file system, rather than this machine's own.").Default("/").PlaceHolder("DIR").StringVar(&raw.root)
	app.Flag("systemd", "Boot the root's systemd, and run the command as a service of it.").BoolVar(&raw.systemd)
	app.Flag("env", "Environment variable for the command. Repeatable.").PlaceHolder("NAME[=VALUE]").StringsVar(&raw.env)
	app.Flag("kernel", "Debian kernel to boot.").Default(kernelStable).EnumVar(&raw.kernel, kernelStable, kernelBackports)
	app.Flag("timeout", "End the run after this time, with exit status 124.").Default("10m").DurationVar(&raw.timeout)
	app.Flag("memory", "Memory of the VM, as QEMU's -m. The default is 2G, 1G with --nodes, or what the topology says.").PlaceHolder("SIZE").StringVar(&raw.memory)
	app.Flag("console-log", "Also write the kernel's console output to this file; with --nodes to FILE.node1 and so on.").PlaceHolder("FILE").StringVar(&raw.consoleLog)
	_, err := app.Parse(args)
	return err
}

// check turns the raw flags into options.
func (r *rawFlags) check() (*options, error) {
	if r.devices < 0 || r.devices > maxDevices {
		return nil, usagef("--devices %d: must be between 0 and %d", r.devices, maxDevices)
	}
	if r.timeout <= 0 {
		return nil, usagef("--timeout %v: must be positive", r.timeout)
	}
	opts := &options{devices: r.devices, kernel: r.kernel, timeout: r.timeout, consoleLog: r.consoleLog}
	var err error
	if opts.topology, err = loadTopology(r.topology); err != nil {
		return nil, err
	}
	opts.topology.cmdline = append(opts.topology.cmdline, strings.Fields(r.cmdline)...)
	if err := r.checkNodes(opts); err != nil {
		return nil, err
	}
	if opts.memory, err = checkMemory(r.memory, opts.topology.memory, opts.nodes); err != nil {
		return nil, err
	}
	if opts.forwards, err = parseAll("--forward", r.forwards, parseForward); err != nil {
		return nil, err
	}
	if opts.modules, err = parseAll("--module", r.modules, parseModule); err != nil {
		return nil, err
	}
	if opts.shares, err = parseAll("--share", r.shares, parseShare); err != nil {
		return nil, err
	}
	if opts.env, err = parseAll("--env", r.env, parseEnv); err != nil {
		return nil, err
	}
	if err := opts.checkForwards(); err != nil {
		return nil, err
	}
	return opts, r.checkRoot(opts)
}

// parseAll parses every value of a repeatable flag.
func parseAll[T any](flag string, values []string, parse func(string) (T, error)) ([]T, error) {
	var all []T
	for _, value := range values {
		parsed, err := parse(value)
		if err != nil {
			return nil, usagef("%s %s: %v", flag, value, err)
		}
		all = append(all, parsed)
	}
	return all, nil
}

var memoryPattern = regexp.MustCompile(`^[1-9][0-9]*[MG]?$`)

// checkMemory picks the flag's value, else the topology's, else 2G, or 1G for each of
// several VMs.
func checkMemory(flag, topology string, nodes int) (string, error) {
	memory := cmp.Or(flag, topology)
	switch {
	case memory != "":
	case nodes > 1:
		memory = "1G"
	default:
		memory = "2G"
	}
	if !memoryPattern.MatchString(memory) {
		return "", usagef("memory size %q: must be a number of MiB, or a number with M or G", memory)
	}
	return memory, nil
}

func parseForward(s string) (forward, error) {
	host, guest, ok := strings.Cut(s, ":")
	if !ok {
		guest = host
	}
	guestPort, err := parsePort(guest)
	if err != nil || host == "0" {
		return forward{guest: guestPort}, err
	}
	hostPort, err := parsePort(host)
	return forward{host: hostPort, guest: guestPort}, err
}

func parsePort(s string) (uint16, error) {
	port, err := strconv.ParseUint(s, 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("%q is not a TCP port", s)
	}
	return uint16(port), nil
}

func parseModule(s string) (moduleSpec, error) {
	dir, params, _ := strings.Cut(s, ":")
	dir, err := existingDir(dir)
	if err != nil {
		return moduleSpec{}, err
	}
	spec := moduleSpec{dir: dir}
	for _, param := range strings.FieldsFunc(params, func(r rune) bool { return r == ',' }) {
		if name, _, ok := strings.Cut(param, "="); !ok || name == "" {
			return moduleSpec{}, fmt.Errorf("module parameter %q: must be NAME=VALUE", param)
		}
		spec.params = append(spec.params, param)
	}
	return spec, nil
}

func parseShare(s string) (string, error) {
	dir, err := existingDir(s)
	if err != nil {
		return "", err
	}
	if dir == "/" {
		return "", fmt.Errorf("the whole machine cannot be shared writable")
	}
	if strings.Contains(dir, ",") {
		return "", fmt.Errorf("QEMU cannot share a path with a comma")
	}
	return dir, nil
}

// parseEnv accepts NAME=VALUE, and NAME for the caller's own value.
func parseEnv(s string) (string, error) {
	name, _, ok := strings.Cut(s, "=")
	if name == "" {
		return "", fmt.Errorf("must be NAME or NAME=VALUE")
	}
	if ok {
		return s, nil
	}
	return name + "=" + os.Getenv(name), nil
}

// existingDir returns the absolute path of a directory.
func existingDir(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("not a directory")
	}
	return path, nil
}
