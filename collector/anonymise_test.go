package collector

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gdr_exporter/collector/capture"
	"gdr_exporter/collector/capture/embedded"
	"gdr_exporter/gpu/driver/drivertest"
	nvmltape "gdr_exporter/gpu/tape"
	"gdr_exporter/rdma"
	"gdr_exporter/rdma/nldev"
	"gdr_exporter/rdma/rdmatest"
)

// anonymousHosts are all fixtures of hosts, by name.
func anonymousHosts() map[string]func(t *testing.T) *replayHost {
	hosts := map[string]func(t *testing.T) *replayHost{"this-host": thisHost}
	trees := map[string]func() *rdmatest.Tree{"roce": func() *rdmatest.Tree { return rdmatest.HGX(rdmatest.HGXOptions{RoCE: true}) }}
	for name, build := range goldens {
		trees["rdma-"+name] = func() *rdmatest.Tree {
			tree := rdmatest.New()
			build(tree)
			return tree
		}
	}
	for name, build := range affinityTrees {
		trees["pcie-"+name] = build
	}
	for name, build := range trees {
		hosts[name] = func(t *testing.T) *replayHost { return hostOf(t, build()) }
		hosts[name+"-netlink"] = func(t *testing.T) *replayHost {
			tree := build()
			return hostOf(t, tree).withKernel(t, tree)
		}
	}
	for _, scene := range drivertest.Scenes {
		hosts["driver-"+scene.Name] = func(t *testing.T) *replayHost {
			host := drivertest.New()
			scene.Build(host)
			h := hostOf(t, host.Tree)
			h.roots = []string{"/", "/" + drivertest.Container}
			return h
		}
	}
	for name, build := range machines() {
		hosts["gpu-"+name] = func(t *testing.T) *replayHost { return gpuHost(t, func(h *replayHost) { h.open = build().Open }) }
	}
	return hosts
}

// gpuHost is a host with a driver and what change makes of it.
func gpuHost(t *testing.T, change func(*replayHost)) *replayHost {
	t.Helper()
	host := drivertest.New()
	drivertest.Scenes[2].Build(host)
	h := hostOf(t, host.Tree)
	h.roots = []string{"/"}
	change(h)
	return h
}

// thisHost is the machine that the test runs on, whatever it has.
func thisHost(*testing.T) *replayHost {
	return &replayHost{
		roots:   []string{"/", "/usr/local/nvidia", "/run/nvidia/driver"},
		netlink: func() (rdma.Netlink, error) { return nldev.Dial(time.Second) },
	}
}

// recordingOf records a host.
func recordingOf(t *testing.T, h *replayHost) *capture.Recording {
	t.Helper()
	recorded, recorder := h.recorded()
	recorded.page(t)
	return recorder.Recording()
}

// named matches the labels whose values are pseudonyms in an anonymised capture.
var named = regexp.MustCompile(`\b(node_guid|sys_image_guid|port_guid|uuid|cluster_uuid)="([^"]*)"`)

// substitute puts the values of named labels of a page into another one, if each
// value of the one always is the same value of the other, and the other way round.
func substitute(from, into string) (string, error) {
	there, back := map[string]string{"": ""}, map[string]string{"": ""}
	values := named.FindAllStringSubmatch(from, -1)
	n := 0
	var err error
	page := named.ReplaceAllStringFunc(into, func(label string) string {
		match := named.FindStringSubmatch(label)
		if n >= len(values) || values[n][1] != match[1] {
			err = fmt.Errorf("label %s is where %v were", label, values[min(n, len(values)):min(n+1, len(values))])
			return label
		}
		original := values[n][2]
		n++
		for _, side := range []struct {
			known      map[string]string
			value, now string
		}{{there, original, match[2]}, {back, match[2], original}} {
			if before, known := side.known[side.value]; known && before != side.now {
				err = fmt.Errorf("%s has become %s and %s", side.value, before, side.now)
			}
			side.known[side.value] = side.now
		}
		return match[1] + `="` + original + `"`
	})
	return page, err
}

