package main

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseOptions(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("VMTEST_TEST", "from caller")
	got, err := parseOptions([]string{
		"--devices", "3", "--kernel=backports", "--timeout", "90s", "--memory", "512M", "--cmdline", "iommu=pt  quiet",
		"--forward", "10479", "--forward", "18080:8080", "--share", dir,
		"--module", dir + ":a=1,b=0000:01:00.0+x", "--env", "A=b=c", "--env", "VMTEST_TEST",
		"--", "cmd", "--flag", "@file", "--", "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &options{
		topology: topology{cmdline: []string{"iommu=pt", "quiet"}},
		devices:  3, kernel: kernelBackports, timeout: 90 * time.Second, memory: "512M",
		forwards: []forward{{10479, 10479}, {18080, 8080}},
		shares:   []string{dir},
		modules:  []moduleSpec{{dir: dir, params: []string{"a=1", "b=0000:01:00.0+x"}}},
		env:      []string{"A=b=c", "VMTEST_TEST=from caller"},
		root:     "/",
		nodes:    1,
		command:  []string{"cmd", "--flag", "@file", "--", "x"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestParseOptionsDefaults(t *testing.T) {
	got, err := parseOptions([]string{"--", "true"})
	if err != nil {
		t.Fatal(err)
	}
	want := &options{devices: 1, kernel: kernelStable, timeout: 10 * time.Minute, memory: "2G", root: "/", nodes: 1, command: []string{"true"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestUsageErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("what is this\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string][]string{
		"no command to run: give it after --":                                               {"--devices", "1"},
		"unknown long flag '--nope'":                                                        {"--nope", "--", "true"},
		"--devices -1: must be between 0 and 64":                                            {"--devices=-1", "--", "true"},
		"--devices 65: must be":                                                             {"--devices", "65", "--", "true"},
		"--timeout 0s: must be positive":                                                    {"--timeout", "0s", "--", "true"},
		`memory size "lots"`:                                                                {"--memory", "lots", "--", "true"},
		`--forward 0: "0" is not a TCP port`:                                                {"--forward", "0", "--", "true"},
		`--forward 80:x: "x" is not a TCP port`:                                             {"--forward", "80:x", "--", "true"},
		`--forward 70000: "70000" is not`:                                                   {"--forward", "70000", "--", "true"},
		"--module /nonexistent: stat /nonexistent":                                          {"--module", "/nonexistent", "--", "true"},
		`module parameter "x": must be NAME=VALUE`:                                          {"--module", "/tmp:x", "--", "true"},
		"--share /: the whole machine":                                                      {"--share", "/", "--", "true"},
		"--share " + file + ": not a directory":                                             {"--share", file, "--", "true"},
		"--env =x: must be NAME":                                                            {"--env", "=x", "--", "true"},
		"--root /nonexistent: stat /nonexistent":                                            {"--root", "/nonexistent", "--", "true"},
		"--root " + file + ": not a directory":                                              {"--root", file, "--", "true"},
		"--systemd: there is no /lib/systemd":                                               {"--systemd", "--root", t.TempDir(), "--", "true"},
		`unknown topology "nope": neither a file nor one of flat, gdr, iommu, numa, switch`: {"--topology", "nope", "--", "true"},
		"topology " + file + `: line 1: "what" is neither`:                                  {"--topology", file, "--", "true"},
		"enum value must be one of stable,backports":                                        {"--kernel", "old", "--", "true"},
	}
	for want, args := range tests {
		_, err := parseOptions(args)
		var usage *usageError
		switch {
		case !errors.As(err, &usage):
			t.Errorf("%v: got %v, want a usage error", args, err)
		case !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n"):
			t.Errorf("%v: got %q, want one line with %q", args, err, want)
		}
	}
}

func TestCheckMemory(t *testing.T) {
	for _, test := range []struct {
		flag, topology string
		nodes          int
		want           string
	}{
		{"", "", 1, "2G"}, {"", "4G", 1, "4G"}, {"1024", "4G", 1, "1024"}, {"3G", "", 1, "3G"},
		{"", "", 2, "1G"}, {"", "4G", 2, "4G"}, {"3G", "", 3, "3G"},
	} {
		got, err := checkMemory(test.flag, test.topology, test.nodes)
		if err != nil || got != test.want {
			t.Errorf("checkMemory(%q, %q, %d) = %q, %v; want %q", test.flag, test.topology, test.nodes, got, err, test.want)
		}
	}
}

func TestKernelModules(t *testing.T) {
	for _, test := range []struct {
		opts options
		rdma bool
	}{
		{options{}, false},
		{options{devices: 1}, true},
		{options{modules: []moduleSpec{{}}}, true},
	} {
		got := strings.Contains(strings.Join(test.opts.kernelModules(), " "), "rdma_rxe")
		if got != test.rdma {
			t.Errorf("%+v: RDMA modules: %v, want %v", test.opts, got, test.rdma)
		}
	}
}
