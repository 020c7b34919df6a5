package affinity

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"gdr_exporter/collector/sysread"
	"gdr_exporter/rdma/rdmatest"
)

func TestParseSpeed(t *testing.T) {
	for text, want := range map[string]float64{
		"2.5 GT/s PCIe": 2.5, "5.0 GT/s PCIe": 5, "8.0 GT/s PCIe": 8, "16.0 GT/s PCIe": 16, "32.0 GT/s PCIe": 32, "64.0 GT/s PCIe": 64, "128.0 GT/s PCIe": 128,
		"2.5 GT/s": 2.5, "5 GT/s": 5, "8 GT/s": 8, "16 GT/s": 16, "32 GT/s": 32, // up to Linux 5.6
		"Unknown": 0, "Unknown speed": 0, // no value
		"": -1, "8": -1, "8.0": -1, "-8.0 GT/s PCIe": -1, "0 GT/s": -1, "NaN GT/s": -1, "Inf GT/s": -1, "1e9 GT/s": -1, "8.0 MT/s": -1, "GT/s 8.0": -1,
	} {
		got, err := parseSpeed(text)
		if got.Known != (want > 0) || got.Known && got.Value != want || (err != nil) != (want < 0) || err != nil && !errors.Is(err, sysread.ErrInvalid) {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
}

func TestParseWidth(t *testing.T) {
	for text, want := range map[string]int{
		"1": 1, "2": 2, "4": 4, "8": 8, "12": 12, "16": 16, "32": 32, "0": 0, "63": 0, "255": 0,
		"": -1, "x16": -1, "-1": -1, "33": -1, "256": -1, "16.0": -1, "99999999999999999999": -1,
	} {
		got, err := parseWidth(text)
		if got.Known != (want > 0) || got.Known && got.Value != want || (err != nil) != (want < 0) || err != nil && !errors.Is(err, sysread.ErrInvalid) {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
}

func TestBytesPerSecond(t *testing.T) {
	for _, test := range []struct {
		speed float64
		width int
		want  float64
	}{
		{2.5, 1, 250e6}, {5, 16, 8e9}, {8, 16, 15.753846e9}, {16, 8, 15.753846e9}, {32, 16, 63.015384e9}, {64, 16, 128e9}, {128, 16, 256e9},
	} {
		got := bytesPerSecond(sysread.Some(test.speed), sysread.Some(test.width))
		if !got.Known || math.Abs(got.Value-test.want) > 1e3 {
			t.Errorf("%v GT/s x%d carries %v, want %v", test.speed, test.width, got, test.want)
		}
	}
	if bytesPerSecond(sysread.Maybe[float64]{}, sysread.Some(16)).Known || bytesPerSecond(sysread.Some(8.), sysread.Maybe[int]{}).Known {
		t.Error("known of what is not")
	}
}

func TestParseAER(t *testing.T) {
	long := strings.Repeat("X", 300)
	for name, test := range map[string]struct {
		text  string
		total int // -1 unknown
		types []AERCount
		bad   bool
	}{
		"today":            {"RxErr 0\nBadTLP 2\nTOTAL_ERR_COR 2\n", 2, []AERCount{{"RxErr", 0}, {"BadTLP", 2}}, false},
		"names with space": {"Receiver Error 1\nData Link Protocol 3\nTOTAL_ERR_NONFATAL 4\n", 4, []AERCount{{"Receiver Error", 1}, {"Data Link Protocol", 3}}, false},
		"unnamed bit":      {"aer_correctable_error_bit[30] 7\nTOTAL_ERR_COR 7\n", 7, []AERCount{{"aer_correctable_error_bit[30]", 7}}, false},
		"64 bits":          {"DLP 18446744073709551615\nTOTAL_ERR_FATAL 18446744073709551615\n", -2, []AERCount{{"DLP", math.MaxUint64}}, false},
		"total is its own": {"RxErr 5\nTOTAL_ERR_COR 3\n", 3, []AERCount{{"RxErr", 5}}, false},
		"total alone":      {"TOTAL_ERR_COR 9\n", 9, nil, false},
		"no total":         {"RxErr 5\n", -1, []AERCount{{"RxErr", 5}}, false},
		"long name":        {long + " 4\nTOTAL_ERR_COR 4", 4, []AERCount{{long, 4}}, false},
		"one bad line":     {"RxErr five\nBadTLP 2\nTOTAL_ERR_COR 2\n", 2, []AERCount{{"BadTLP", 2}}, true},
		"negative":         {"RxErr -1\nTOTAL_ERR_COR 0\n", 0, nil, true},
		"too large":        {"RxErr 18446744073709551616\nTOTAL_ERR_COR 0\n", 0, nil, true},
		"bad total":        {"RxErr 1\nTOTAL_ERR_COR many\n", -1, []AERCount{{"RxErr", 1}}, true},
		"empty":            {"", -1, nil, true},
		"one word":         {"garbage", -1, nil, true},
	} {
		got, err := parseAER(test.text)
		total := -1
		if got.Total.Known {
			total = int(min(got.Total.Value, math.MaxInt64))
		}
		if test.total == -2 {
			test.total = math.MaxInt64
		}
		if total != test.total || !reflect.DeepEqual(got.Types, test.types) || (err != nil) != test.bad || err != nil && !errors.Is(err, sysread.ErrInvalid) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	many, err := parseAER(strings.Repeat("Name 1\n", 5000))
	if len(many.Types) != maxAERTypes || err != nil {
		t.Errorf("%d types, %v", len(many.Types), err)
	}
}

// bytesOf serves a configuration space of these bytes and counts the reads.
func bytesOf(content string, reads *int) space {
	return func(to []byte, offset int) (int, error) {
		if *reads++; offset >= len(content) {
			return 0, nil
		}
		return copy(to, content[offset:]), nil
	}
}

func u16(v uint16) *uint16 { return &v }

func TestReadConfig(t *testing.T) {
	full := rdmatest.ConfigSpace{Vendor: 0x15b3, Device: 0x1021, PortType: 6, DevCtl: 0x5937, ACS: u16(0x5d), ATS: u16(0x8000)}
	sized := func(n int) string { c := full; c.Size = n; return c.Bytes() }
	edit := func(at int, bytes ...byte) string {
		b := []byte(full.Bytes())
		copy(b[at:], bytes)
		return string(b)
	}
	express := Config{PortType: sysread.Some(6), MaxPayload: sysread.Some(256), MaxReadRequest: sysread.Some(4096), RelaxedOrdering: sysread.Some(true)}
	all := express
	all.ACS, all.ATS = sysread.Some[uint16](0x5d), sysread.Some(true)
	noACS := express
	noACS.NoACS = true
	onlyATS := noACS
	onlyATS.ATS = sysread.Some(false)
	extended := all
	extended.PortType, extended.MaxPayload, extended.MaxReadRequest, extended.RelaxedOrdering = Config{}.PortType, Config{}.MaxPayload, Config{}.MaxReadRequest, Config{}.RelaxedOrdering
	reserved := all
	reserved.MaxPayload, reserved.MaxReadRequest, reserved.RelaxedOrdering = Config{}.MaxPayload, Config{}.MaxReadRequest, sysread.Some(false)
	yes, no := sysread.Some(true), sysread.Some(false)
	for name, test := range map[string]struct {
		content           string
		answers, readable sysread.Maybe[bool]
		config            Config
		bad               bool
	}{
		"full":                    {full.Bytes(), yes, yes, all, false},
		"without extended space":  {sized(256), yes, yes, express, false},
		"without privilege":       {sized(64), yes, no, Config{}, false},
		"off the bus":             {strings.Repeat("\xff", 4096), no, Config{}.ATS, Config{}, false},
		"off it, no privilege":    {strings.Repeat("\xff", 64), no, Config{}.ATS, Config{}, false},
		"no ACS":                  {rdmatest.ConfigSpace{PortType: 6, DevCtl: 0x5937}.Bytes(), yes, yes, noACS, false},
		"ATS off, no ACS":         {rdmatest.ConfigSpace{PortType: 6, DevCtl: 0x5937, ATS: u16(0x1f)}.Bytes(), yes, yes, onlyATS, false},
		"no capabilities":         {edit(0x06, 0, 0), yes, yes, extended, false},
		"pointer to nothing":      {edit(0x34, 0), yes, yes, extended, false},
		"pointer into header":     {edit(0x34, 0x10), yes, yes, extended, false},
		"capability is itself":    {edit(0x60, 0x01, 0x60), yes, yes, extended, false},
		"capabilities in circle":  {edit(0x60, 0x01, 0x64, 0, 0, 0x05, 0x60), yes, yes, extended, false},
		"reserved sizes":          {edit(0x78, 0xe7&^0x10, 0x70), yes, yes, reserved, false},
		"extended in circle":      {edit(0x100, 0x01, 0x00, 0x02, 0x10), yes, yes, express, false},
		"extended is empty":       {edit(0x100, 0, 0, 0, 0), yes, yes, noACS, false},
		"extended does not exist": {edit(0x100, 0xff, 0xff, 0xff, 0xff), yes, yes, express, false},
		"extended ends low":       {edit(0x100, 0x01, 0x00, 0x02, 0x08), yes, yes, noACS, false},
		"ACS reads all ones":      {edit(0x148+6, 0xff, 0xff), yes, yes, func() Config { c := all; c.ACS = Config{}.ACS; return c }(), false},
		"empty":                   {"", Config{}.ATS, Config{}.ATS, Config{}, true},
		"short":                   {sized(17), Config{}.ATS, Config{}.ATS, Config{}, true},
	} {
		reads := 0
		got, err := readConfig(bytesOf(test.content, &reads))
		if got.answers != test.answers || got.readable != test.readable || got.config != test.config || (err != nil) != test.bad {
			t.Errorf("%s:\n got %+v %v\nwant %+v %+v %+v", name, got, err, test.answers, test.readable, test.config)
		}
		if reads > maxCapabilities+maxExtended+8 {
			t.Errorf("%s: %d reads", name, reads)
		}
	}
	reads := 0
	if _, err := readConfig(bytesOf(full.Bytes(), &reads)); err != nil || reads > 12 {
		t.Errorf("%d reads of an ordinary function, %v", reads, err)
	}
}

// TestReadConfigFails: a failing read is an error, and what was read before it stands.
func TestReadConfigFails(t *testing.T) {
	content := rdmatest.ConfigSpace{PortType: 6, DevCtl: 0x5937, ACS: u16(0x1d), ATS: u16(0)}.Bytes()
	reads := 0
	if _, err := readConfig(bytesOf(content, &reads)); err != nil {
		t.Fatal(err)
	}
	for failing := range reads {
		reads = 0
		serve := bytesOf(content, new(int))
		got, err := readConfig(func(to []byte, offset int) (int, error) {
			if reads++; reads-1 == failing {
				return 0, syscall.EIO
			}
			return serve(to, offset)
		})
		if !errors.Is(err, syscall.EIO) || got.config.NoACS || reads != failing+1 {
			t.Errorf("read %d: %+v, %v after %d reads", failing, got, err, reads)
		}
	}
}

func TestACSText(t *testing.T) {
	for want, c := range map[string]Config{
		"unknown": {}, "none": {NoACS: true},
		"SrcValid ReqRedir CmpltRedir UpstreamFwd":                                 {ACS: sysread.Some[uint16](0x1d)},
		"SrcValid TransBlk ReqRedir CmpltRedir UpstreamFwd EgressCtrl DirectTrans": {ACS: sysread.Some[uint16](0xff)},
	} {
		if got := c.ACSText(); got != want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	if zero := (Config{ACS: sysread.Some[uint16](0)}); zero.ACSText() != "none" || zero.Redirects() != sysread.Some(false) {
		t.Error("all bits clear")
	}
	for bits := range uint16(0x80) {
		c := Config{ACS: sysread.Some(bits)}
		if got := c.Redirects(); got != sysread.Some(bits&0x0c != 0) {
			t.Errorf("%#x redirects: %v", bits, got)
		}
	}
}

func TestParsePlace(t *testing.T) {
	for path, want := range map[string]place{
		"devices/pci0000:15/0000:15:01.0/0000:17:00.0":                                        {"0000:17:00.0", "devices/pci0000:15/0000:15:01.0/0000:17:00.0", "pci0000:15", []string{"0000:15:01.0"}},
		"devices/pci0000:15/0000:15:01.0/0000:17:00.0/mlx5_core.sf.4/infiniband/mlx5_9":       {"0000:17:00.0", "devices/pci0000:15/0000:15:01.0/0000:17:00.0", "pci0000:15", []string{"0000:15:01.0"}},
		"devices/pci0000:00/0000:00:04.0":                                                     {"0000:00:04.0", "devices/pci0000:00/0000:00:04.0", "pci0000:00", nil},
		"devices/pci0000:64/0000:64:05.5/pci10000:00/10000:00:02.0/10000:01:00.0":             {"10000:01:00.0", "devices/pci0000:64/0000:64:05.5/pci10000:00/10000:00:02.0/10000:01:00.0", "pci10000:00", []string{"10000:00:02.0"}},
		"devices/LNXSYSTM:00/LNXSYBUS:00/VMBUS:00/00000001-7870-47b5/pci7870:00/7870:00:00.0": {"7870:00:00.0", "devices/LNXSYSTM:00/LNXSYBUS:00/VMBUS:00/00000001-7870-47b5/pci7870:00/7870:00:00.0", "pci7870:00", nil},
		"devices/platform/soc/0000:01:00.0":                                                   {"0000:01:00.0", "devices/platform/soc/0000:01:00.0", "", nil},
	} {
		got, ok := parsePlace(path)
		if !ok || got.address != want.address || got.dir != want.dir || got.hostBridge != want.hostBridge || fmt.Sprint(got.bridges) != fmt.Sprint(want.bridges) {
			t.Errorf("%s is %+v", path, got)
		}
	}
	for _, path := range []string{"", "/", "devices/virtual/infiniband/rxe0", "devices/pci0000:00", "0000:00:00.8/x", "devices/0000:0:00.0"} {
		if got, ok := parsePlace(path); ok {
			t.Errorf("%s is %+v", path, got)
		}
	}
}

func FuzzParseLink(f *testing.F) {
	for _, seed := range []string{"32.0 GT/s PCIe", "8 GT/s", "Unknown", "16", "255", "63", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		speed, err := parseSpeed(text)
		if speed.Known && (err != nil || !(speed.Value > 0) || math.IsInf(speed.Value, 0)) {
			t.Errorf("%q: %v, %v", text, speed, err)
		}
		width, err := parseWidth(text)
		if width.Known && (err != nil || width.Value < 1 || width.Value > 32) {
			t.Errorf("%q: %v, %v", text, width, err)
		}
		if rate := bytesPerSecond(speed, width); rate.Known && !(rate.Value > 0) {
			t.Errorf("%q: %v", text, rate)
		}
	})
}

func FuzzParseAER(f *testing.F) {
	f.Add("RxErr 0\nBadTLP 2\nTOTAL_ERR_COR 2\n")
	f.Add("Receiver Error 1\naer_bit[3] 4\n")
	f.Add("\n \n\t0\n")
	f.Fuzz(func(t *testing.T, text string) {
		counts, err := parseAER(text)
		if len(counts.Types) > maxAERTypes {
			t.Errorf("%d types", len(counts.Types))
		}
		if err == nil && len(counts.Types) == 0 && !counts.Total.Known {
			t.Errorf("%q: nothing, and no error", text)
		}
		for _, one := range counts.Types {
			if one.Type == "" || one.Type != strings.TrimSpace(one.Type) {
				t.Errorf("%q: type %q", text, one.Type)
			}
		}
	})
}

func FuzzReadConfig(f *testing.F) {
	f.Add(rdmatest.ConfigSpace{PortType: 6, DevCtl: 0x5937, ACS: u16(0x1d), ATS: u16(0)}.Bytes(), 0x34, 0x60)
	f.Add(strings.Repeat("\xff", 4096), 0, 0)
	f.Add("", 0, 0)
	f.Fuzz(func(t *testing.T, content string, at, value int) {
		b := []byte(content)
		if at >= 0 && at+2 <= len(b) {
			binary.LittleEndian.PutUint16(b[at:], uint16(value))
		}
		reads := 0
		got, err := readConfig(bytesOf(string(b), &reads))
		if reads > 2*maxCapabilities+2*maxExtended+8 {
			t.Errorf("%d reads", reads)
		}
		if (err != nil || !got.readable.Value) && got.config != (Config{}) {
			t.Errorf("%+v, %v", got, err)
		}
		if got.config.NoACS && got.config.ACS.Known {
			t.Errorf("%+v", got)
		}
		for _, size := range []sysread.Maybe[int]{got.config.MaxPayload, got.config.MaxReadRequest} {
			if size.Known && (size.Value < 128 || size.Value > 4096) {
				t.Errorf("size %v", size)
			}
		}
	})
}

func FuzzParsePlace(f *testing.F) {
	f.Add("devices/pci0000:15/0000:15:01.0/0000:17:00.0/infiniband/mlx5_0")
	f.Add("../..//pci0000:00")
	f.Fuzz(func(t *testing.T, path string) {
		p, ok := parsePlace(path)
		if !ok {
			return
		}
		if !addressPattern.MatchString(p.address) || !strings.HasPrefix(path, p.dir) {
			t.Errorf("%q: %+v", path, p)
		}
		for i := range p.bridges {
			if up := p.above(i); up.address != p.bridges[i] {
				t.Errorf("%q: %+v", path, up)
			}
		}
	})
}
