package main

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// captureDirEnv names the directory in which TestInKernelCapture leaves what is
// looked at outside the virtual machine, see checkCaptures.
const captureDirEnv = "GDR_CAPTURE_DIR"

// Files of that directory.
const (
	rawFile       = "raw.txt.gz"       // of capture --raw
	anonymousFile = "anonymous.txt.gz" // of capture
	pageFile      = "page.metrics"     // the page, the same before and after both
	secretsFile   = "secrets.json"     // see secrets
)

// captureFlagsInKernel are those of the exporter and of both captures: what reads
// is the same, and nothing is measured.
var captureFlagsInKernel = []string{standIn, "--no-collector.probe", "--control.socket=", "--state.dir="}

// TestInKernelCapture takes both kinds of capture beside a running exporter whose
// page is the same before and after them.
func TestInKernelCapture(t *testing.T) {
	inKernel(t)
	dir := os.Getenv(captureDirEnv)
	if dir == "" {
		t.Fatal("no " + captureDirEnv)
	}
	e := startFresh(t, captureFlagsInKernel...)
	save := func(name string, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Just after boot the kernel still says hello on its new links, which counts:
	// a page that moves of itself proves nothing.
	const attempts = 5
	for attempt := 1; ; attempt++ {
		before := wholePage(t, e)
		runCapture(t, "--force", "-o", filepath.Join(dir, rawFile), "--raw")
		runCapture(t, "--force", "-o", filepath.Join(dir, anonymousFile))
		after := wholePage(t, e)
		differs := pageDiffers(samplesOf(t, before), samplesOf(t, after))
		if differs == "" {
			save(pageFile, []byte(after))
			break
		}
		t.Logf("attempt %d: the page has moved meanwhile: %s", attempt, differs)
		if attempt == attempts {
			t.Fatal("the page does not stand still")
		}
		time.Sleep(5 * time.Second)
	}
	text, err := json.Marshal(secretsHere(t))
	if err != nil {
		t.Fatal(err)
	}
	save(secretsFile, text)
	e.wantQuietLog(t)
}

// wholePage is the page of all collectors, of a second scrape: what has just come
// is incomplete in the first one.
func wholePage(t *testing.T, e *vmExporter) string {
	t.Helper()
	var page []byte
	for range 2 {
		status, body, err := e.get("/metrics")
		if err != nil || status != 200 {
			t.Fatalf("status %d, %v", status, err)
		}
		page = body
	}
	return string(page)
}

func runCapture(t *testing.T, args ...string) {
	t.Helper()
	args = append(append([]string{"capture"}, captureFlagsInKernel...), args...)
	output, err := exec.Command(os.Getenv(binaryEnv), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, output)
	}
	t.Logf("%q:\n%s", args, output)
}

// secrets are what identifies a host and must not be in an anonymised capture.
type secrets struct {
	Names, MACs, GUIDs, GIDs, IPs []string
}

// secretsHere collects those of this machine, from where the exporter does not
// read as well as from where it does.
func secretsHere(t *testing.T) secrets {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	s := secrets{Names: []string{host}}
	for _, file := range []string{"/etc/machine-id", "/proc/sys/kernel/random/boot_id", "/sys/class/dmi/id/product_uuid"} {
		if id := optionalText(file); id != "" {
			s.Names = append(s.Names, id, strings.ReplaceAll(id, "-", ""))
		}
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback == 0 && len(i.HardwareAddr) > 0 {
			s.MACs = append(s.MACs, i.HardwareAddr.String(), strings.ReplaceAll(i.HardwareAddr.String(), ":", ""))
		}
		addresses, err := i.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, address := range addresses {
			if network, is := address.(*net.IPNet); is && !network.IP.IsLoopback() {
				s.IPs = append(s.IPs, network.IP.String())
			}
		}
	}
	for _, name := range devicesInSysfs(t) {
		device := filepath.Join(classDir, name)
		s.GUIDs = append(s.GUIDs, optionalText(device+"/node_guid"), optionalText(device+"/sys_image_guid"))
		gids, err := filepath.Glob(device + "/ports/*/gids/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, gid := range gids {
			if text := optionalText(gid); strings.Trim(text, "0:") != "" {
				s.GIDs = append(s.GIDs, text, text[len(text)/2+1:]) // whole, and without the prefix
			}
		}
	}
	return s
}

// devicesInSysfs are the names of the RDMA devices.
func devicesInSysfs(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(classDir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