// secretsOf are the GUIDs, MAC addresses and UUIDs in a text that name something.
func secretsOf(text string) []string {
	form := regexp.MustCompile(`\b[0-9a-f]{4}:[0-9a-f]{4}:[0-9a-f]{4}:[0-9a-f]{4}\b|\b[0-9a-f]{2}(:[0-9a-f]{2}){5}\b|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{32}\b`)
	found := form.FindAllString(text, -1)
	slices.Sort(found)
	return slices.DeleteFunc(slices.Compact(found), func(one string) bool {
		return strings.Trim(one, "0:-") == "" || strings.HasPrefix(one, "fe80:") || strings.HasPrefix(one, "0000:0000:0000:ffff")
	})
}

// checkAnonymous anonymises a recording, and checks that every field has a class,
// that nothing that names a part is left, and that the page is the same but for
// pseudonyms. It returns how many names there were.
func checkAnonymous(t *testing.T, h *replayHost, recording *capture.Recording) int {
	t.Helper()
	key := make([]byte, capture.KeySize)
	if _, err := rand.Read(key); err != nil {
		t.Fatal(err)
	}
	anonymous, contents := capture.Anonymise(recording, key, nil)
	for _, unknown := range contents.Unclassed {
		t.Errorf("no row of the table of classes is about %s", unknown)
	}
	for _, dropped := range contents.Dropped {
		t.Errorf("%s is not written", dropped)
	}
	var before, after bytes.Buffer
	if err := recording.WriteText(&before); err != nil {
		t.Fatal(err)
	}
	if err := anonymous.WriteText(&after); err != nil {
		t.Fatal(err)
	}
	secrets := secretsOf(before.String())
	for _, secret := range secrets {
		if strings.Contains(after.String(), secret) {
			t.Errorf("%s is in the archive", secret)
		}
	}
	original, first := h.played(recording)
	defer first.Close()
	want := original.page(t)
	read, err := capture.Read(&after)
	if err != nil {
		t.Fatal(err)
	}
	played, player := h.played(read)
	defer player.Close()
	got, err := substitute(want, played.page(t))
	if err != nil {
		t.Error(err)
	}
	if diff := firstDifference(want, got); diff != "" {
		t.Errorf("the page differs: %s", diff)
	}
	if missing := player.Unrecorded(); len(missing) > 0 {
		t.Errorf("%d questions are not in the anonymised recording: %v", len(missing), missing[:min(len(missing), 10)])
	}
	return len(secrets)
}

// TestAnonymousPages: every field of every fixture has a class, and what is
// replaced changes the page in nothing but names.
func TestAnonymousPages(t *testing.T) {
	for name, build := range anonymousHosts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := build(t)
			t.Logf("%d names replaced", checkAnonymous(t, h, recordingOf(t, h)))
		})
	}
}

// TestAnonymousTapes does the same with NVML's answers on real machines.
func TestAnonymousTapes(t *testing.T) {
	files, err := filepath.Glob("../gpu/testdata/*.tape.json")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tape, err := nvmltape.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		h := gpuHost(t, func(h *replayHost) { h.open = nvmltape.Play(tape).Open })
		if checkAnonymous(t, h, recordingOf(t, h)) == 0 {
			t.Error("nothing was replaced")
		}
	}
}

// TestAnonymousEmbedded: the embedded captures, which have results of measurements
// too, have nothing without a class.
func TestAnonymousEmbedded(t *testing.T) {
	for _, name := range embedded.Names() {
		recording, err := embedded.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		_, contents := capture.Anonymise(recording, make([]byte, capture.KeySize), nil)
		if len(contents.Unclassed)+len(contents.Dropped) > 0 {
			t.Errorf("%s: no class of %q, dropped %q", name, contents.Unclassed, contents.Dropped)
		}
	}
}
