package gpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gdr_exporter/collector/sysread"
)

func TestAddress(t *testing.T) {
	for busID, want := range map[string]string{
		"00000000:3B:00.0": "0000:3b:00.0",
		"00000009:01:00.0": "0009:01:00.0",
		"0000:3b:00.0":     "0000:3b:00.0",
		"0001ABCD:ff:1F.7": "1abcd:ff:1f.7", // Hyper-V's domains have more than four digits
		"0001:0:0.0":       "0001:00:00.0",
		"FFFFFFFF:FF:FF.0": "", // a switch that the host does not show
		"":                 "", "0": "", ":": "", "::.": "", "0000:3b:00": "", "0000:3b.0:0": "",
		"0000:3b:00.8": "", "0000:3b:20.0": "", "-000:3b:00.0": "", "0000:+3:00.0": "", "00000000:3B:00.0x": "",
		"000000000:3B:00.0": "",
	} {
		got, ok := Address(busID)
		if got != want || ok != (want != "") {
			t.Errorf("%q: %q %v, want %q", busID, got, ok, want)
		}
	}
}

func FuzzAddress(f *testing.F) {
	f.Add("00000000:3B:00.0")
	f.Add("FFFFFFFF:FF:FF.0")
	f.Fuzz(func(t *testing.T, busID string) {
		address, ok := Address(busID)
		if !ok {
			return
		}
		if again, ok := Address(address); !ok || again != address {
			t.Errorf("%q: %q becomes %q", busID, address, again)
		}
	})
}

func TestBitList(t *testing.T) {
	for want, words := range map[string][]uint{
		"":             nil,
		"0":            {1},
		"0-31":         {1<<32 - 1, 0},
		"0-63,128-191": {math.MaxUint64, 0, math.MaxUint64},
		"0-127":        {math.MaxUint64, math.MaxUint64},
		"1,3,5-6,64":   {0b1101010, 1},
		"63-64":        {1 << 63, 1},
	} {
		if got := bitList(words); got != want {
			t.Errorf("%b: %s, want %s", words, got, want)
		}
	}
	for _, c := range []struct {
		words []uint
		want  sysread.Maybe[int]
	}{
		{[]uint{1}, sysread.Some(0)}, {[]uint{0, 1}, sysread.Some(64)}, {[]uint{3}, sysread.Maybe[int]{}}, {nil, sysread.Maybe[int]{}},
	} {
		if got := oneBit(c.words); got != c.want {
			t.Errorf("%b: %v, want %v", c.words, got, c.want)
		}
	}
}

func TestDecodeField(t *testing.T) {
	known := sysread.Some[uint64]
	none := sysread.Maybe[uint64]{}
	for _, c := range []struct {
		kind nvml.ValueType
		bits uint64
		want sysread.Maybe[uint64]
	}{
		{nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, math.MaxUint64, known(math.MaxUint64)},
		{nvml.VALUE_TYPE_UNSIGNED_LONG, 7, known(7)},
		{nvml.VALUE_TYPE_UNSIGNED_INT, 0xffffffff_00000012, known(0x12)}, // the rest of the union is not the value's
		{nvml.VALUE_TYPE_UNSIGNED_SHORT, 0xff_0003, known(3)},
		{nvml.VALUE_TYPE_SIGNED_INT, 0xffffffff, none},
		{nvml.VALUE_TYPE_SIGNED_INT, 5, known(5)},
		{nvml.VALUE_TYPE_SIGNED_LONG_LONG, math.MaxUint64, none},
		{nvml.VALUE_TYPE_DOUBLE, math.Float64bits(2.5), known(2)},
		{nvml.VALUE_TYPE_DOUBLE, math.Float64bits(math.NaN()), none},
		{nvml.VALUE_TYPE_DOUBLE, math.Float64bits(math.Inf(1)), none},
		{99, 5, none},
	} {
		f := nvml.FieldValue{ValueType: uint32(c.kind)}
		binary.NativeEndian.PutUint64(f.Value[:], c.bits)
		if got := decodeField(&f); got != c.want {
			t.Errorf("type %d, %x: %v, want %v", c.kind, c.bits, got, c.want)
		}
	}
}

func TestBitErrorRatio(t *testing.T) {
	for raw, want := range map[uint64]float64{0: 0, 1<<8 | 12: 1e-12, 15<<8 | 254: 15e-254, 7 << 8: 7, 5<<8 | 1: 0.5} {
		got := bitErrorRatio(sysread.Some(raw))
		if !got.Known || math.Abs(got.Value-want) > want*1e-9 {
			t.Errorf("%x: %v, want %v", raw, got, want)
		}
	}
	if bitErrorRatio(sysread.Maybe[uint64]{}).Known {
		t.Error("an unknown ratio is known")
	}
}

