package driver

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gdr_exporter/collector/sysread"
)

// bufferLists are the forms that kernels write (dma_buf_debug_show), with the same
// buffers: one of a screen, one of the driver that a NIC has registered, one that two
// have, and one that nobody has.
var bufferLists = map[string]string{
	"4.18": "\nDma-buf Objects:\nsize    \tflags   \tmode    \tcount   \texp_name\n" +
		"08294400\t00000002\t00000007\t00000003\tdrm\n\tAttached Devices:\n\t0000:18:00.0\nTotal 1 devices attached\n\n" +
		"02097152\t00000002\t00000007\t00000002\tnvidia\n\tAttached Devices:\n\t0000:18:00.0\nTotal 1 devices attached\n\n" +
		"1073741824\t00000002\t00000007\t00000002\tnvidia\n\tAttached Devices:\n\t0000:18:00.0\n\t0000:2a:00.1\nTotal 2 devices attached\n\n" +
		"00065536\t00000002\t00000007\t00000001\tnvidia\n\tAttached Devices:\nTotal 0 devices attached\n\n" +
		"\nTotal 4 objects, 1082198016 bytes\n",
	"5.10": "\nDma-buf Objects:\nsize    \tflags   \tmode    \tcount   \texp_name\tino     \n" +
		"08294400\t00080002\t00080007\t00000003\tdrm\t00021002\tscreen\n" +
		"\tExclusive fence: i915 signaled signalled\n\tShared fence: nvidia 0000:18:00.0 unsignalled\n\tAttached Devices:\n\t0000:18:00.0\nTotal 1 devices attached\n\n" +
		"02097152\t00080002\t00080007\t00000002\tnvidia\t00021003\t\n\tAttached Devices:\n\t0000:18:00.0\nTotal 1 devices attached\n\n" +
		"1073741824\t00080002\t00080007\t00000002\tnvidia\t00021004\t\n" +
		"\tExclusive fence: nvidia nvidia.gpu unsignalled\n\tAttached Devices:\n\t0000:18:00.0\n\t0000:2a:00.1\nTotal 2 devices attached\n\n" +
		"00065536\t00080002\t00080007\t00000001\tnvidia\t00021005\t\n\tAttached Devices:\nTotal 0 devices attached\n\n" +
		"\nTotal 4 objects, 1082198016 bytes\n",
	"6.1 to 6.12": "\nDma-buf Objects:\nsize    \tflags   \tmode    \tcount   \texp_name\tino     \tname\n" +
		"08294400\t00080002\t00080007\t00000003\tdrm\t00021002\tscreen\n" +
		"\tkernel fence:i915 signaled seq 12 signalled\n\tread fence:nvidia 0000:18:00.0 seq 3 unsignalled\n\tAttached Devices:\n\t0000:18:00.0\nTotal 1 devices attached\n\n" +
		"02097152\t00080002\t00080007\t00000002\tnv_dmabuf\t00021003\t<none>\n\tAttached Devices:\n\t0000:18:00.0\nTotal 1 devices attached\n\n" +
		"1073741824\t00080002\t00080007\t00000002\tnv_dmabuf\t00021004\t<none>\n" +
		"\twrite fence:nvidia nvidia.gpu seq 3 unsignalled\n\tAttached Devices:\n\t0000:18:00.0\n\t0000:2a:00.1\nTotal 2 devices attached\n\n" +
		"00065536\t00080002\t00080007\t00000001\tnvidia\t00021005\t<none>\n\tAttached Devices:\nTotal 0 devices attached\n\n" +
		"\nTotal 4 objects, 1082198016 bytes\n",
}

var wantBuffers = []DMABuf{
	{2097152, []string{"0000:18:00.0"}}, {1073741824, []string{"0000:18:00.0", "0000:2a:00.1"}}, {65536, nil},
}

// kept is what is read of a list.
func kept(text string) string { return string(sysread.KeepLines([]byte(text), keepBuffers())) }

func TestParseBuffers(t *testing.T) {
	for kernel, text := range bufferLists {
		got, err := parseBuffers([]byte(kept(text)))
		if err != nil || !reflect.DeepEqual(got, wantBuffers) {
			t.Errorf("%s: %+v, %v", kernel, got, err)
		}
		for _, foreign := range []string{"drm", "screen", "fence", "i915", "objects"} {
			if strings.Contains(kept(text), foreign) {
				t.Errorf("%s: %q of others is kept", kernel, foreign)
			}
		}
		if again := kept(kept(text)); again != kept(text) {
			t.Errorf("%s: of a recording other lines are kept: %q", kernel, again)
		}
	}
	got, err := parseBuffers([]byte(kept("\nDma-buf Objects:\nsize    \tflags   \tmode    \tcount   \texp_name\tino     \tname\n\nTotal 0 objects, 0 bytes\n")))
	if err != nil || got == nil || len(got) > 0 {
		t.Errorf("no buffers: %+v, %v", got, err)
	}
	for _, text := range []string{"", "nonsense\n", "02097152\t00080002\t00080007\t00000002\tnvidia\t00021003\t\n"} {
		if got, err := parseBuffers([]byte(kept(text))); !errors.Is(err, sysread.ErrInvalid) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// TestBufferNames: a process gives its buffers names of 31 bytes, whatever they hold.
// No name makes a buffer of another one's, or hides or adds a device.
func TestBufferNames(t *testing.T) {
	const most = 31 // DMA_BUF_NAME_LEN less the zero byte
	for _, name := range []string{
		"x\n00000001\t00000000\t00000000\t00000001\tnvidia", "\n00000001\t0\t0\t1\tnvidia\t1\tx\n", "\nTotal 0 devices attached\n", "\n\tAttached Devices:\n\t0000:aa", "\nDma-buf Objects:\n",
		"\n\n\n\n\t\t\t", "\t\tnvidia",
	} {
		name = name[:min(len(name), most)]
		for _, exporter := range []string{"nvidia", "udmabuf"} {
			text := "\nDma-buf Objects:\n02097152\t00080002\t00080007\t00000002\t" + exporter + "\t00021003\t" + name +
				"\n\tAttached Devices:\n\t0000:18:00.0\nTotal 1 devices attached\n\n\nTotal 1 objects, 2097152 bytes\n"
			want := []DMABuf{{2097152, []string{"0000:18:00.0"}}}
			if exporter != "nvidia" {
				want = []DMABuf{}
			}
			if got, err := parseBuffers([]byte(kept(text))); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%q of %s: %+v, %v", name, exporter, got, err)
			}
		}
	}
}

// FuzzBuffers: only what the list has is read, and what is kept of it says the same
// as what is kept of that.
func FuzzBuffers(f *testing.F) {
	for _, text := range bufferLists {
		f.Add([]byte(text))
	}
	f.Add([]byte("Dma-buf Objects:\n\tAttached Devices:\n\tx\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		once := sysread.KeepLines(slices.Clone(text), keepBuffers())
		buffers, err := parseBuffers(once)
		again, errAgain := parseBuffers(sysread.KeepLines(slices.Clone(once), keepBuffers()))
		if (err == nil) != (errAgain == nil) || !reflect.DeepEqual(buffers, again) {
			t.Errorf("%q: %+v, then %+v", text, buffers, again)
		}
		for _, buffer := range buffers {
			for _, device := range buffer.Attached {
				if !strings.Contains(string(text), "\t"+device) && !strings.Contains(string(text), device) {
					t.Errorf("%q is not in %q", device, text)
				}
			}
		}
		if len(buffers) > strings.Count(string(text), "\n")+1 {
			t.Errorf("%d buffers in %q", len(buffers), text)
		}
	})
}
