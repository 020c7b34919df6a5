package devlink

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"reflect"
	"syscall"
	"testing"
	"time"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/nlattr"
)

var start = time.Unix(1_800_000_000, 0)

// fake answers with messages or an error.
type fake struct {
	messages [][]byte
	err      error
	asked    int
	closed   bool
}

func (f *fake) Reporters(time.Time) ([][]byte, error) {
	f.asked++
	return f.messages, f.err
}

func (f *fake) Close() { f.closed = true }

func newTestReader(f *fake) *Reader {
	return NewReaderOf(func() (Conn, error) { return f, nil })
}

func u64(n uint64) []byte { return binary.NativeEndian.AppendUint64(nil, n) }

// message makes a message of the dump as the kernel's
// devlink_nl_health_reporter_fill does.
func message(bus, device string, port int, name string, state byte, errs, recoveries, dump uint64) []byte {
	b := nlattr.Append(nil, attrBus, append([]byte(bus), 0))
	b = nlattr.Append(b, attrDevice, append([]byte(device), 0))
	if port >= 0 {
		b = nlattr.Append(b, attrPort, binary.NativeEndian.AppendUint32(nil, uint32(port)))
	}
	in := nlattr.Append(nil, attrName, append([]byte(name), 0))
	in = nlattr.Append(in, attrState, []byte{state})
	in = nlattr.Append(in, attrErrors, u64(errs))
	in = nlattr.Append(in, attrRecoveries, u64(recoveries))
	in = nlattr.Append(in, 120, u64(180000)) // graceful period
	in = nlattr.Append(in, 121, []byte{1})   // auto recover
	if dump > 0 {
		in = nlattr.Append(in, 119, u64(12345)) // uptime of the dump
		in = nlattr.Append(in, attrDumpTimestamp, u64(dump))
	}
	return nlattr.Append(b, attrReporter|1<<15, in)
}

// mlx5 is the dump of a host with two mlx5 functions, a sub-function and a
// device without name.
func mlx5() [][]byte {
	const at = 1_799_999_000_000_000_000
	return [][]byte{
		message("pci", "0000:18:00.0", -1, "fw", StateHealthy, 2, 0, at),
		message("pci", "0000:18:00.0", -1, "fw_fatal", StateError, 1, 0, 0),
		message("pci", "0000:18:00.0", -1, "vnic", StateHealthy, 0, 0, 0),
		message("pci", "0000:18:00.0", 65535, "tx", StateHealthy, 5, 5, 0),
		message("pci", "0000:18:00.0", 65535, "rx", StateHealthy, 0, 0, 0),
		message("pci", "0000:18:00.0", 1, "tx", StateError, 3, 2, at),
		message("pci", "0000:3b:00.0", -1, "fw", StateHealthy, 0, 0, 0),
		message("auxiliary", "mlx5_core.sf.4", -1, "fw", StateHealthy, 0, 0, 0),
		nlattr.Append(nil, attrBus, []byte("pci\x00")),
		nil,
	}
}

func TestRead(t *testing.T) {
	f := &fake{messages: mlx5()}
	r := newTestReader(f)
	reading, errs := r.Read(start)
	if len(errs) > 0 || reading.Supported != sysread.Some(true) || len(reading.Reporters) != 8 {
		t.Fatalf("%+v, %v", reading, errs)
	}
	if port := reading.Reporters[3].Port; port != sysread.Some[uint64](65535) {
		t.Errorf("port %v", port)
	}
	functions := ByAddress(reading.Reporters)
	if len(functions) != 2 || len(functions["0000:3b:00.0"]) != 1 {
		t.Fatalf("%+v", functions)
	}
	one := sysread.Some[uint64]
	dump := sysread.Some(time.Unix(1_799_999_000, 0))
	reporter := func(name string, state int, errs, recoveries uint64, dump sysread.Maybe[time.Time]) Reporter {
		return Reporter{Bus: "pci", Device: "0000:18:00.0", Name: name, State: sysread.Some(state), Errors: one(errs), Recoveries: one(recoveries), LastDump: dump}
	}
	none := sysread.Maybe[time.Time]{}
	rx := reporter("rx", 0, 0, 0, none)
	rx.Port = one(65535)
	want := []Reporter{
		reporter("fw", 0, 2, 0, dump), reporter("fw_fatal", 1, 1, 0, none), rx,
		reporter("tx", 1, 8, 7, dump), reporter("vnic", 0, 0, 0, none),
	}
	if got := functions["0000:18:00.0"]; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	r.Close()
	if !f.closed {
		t.Error("not closed")
	}
}