func TestErrorNames(t *testing.T) {
	err := sysread.ReadError{Device: "0000:3b:00.0", Source: "nvmlDeviceGetName", Err: Error{nvml.ERROR_GPU_IS_LOST}}
	if got := err.Errno(); got != "NVML_ERROR_GPU_IS_LOST" {
		t.Errorf("errno %q", got)
	}
	if got, want := err.Error(), "0000:3b:00.0 nvmlDeviceGetName: NVML_ERROR_GPU_IS_LOST"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if !errors.Is(fmt.Errorf("x: %w", Error{nvml.ERROR_GPU_IS_LOST}), nvml.ERROR_GPU_IS_LOST) {
		t.Error("errors.Is does not find the return value")
	}
	if errors.Is(Error{nvml.ERROR_GPU_IS_LOST}, nvml.SUCCESS) {
		t.Error("a failure is a success")
	}
	if got := (Error{nvml.Return(77)}).ErrnoName(); got != "NVML_ERROR_77" {
		t.Errorf("an unknown return is called %q", got)
	}
}

func TestSearch(t *testing.T) {
	root, driver := t.TempDir(), t.TempDir()
	write := func(path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	if got := search(&sysread.IO{}, []string{root, driver}); len(got) != 0 {
		t.Errorf("in empty roots: %v", got)
	}
	// As on a host, by a relative link; twice, by a link to another directory.
	write(filepath.Join(root, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.1"))
	link("libnvidia-ml.so.580.1", filepath.Join(root, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"))
	link("../x86_64-linux-gnu/libnvidia-ml.so.580.1", filepath.Join(root, "usr/lib/sub/libnvidia-ml.so.1"))
	link("x86_64-linux-gnu/libnvidia-ml.so.1", filepath.Join(root, "usr/lib/libnvidia-ml.so.1"))
	// As in a driver container, whose absolute links mean its own root.
	write(filepath.Join(driver, "usr/local/nvidia/libnvidia-ml.so.580.2"))
	link("/usr/local/nvidia/libnvidia-ml.so.580.2", filepath.Join(driver, "usr/lib64/libnvidia-ml.so.1"))
	// What is no library: a loop, a dangling link, a directory.
	link("libnvidia-ml.so.1", filepath.Join(driver, "lib/libnvidia-ml.so.1"))
	link("nowhere", filepath.Join(driver, "lib64/libnvidia-ml.so.1"))
	if err := os.MkdirAll(filepath.Join(driver, "usr/lib/libnvidia-ml.so.1"), 0o755); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, f := range search(&sysread.IO{}, []string{root, driver}) {
		paths = append(paths, f.path)
		if f.ino == 0 {
			t.Errorf("%s has no inode", f.path)
		}
	}
	want := []string{filepath.Join(root, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.1"), filepath.Join(driver, "usr/local/nvidia/libnvidia-ml.so.580.2")}
	if fmt.Sprint(paths) != fmt.Sprint(want) {
		t.Errorf("found %v\nwant  %v", paths, want)
	}
	if got := search(&sysread.IO{}, nil); len(got) != 1 || got[0].path != "" {
		t.Errorf("without roots the loader is to be asked: %v", got)
	}
	if got := search(&sysread.IO{}, []string{root, "/"}); got[len(got)-1].path != "" {
		t.Errorf("with the root / the loader is to be asked last: %v", got)
	}
}

func TestMappedPath(t *testing.T) {
	maps := "7f00-7f01 r-xp 00000000 fd:01 11 /usr/lib/libc.so.6\n7f02-7f03 rw-p 0 00:00 0 \n" +
		"7f04-7f05 r--p 00000000 fd:01 12 /run/nvidia/a b/libnvidia-ml.so.580.1\n"
	if got := mappedPath(maps); got != "/run/nvidia/a b/libnvidia-ml.so.580.1" {
		t.Errorf("%q", got)
	}
	if got := mappedPath("7f00-7f01 r-xp 00000000 fd:01 11 /usr/lib/libc.so.6\n"); got != "" {
		t.Errorf("%q", got)
	}
}

// TestOpenLibraryRefuses proves that a file which is not NVML is refused before
// go-nvml would call into it.
func TestOpenLibraryRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if _, err := OpenLibrary(path); err == nil {
		t.Error("an absent library was opened")
	}
	if err := os.WriteFile(path, []byte("not ELF"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLibrary(path); err == nil {
		t.Error("a text was opened")
	}
	for _, libm := range []string{"/lib/x86_64-linux-gnu/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6", "/lib64/libm.so.6"} {
		if _, err := os.Stat(libm); err != nil {
			continue
		}
		if _, err := OpenLibrary(libm); err == nil {
			t.Error("a library without nvmlInit was opened")
		}
	}
}
