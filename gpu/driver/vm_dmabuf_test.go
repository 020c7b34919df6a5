package driver

import (
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"gdr_exporter/collector/sysread"
)

// Requests of /dev/udmabuf (include/uapi/linux/udmabuf.h) and of a dma-buf
// (include/uapi/linux/dma-buf.h).
const (
	udmabufCreate = 0x40187542
	dmaBufSetName = 0x40086201
)

func ioctl(t *testing.T, fd int, request uintptr, argument unsafe.Pointer) int {
	t.Helper()
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument))
	if errno != 0 {
		t.Fatalf("ioctl %#x: %v", request, errno)
	}
	return int(n)
}

// realBuffer makes a dma-buf of host memory with a name, which is there until close
// is called.
func realBuffer(t *testing.T, size int64, name string) (closed func()) {
	t.Helper()
	device, err := unix.Open("/dev/udmabuf", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("this kernel makes no dma-bufs of host memory: /dev/udmabuf: %v", err)
	}
	defer unix.Close(device)
	memory, err := unix.MemfdCreate("gdrtest", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(memory)
	if err := unix.Ftruncate(memory, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(memory), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	create := struct {
		memory, flags uint32
		offset, size  uint64
	}{uint32(memory), 1, 0, uint64(size)}
	buffer := ioctl(t, device, udmabufCreate, unsafe.Pointer(&create))
	text := append([]byte(name), 0)
	ioctl(t, buffer, dmaBufSetName, unsafe.Pointer(&text[0]))
	runtime.KeepAlive(text)
	return func() { _ = unix.Close(buffer) }
}

// The list of dma-bufs as a real kernel writes it, whatever names its buffers have.
// That kernel has no GPU: buffers of host memory are taken for ours.
func TestInKernelDMABufs(t *testing.T) {
	inKernel(t)
	const size = 3 << 20
	now := time.Now()
	read := func() sysread.Maybe[[]DMABuf] {
		t.Helper()
		now = now.Add(time.Hour)
		p := &pass{Reader: NewReader(Options{Sysfs: "/sys"}), now: now}
		reading := Reading{Loaded: sysread.Some(true)}
		p.dmaBufs(&reading)
		for _, err := range p.errs {
			t.Error(err)
		}
		return reading.DMABufs
	}
	if got := read(); !got.Known || len(got.Value) > 0 {
		t.Errorf("none: %+v", got)
	}
	closed := realBuffer(t, size, "x\n\tAttached Devices:\n\t0000:aa")
	defer closed()
	text, err := sysread.System.ReadLines("/sys/"+bufinfo, maxBufinfo, nil)
	if err != nil || !strings.Contains(string(text), "udmabuf") {
		t.Fatalf("%q, %v", text, err)
	}
	t.Logf("%s", text)
	if got := read(); !got.Known || len(got.Value) > 0 {
		t.Errorf("a buffer of others: %+v", got)
	}
	exporters["udmabuf"] = true
	defer delete(exporters, "udmabuf")
	if got := read(); len(got.Value) != 1 || got.Value[0].Bytes != size || len(got.Value[0].Attached) > 0 {
		t.Errorf("%+v", got)
	}
	// Anybody but root: it is not known, and why is said.
	unprivileged(t, func() {
		p := &pass{Reader: NewReader(Options{Sysfs: "/sys"}), now: now}
		reading := Reading{Loaded: sysread.Some(true)}
		p.dmaBufs(&reading)
		if reading.DMABufs.Known || len(p.errs) != 1 || !sysread.Refused(reading.DMABufsErr) {
			t.Errorf("%+v, %v, %v", reading.DMABufs, reading.DMABufsErr, p.errs)
		}
	})
}

// unprivileged calls f as nobody. All threads change, so that whichever reads does
// so as nobody too.
func unprivileged(t *testing.T, f func()) {
	t.Helper()
	const nobody = 65534
	if err := syscall.Setresuid(-1, nobody, 0); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setresuid(-1, 0, 0); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}