// TestMissing: what a message does not say is unknown, also after merging.
func TestMissing(t *testing.T) {
	short := nlattr.Append(nil, attrBus, []byte("pci"))
	short = nlattr.Append(short, attrDevice, []byte("0000:18:00.0"))
	short = nlattr.Append(short, attrReporter, nlattr.Append(nil, attrName, []byte("tx")))
	odd := nlattr.Append(nil, attrName, []byte("tx"))
	odd = nlattr.Append(odd, attrState, []byte{1, 2, 3})
	odd = nlattr.Append(odd, attrDumpTimestamp, u64(1<<63))
	odd = nlattr.Append(odd, 999, []byte("future"))
	r, is := Decode(short)
	if !is || r.State.Known || r.Errors.Known || r.Recoveries.Known || r.LastDump.Known {
		t.Errorf("%+v, %v", r, is)
	}
	r.attributesOf(odd)
	if r.State.Known || r.LastDump.Known {
		t.Errorf("%+v", r)
	}
	full, _ := Decode(message("pci", "0000:18:00.0", 1, "tx", 1, 3, 2, 0))
	for _, got := range ByAddress([]Reporter{r, full})["0000:18:00.0"] {
		if got.State.Known || got.Errors.Known || got.Recoveries.Known {
			t.Errorf("%+v", got)
		}
	}
}

