package gpu_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gdr_exporter/gpu"
)

// cFunctions are the C functions of methods that are not called like them.
var cFunctions = map[string]string{
	"Init": "nvmlInit", "Shutdown": "nvmlShutdown", "SystemGetDriverVersion": "nvmlSystemGetDriverVersion",
	"SystemGetNVMLVersion": "nvmlSystemGetNVMLVersion", "DeviceGetCount": "nvmlDeviceGetCount",
	"DeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex", "EventSetCreate": "nvmlEventSetCreate",
	"GetGpuFabricInfoV2": "nvmlDeviceGetGpuFabricInfoV", "GetGpuFabricInfoV3": "nvmlDeviceGetGpuFabricInfoV",
}

// TestSymbols proves, against go-nvml's own source, that every method has its
// symbols looked up: those, and only those, that go-nvml may call.
func TestSymbols(t *testing.T) {
	source := goNVML(t)
	lookups := regexp.MustCompile(`Lookup\("(nvml\w+?)(_v\d+)"\)`)
	versions := map[string][]string{}
	for _, match := range lookups.FindAllStringSubmatch(source["lib.go"], -1) {
		versions[match[1]] = append(versions[match[1]], match[1]+match[2])
	}
	if len(versions) < 10 {
		t.Fatalf("only %d versioned functions found in go-nvml", len(versions))
	}
	ours := readSources(t)
	for _, kind := range []struct {
		of     reflect.Type
		prefix string
	}{
		{reflect.TypeFor[gpu.Library](), "nvml"}, {reflect.TypeFor[gpu.Device](), "nvmlDevice"}, {reflect.TypeFor[gpu.EventSet](), "nvmlEventSet"},
	} {
		for method := range kind.of.Methods() {
			if method.Name == "LookupSymbol" {
				continue
			}
			call := cFunctions[method.Name]
			if call == "" {
				call = kind.prefix + method.Name
			}
			if !strings.Contains(ours, `"`+call+`"`) {
				t.Errorf("%s: %s is called nowhere by that name", method.Name, call)
			}
			if call == "nvmlInit" {
				continue // looked up before the library is taken, see OpenLibrary
			}
			want := append([]string{call}, versions[call]...)
			slices.Reverse(want)
			if got := gpu.Symbols(call); !slices.Equal(got, want) {
				t.Errorf("%s: looks up %v, go-nvml may call %v", method.Name, got, want)
			}
			for _, symbol := range want {
				if !strings.Contains(source["nvml.go"], "C."+symbol+"(") {
					t.Errorf("%s: go-nvml does not call %s", method.Name, symbol)
				}
			}
		}
	}
}

// goNVML returns go-nvml's sources.
func goNVML(t *testing.T) map[string]string {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Skipf("go-nvml's source is not at hand: %v", err)
	}
	source := map[string]string{}
	for _, name := range []string{"lib.go", "nvml.go"} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "pkg/nvml", name))
		if err != nil {
			t.Fatal(err)
		}
		source[name] = string(text)
	}
	return source
}

// readSources returns this package's sources.
func readSources(t *testing.T) string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || file == "call.go" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
