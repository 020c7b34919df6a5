package driver_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/gpu/driver"
	"gdr_exporter/gpu/driver/drivertest"
)

const bufinfo = "sys/kernel/debug/dma_buf/bufinfo"

const oneBuffer = "\nDma-buf Objects:\nsize    \tflags   \tmode    \tcount   \texp_name\tino     \tname\n" +
	"02097152\t00080002\t00080007\t00000002\tnvidia\t00021003\t<none>\n\tAttached Devices:\n\t0000:18:00.0\nTotal 1 devices attached\n\n\nTotal 1 objects, 2097152 bytes\n"

// debugFiles are a tree's files, with another answer for the list of dma-bufs.
type debugFiles struct {
	sysread.Files
	reads atomic.Int32
	lines func() ([]byte, error)
}

func (f *debugFiles) ReadLines(path string, limit int, keep func(line []byte) bool) ([]byte, error) {
	if !strings.HasSuffix(path, bufinfo) {
		return f.Files.ReadLines(path, limit, keep)
	}
	f.reads.Add(1)
	text, err := f.lines()
	return sysread.KeepLines(text, keep), err
}

// bufferHost is a host of the scene ofed and what is made of its list.
func bufferHost(t *testing.T, lines func() ([]byte, error)) (*host, *debugFiles) {
	t.Helper()
	h := scene(t, "ofed")
	files := &debugFiles{Files: sysread.System, lines: lines}
	options := drivertest.Options(h.dir)
	options.Files, options.SlowInterval = files, 0
	h.reader = driver.NewReader(options)
	return h, files
}

func TestDMABufs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := scene(t, "ofed")
		if r := h.read(); r.DMABufs.Known || !sysread.Absent(r.DMABufsErr) {
			t.Errorf("without debugfs: %+v, %v", r.DMABufs, r.DMABufsErr)
		}
		h.write(bufinfo, oneBuffer)
		h.later(time.Minute)
		r := h.read()
		if !r.DMABufs.Known || len(r.DMABufs.Value) != 1 || r.DMABufs.Value[0].Bytes != 2<<20 || r.DMABufs.Value[0].Attached[0] != "0000:18:00.0" || r.DMABufsRead != h.now || r.DMABufsErr != nil {
			t.Errorf("%+v", r.DMABufs)
		}
		// Without a driver nothing is asked, and nothing is known.
		none := scene(t, "none")
		none.write(bufinfo, oneBuffer)
		if r := none.read(); r.DMABufs.Known || r.DMABufsErr != nil {
			t.Errorf("without a driver: %+v, %v", r.DMABufs, r.DMABufsErr)
		}
	})
}

// TestDMABufsAreReadRarely: once a minute, whatever the slow interval is, and less
// often where it takes long.
func TestDMABufsAreReadRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := time.Duration(0)
		h, files := bufferHost(t, func() ([]byte, error) { time.Sleep(slow); return []byte(oneBuffer), nil })
		for range 60 {
			if r := h.read(); !r.DMABufs.Known {
				t.Fatal(r.DMABufsErr)
			}
			h.later(time.Second)
		}
		if n := files.reads.Swap(0); n != 1 {
			t.Errorf("read %d times in a minute", n)
		}
		slow = 300 * time.Millisecond
		h.read()
		slow = 0
		for range 17 { // 170 s < 600 * 300 ms
			h.later(10 * time.Second)
			if r := h.read(); !r.DMABufs.Known {
				t.Fatal(r.DMABufsErr)
			}
		}
		if n := files.reads.Load(); n != 1 {
			t.Errorf("read %d times within 170 s after a read of 300 ms", n)
		}
	})
}

// TestDMABufsRefused: that it may not be read is said, and seldom.
func TestDMABufsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, errno := range []syscall.Errno{syscall.EACCES, syscall.EPERM} {
			h, files := bufferHost(t, func() ([]byte, error) { return nil, errno })
			told := 0
			for range 60 {
				r, errs := h.reader.Read(h.now)
				if r.DMABufs.Known || !errors.Is(r.DMABufsErr, errno) {
					t.Fatalf("%+v, %v", r.DMABufs, r.DMABufsErr)
				}
				told += len(errs)
				h.later(time.Minute)
			}
			if n := int(files.reads.Load()); n != told || n > 6 {
				t.Errorf("%v: read %d times within an hour, told of %d times", errno, n, told)
			}
		}
	})
}

// TestDMABufsHang: what holds the list up holds up nothing else for longer than a
// moment, once, and one read only waits.
func TestDMABufsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		h, files := bufferHost(t, func() ([]byte, error) { <-gate; return []byte(oneBuffer), nil })
		began := time.Now()
		r, errs := h.reader.Read(h.now)
		if took := time.Since(began); took > 5*time.Second || r.DMABufs.Known || len(errs) != 1 || !errors.Is(r.DMABufsErr, syscall.ETIMEDOUT) || !r.Loaded.Value {
			t.Errorf("after %v: %+v, %v, %v", took, r.DMABufs, r.DMABufsErr, errs)
		}
		began = time.Now()
		for range 10 {
			h.later(time.Hour)
			if r := h.read(); r.DMABufs.Known || r.DMABufsErr == nil {
				t.Errorf("%+v", r.DMABufs)
			}
		}
		if took := time.Since(began); took > 5*time.Second || files.reads.Load() != 1 {
			t.Errorf("%d reads, %v", files.reads.Load(), took)
		}
		close(gate)
		for range 1000 {
			if r = h.read(); r.DMABufs.Known {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		if !r.DMABufs.Known || r.DMABufsErr != nil {
			t.Errorf("after the hang: %+v, %v", r.DMABufs, r.DMABufsErr)
		}
	})
}

// TestDMABufsTooLong: a list beyond the bound is not known by half.
func TestDMABufsTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := scene(t, "ofed")
		entry := oneBuffer[strings.Index(oneBuffer, "02097152"):strings.Index(oneBuffer, "\nTotal 1 objects")]
		h.write(bufinfo, oneBuffer+strings.Repeat(entry, 5<<20/len(entry)))
		r, errs := h.reader.Read(h.now)
		if r.DMABufs.Known || len(errs) != 1 || !errors.Is(r.DMABufsErr, sysread.ErrInvalid) {
			t.Errorf("%d buffers, %v, %v", len(r.DMABufs.Value), r.DMABufsErr, errs)
		}
	})
}
