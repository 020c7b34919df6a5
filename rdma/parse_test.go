package rdma

import "testing"

func TestParseRate(t *testing.T) {
	for text, want := range map[string]Rate{
		"400 Gb/sec (4X NDR)":   {50_000_000_000, 4, "NDR"},
		"2.5 Gb/sec (1X SDR)":   {312_500_000, 1, "SDR"},
		"10 Gb/sec (4X)":        {1_250_000_000, 4, ""},
		"100 Gb/sec (2X HDR)":   {12_500_000_000, 2, "HDR"},
		"2400 Gb/sec (12X XDR)": {300_000_000_000, 12, "XDR"},
		"40 Gb/sec (4X FDR10)":  {5_000_000_000, 4, "FDR10"},
		"800 Gb/sec":            {100_000_000_000, 0, ""},
		"0 Gb/sec (?X ?)":       {0, 0, ""},
	} {
		if got, err := parseRate(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "Gb/sec", "fast", "-10 Gb/sec (4X)", "1e3 Gb/sec (4X)", "10 Mb/sec", "99999999999 Gb/sec (4X NDR)", "1.7 Gb/sec"} {
		if got, err := parseRate(text); err == nil {
			t.Errorf("%q is taken as %+v", text, got)
		}
	}
}

func TestParseStateID(t *testing.T) {
	for text, want := range map[string]int{"4: ACTIVE": 4, "0: NOP": 0, "6: UNKNOWN": 6, "7: Phy Test": 7, "9: <unknown>": 9, "3": 3} {
		if got, err := parseStateID([]byte(text)); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", ": ACTIVE", "ACTIVE", "-1: DOWN", "999: X", "4 ACTIVE"} {
		if got, err := parseStateID([]byte(text)); err == nil {
			t.Errorf("%q is taken as %d", text, got)
		}
	}
}

func TestParseGUID(t *testing.T) {
	for text, want := range map[string]string{
		"946d:ae03:0012:3456": "946d:ae03:0012:3456",
		"0000:0000:0000:0000": "",
	} {
		if got, err := parseGUID(text); err != nil || got != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "946dae0300123456", "946d:ae03:0012:345g", "946d-ae03-0012-3456", "946d:ae03:0012:3456:"} {
		if got, err := parseGUID(text); err == nil {
			t.Errorf("%q is taken as %q", text, got)
		}
	}
	if got, err := guidOfGID("fe80:0000:0000:0000:946d:ae03:0012:3456"); err != nil || got != "946d:ae03:0012:3456" {
		t.Errorf("port GUID %q, %v", got, err)
	}
}

func TestParseHex(t *testing.T) {
	if got, err := parseHex("0xffff"); err != nil || got != 65535 {
		t.Errorf("%d, %v", got, err)
	}
	for _, text := range []string{"", "17", "0x", "0xg", "0x1ffffffff"} {
		if got, err := parseHex(text); err == nil {
			t.Errorf("%q is taken as %d", text, got)
		}
	}
}

func FuzzParsers(f *testing.F) {
	for _, seed := range []string{"400 Gb/sec (4X NDR)", "4: ACTIVE", "946d:ae03:0012:3456", "0x1a", "fe80:0000:0000:0000:946d:ae03:0012:3456", "2.5 Gb/sec (1X SDR)"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if rate, err := parseRate(text); err == nil && rate.Lanes < 0 {
			t.Errorf("%q: %d lanes", text, rate.Lanes)
		}
		if id, err := parseStateID([]byte(text)); err == nil && (id < 0 || id > 255) {
			t.Errorf("%q: state %d", text, id)
		}
		if guid, err := parseGUID(text); err == nil && guid != "" && guid != text {
			t.Errorf("%q: GUID %q", text, guid)
		}
		_, _ = parseHex(text)
		_, _ = guidOfGID(text)
	})
}
