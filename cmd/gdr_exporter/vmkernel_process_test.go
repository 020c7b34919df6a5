package main

import (
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/process"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/nldev"
)

// toolOwners are the processes that hold memory of a device according to rdma(8),
// with their regions and bytes.
func toolOwners(t *testing.T, device string) map[int]nldev.Owner {
	t.Helper()
	var regions []struct {
		Ifname string
		Mrlen  uint64
		PID    int
	}
	decode(t, sh(t, "rdma", "-j", "resource", "show", "mr"), &regions)
	owners := map[int]nldev.Owner{}
	for _, region := range regions {
		if region.Ifname == device && region.PID > 0 {
			owner := owners[region.PID]
			owners[region.PID] = nldev.Owner{PID: region.PID, Regions: owner.Regions + 1, Bytes: owner.Bytes + region.Mrlen}
		}
	}
	return owners
}

// usageIn is what the reader says of a device's use.
func usageIn(t *testing.T, device string) rdma.Usage {
	t.Helper()
	reader := rdma.NewReader(rdma.Options{
		Sysfs: "/sys", Netlink: func() (rdma.Netlink, error) { return nldev.Dial(netlinkTimeout) }, Include: func(name string) bool { return name == device },
	})
	listing, err := reader.List()
	if err != nil || len(listing.Devices) != 1 {
		t.Fatalf("%d devices, %v", len(listing.Devices), err)
	}
	defer listing.Devices[0].Close()
	read, errs := listing.Devices[0].Read(time.Now())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return read.Usage
}

// Whoever holds a device is known by its process id, with what it holds, as rdma(8)
// knows it; nobody is once it has ended. What is read of that process is its
// own.
func TestInKernelOwners(t *testing.T) {
	inKernel(t)
	if err := os.Setenv("NCCL_NET_GDR_LEVEL", "LOC"); err != nil { // for perftest to inherit
		t.Fatal(err)
	}
	pids, stop := startWriting(t, "rxe3", 18703, "-D", "5") // they go on until they were seen
	server := pids[0]
	var owner nldev.Owner
	var limit uint64
	proc := &process.Proc{Self: -1}
	within(t, patience, "the server's memory is known to be its own, as rdma(8) says", func() bool {
		before := toolOwners(t, "rxe3")
		usage := usageIn(t, "rxe3")
		owner = nldev.Owner{}
		found := map[int]nldev.Owner{}
		for _, o := range usage.Owners.Value {
			if o.PID == server {
				owner = o
			}
			if o.Regions > 0 {
				found[o.PID] = nldev.Owner{PID: o.PID, Regions: o.Regions, Bytes: o.Bytes}
			}
		}
		same := reflect.DeepEqual(before, found) && reflect.DeepEqual(before, toolOwners(t, "rxe3"))
		environment, err := proc.Environment(server)
		if err == nil {
			limit, err = proc.Memlock(server)
		}
		return usage.Owners.Known && same && owner.Contexts > 0 && owner.Regions > 0 && owner.Bytes >= 1<<16 &&
			err == nil && environment.Variables["NCCL_NET_GDR_LEVEL"] == "LOC"
	})
	t.Logf("ib_write_bw: %+v", owner)
	if !strings.Contains(readText(t, "/proc/self/limits"), memlockText(limit)) {
		t.Errorf("limit %d, of which this process's limits know nothing", limit)
	}
	stop()
	within(t, patience, "nobody holds the device", func() bool {
		usage := usageIn(t, "rxe3")
		return usage.Owners.Known && len(usage.Owners.Value) == 0
	})
}

// memlockText is a limit as the kernel writes it.
func memlockText(limit uint64) string {
	if limit == ^uint64(0) {
		return "unlimited"
	}
	return strconv.FormatUint(limit, 10)
}

// The exporter tells whether it sees processes by the ids that the kernel gives, on
// the host and in a PID namespace of its own; by default it looks at none.
func TestInKernelProcess(t *testing.T) {
	inKernel(t)
	if visible, err := new(process.Proc).Visible(); !visible || err != nil {
		t.Errorf("on the host: %v, %v", visible, err)
	}
	processPage(t).wantNone(t, "gdr_process_")
	page := processPage(t, "--collector.process")
	page.want(t, "gdr_process_visible{}", 1)
	page.wantNone(t, "gdr_process_jobs") // there is no NVML
	page.want(t, named("gdr_scrape_collector_success", "collector", "process"), 1)
	out := sh(t, "unshare", "--pid", "--fork", "--mount-proc", os.Args[0], "-test.run", "^TestVisibleHere$", "-test.v")
	if !strings.Contains(out, "visible: false, <nil>") {
		t.Errorf("in a PID namespace of its own: %s", out)
	}
	out = sh(t, "unshare", "--pid", "--fork", os.Args[0], "-test.run", "^TestVisibleHere$", "-test.v")
	if !strings.Contains(out, "visible: false, <nil>") {
		t.Errorf("in a PID namespace of its own, with the host's procfs: %s", out)
	}
}

// processPage is the page with all collectors.
func processPage(t *testing.T, args ...string) series {
	t.Helper()
	status, body, err := startFresh(t, append(args, "--rdma.device-include=rxe0", "--scrape.deadline=30s")...).get("/metrics")
	if err != nil || status != http.StatusOK {
		t.Fatal(status, err)
	}
	page, err := parsePage(body)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// TestVisibleHere says it of where it runs, for TestInKernelProcess.
func TestVisibleHere(t *testing.T) {
	visible, err := new(process.Proc).Visible()
	fmt.Printf("visible: %v, %v\n", visible, err)
	if err != nil {
		t.Error(err)
	}
}