func (r *Reporter) attributesOf(b []byte) {
	for kind, value := range nlattr.All(b) {
		r.attribute(kind, value)
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		err       error
		reported  int // errors in two hours of reads a minute apart
		asked     int // at most
		supported sysread.Maybe[bool]
	}{
		{syscall.ENOENT, 0, 5, sysread.Some(false)},
		{os.ErrNotExist, 0, 5, sysread.Some(false)},
		{syscall.EOPNOTSUPP, 0, 5, sysread.Some(false)},
		{syscall.EPERM, 4, 5, sysread.Maybe[bool]{}},
		{os.ErrDeadlineExceeded, 120, 120, sysread.Maybe[bool]{}},
		{syscall.EIO, 120, 120, sysread.Maybe[bool]{}},
	} {
		for _, dialFails := range []bool{false, true} {
			f := &fake{err: c.err}
			r := newTestReader(f)
			if dialFails {
				r.dial = func() (Conn, error) { f.asked++; return nil, c.err }
			}
			reported := 0
			for minute := range 120 {
				reading, errs := r.Read(start.Add(time.Duration(minute) * time.Minute))
				reported += len(errs)
				if reading.Supported != c.supported || len(reading.Reporters) > 0 {
					t.Fatalf("%v: %+v", c.err, reading)
				}
				for _, err := range errs {
					if !errors.Is(err, c.err) || err.Source != "devlink" {
						t.Errorf("%v: %v", c.err, err)
					}
				}
			}
			if reported != c.reported || f.asked > c.asked {
				t.Errorf("%v: %d errors, asked %d times", c.err, reported, f.asked)
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range mlx5() {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, is := Decode(body)
		if is && (r.Name == "" || r.Bus == "" || r.Device == "") {
			t.Errorf("%+v", r)
		}
		ByAddress([]Reporter{r, r})
	})
}

// TestInKernel compares with devlink health show on a real kernel; it also
// runs without privilege.
//
//	go test -c -o devlink.test ./rdma/devlink
//	vmtest --module rdma/netdev/testdata/module/gdrtest_netdev \
//		--env GDR_IN_KERNEL=1 -- ./devlink.test -test.run InKernel
//
// Without --module the kernel has no reporters.
func TestInKernel(t *testing.T) {
	if os.Getenv("GDR_IN_KERNEL") == "" {
		t.Skip("runs in the virtual machine that TestKernel of cmd/gdr_exporter boots")
	}
	const parameters = "/sys/module/gdrtest_netdev/parameters/"
	if os.Geteuid() == 0 {
		_ = os.WriteFile(parameters+"errors", []byte("3"), 0o200)
		_ = os.WriteFile(parameters+"fatal", []byte("1"), 0o200)
	}
	r := NewReader()
	defer r.Close()
	reading, errs := r.Read(time.Now())
	for _, err := range errs {
		t.Error(err)
	}
	again, errs := r.Read(time.Now())
	if len(errs) > 0 || !reflect.DeepEqual(again.Reporters, reading.Reporters) {
		t.Errorf("second read: %+v, %v", again, errs)
	}
	t.Logf("devlink %v, %d reporters", reading.Supported, len(reading.Reporters))
	if os.Geteuid() != 0 {
		return
	}
	compare(t, reading.Reporters)
	c := exec.Command("/proc/self/exe", "-test.run", "^TestInKernel$", "-test.v")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("without privilege: %v\n%s", err, out)
	}
}

// compare compares with devlink health show.
func compare(t *testing.T, reporters []Reporter) {
	t.Helper()
	out, err := exec.Command("devlink", "-j", "health", "show").Output()
	if err != nil {
		t.Fatal(err)
	}
	var shown struct {
		Health map[string][]struct {
			Reporter, State string
			Error, Recover  uint64
			Date            string `json:"last_dump_date"`
			Time            string `json:"last_dump_time"`
		}
	}
	if err := json.Unmarshal(out, &shown); err != nil {
		t.Fatal(err)
	}
	count := 0
	for handle, of := range shown.Health {
		for _, want := range of {
			count++
			for _, got := range reporters {
				if got.Bus+"/"+got.Device != handle || got.Name != want.Reporter {
					continue
				}
				state := map[int]string{StateHealthy: "healthy", StateError: "error"}[got.State.Value]
				if state != want.State || got.Errors.Value != want.Error || got.Recoveries.Value != want.Recover {
					t.Errorf("%+v, devlink says %+v", got, want)
				}
				if dump := got.LastDump.Value; want.Date != "" && dump.Format("2006-01-02 15:04:05") != want.Date+" "+want.Time {
					t.Errorf("dump at %v, devlink says %s %s", dump, want.Date, want.Time)
				}
				t.Logf("%s %s: %s, %d errors, %d recoveries", handle, got.Name, state, got.Errors.Value, got.Recoveries.Value)
			}
		}
	}
	if count != len(reporters) {
		t.Errorf("devlink shows %d reporters, read %d: %s", count, len(reporters), out)
	}
}

// TestEncode: what is encoded is decoded as the same, whether values are known
// or not.
func TestEncode(t *testing.T) {
	for _, want := range []Reporter{
		{Bus: "pci", Device: "0000:18:00.0", Name: "fw"},
		{Bus: "pci", Device: "0000:18:00.0", Name: "tx", Port: sysread.Some(uint64(65535)), State: sysread.Some(1), Errors: sysread.Some(uint64(1 << 63)),
			Recoveries: sysread.Some(uint64(0)), LastDump: sysread.Some(time.Unix(1_799_999_000, 123))},
	} {
		got, is := Decode(Encode(&want))
		if !is || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	for _, body := range mlx5() {
		want, is := Decode(body)
		if !is {
			continue
		}
		if got, is := Decode(Encode(&want)); !is || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}
