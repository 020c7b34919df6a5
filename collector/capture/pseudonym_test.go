package capture

import (
	"bytes"
	"strings"
	"testing"
)

func testKey(fill byte) []byte { return bytes.Repeat([]byte{fill}, KeySize) }

// TestPseudonymForms: what is replaced is of the same form, another one under each
// key, and what names nothing stays.
func TestPseudonymForms(t *testing.T) {
	p, other := newPseudonyms(testKey(1), nil), newPseudonyms(testKey(2), nil)
	for _, c := range []struct {
		kind kind
		text string
	}{
		{kindGUID, "946d:ae03:0012:3456\n"}, {kindGUID, "946d:aeff:fe12:3456"}, {kindGUID, "1234:5678:9abc:def0"},
		{kindGID, "fe80:0000:0000:0000:946d:ae03:0012:3456"}, {kindGID, "2001:0db8:0000:0001:946d:ae03:0012:3456"},
		{kindGID, "0000:0000:0000:0000:0000:ffff:c0a8:0102"},
		{kindMAC, "94:6d:ae:12:34:56\n"}, {kindMAC, "00:00:10:49:fe:80:00:00:00:00:00:00:94:6d:ae:03:00:12:34:56"},
		{kindUUID, "GPU-5c2f8b1e-1234-4abc-8def-0123456789ab"}, {kindUUID, "523a6f51215b4f4d9f9e1c1dd25e0a11"}, {kindUUID, "523A6F51-215B-4F4D-9F9E-1C1DD25E0A11"},
		{kindIP, "192.168.17.4"}, {kindIP, "fe80::966d:aeff:fe12:3456"}, {kindIP, "::ffff:192.168.17.4"}, {kindIP, "2001:db8::5"},
		{kindText, "cannot reach 2001:db8::5 of 94:6d:ae:12:34:56 at 192.168.17.4: GPU-5c2f8b1e-1234-4abc-8def-0123456789ab"},
		{kindText, "guid 0x946dae0300123456 refused"},
	} {
		got := p.of(c.kind, c.text)
		switch {
		case got == c.text:
			t.Errorf("%s %q is not replaced", c.kind, c.text)
		case got != p.of(c.kind, c.text):
			t.Errorf("%s %q is replaced differently each time", c.kind, c.text)
		case got == other.of(c.kind, c.text):
			t.Errorf("%s %q does not depend on the key", c.kind, c.text)
		case c.kind != kindIP && c.kind != kindText && shapeOf(got) != shapeOf(c.text):
			t.Errorf("%s %q has another form: %q", c.kind, c.text, got)
		}
	}
	for _, c := range []struct {
		kind kind
		text string
	}{
		{kindGUID, "0000:0000:0000:0000\n"}, {kindGUID, "ffff:ffff:ffff:ffff"}, {kindGID, strings.Repeat("0000:", 7) + "0000"},
		{kindMAC, "00:00:00:00:00:00"}, {kindMAC, "ff:ff:ff:ff:ff:ff"}, {kindUUID, strings.Repeat("0", 32)}, {kindIP, "0.0.0.0"}, {kindIP, "::1"},
		{kindGUID, ""}, {kindGUID, "\n"}, {kindUUID, "N/A"},
		{kindText, "0000:18:00.0 is at 12:34:56 in slot 3: version 28.41.1000, fw 96.00.A5.00.01"},
		{kindPath, "/sys/devices/pci0000:14/0000:14:01.0/0000:18:00.0"},
	} {
		if got := p.of(c.kind, c.text); got != c.text {
			t.Errorf("%s %q became %q", c.kind, c.text, got)
		}
	}
	// What has not the form may hold anything.
	for _, kind := range []kind{kindGUID, kindGID, kindMAC, kindUUID, kindIP} {
		if got := p.of(kind, "serial MT2243X00001\n"); strings.Contains(got, "MT22") {
			t.Errorf("%s: %q", kind, got)
		}
	}
}

// shapeOf has a 0 for each hexadecimal digit, in either case.
func shapeOf(text string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'f':
			return '0'
		case c >= 'A' && c <= 'F':
			return '0'
		}
		return c
	}, text)
}

// TestPseudonymRelations: what belongs together still does.
func TestPseudonymRelations(t *testing.T) {
	p := newPseudonyms(testKey(3), nil)
	guid := p.of(kindGUID, "946d:ae03:0012:3450")
	port := p.of(kindGUID, "946d:ae03:0012:3451")
	if guid[:18] != port[:18] || !strings.HasSuffix(port, "1") {
		t.Errorf("ports do not follow their device: %s, %s", guid, port)
	}
	if gid := p.of(kindGID, "fe80:0000:0000:0000:946d:ae03:0012:3451"); gid != "fe80:0000:0000:0000:"+port {
		t.Errorf("GID %s of port %s", gid, port)
	}
	if gid := p.of(kindGID, "fd00:0000:0000:0001:946d:ae03:0012:3451"); !strings.HasSuffix(gid, port) || !strings.HasPrefix(gid, "fd") {
		t.Errorf("GID %s of port %s", gid, port)
	}
	if text := p.of(kindText, "port 946d:ae03:0012:3451: 0x946dae0300123451."); text != "port "+port+": 0x"+strings.ReplaceAll(port, ":", "")+"." {
		t.Errorf("%s of port %s", text, port)
	}
	mac := strings.Split(p.of(kindMAC, "94:6d:ae:12:34:51"), ":")
	if want := mac[0] + mac[1] + ":" + mac[2] + "03:00" + mac[3] + ":" + mac[4] + mac[5]; port != want {
		t.Errorf("GUID %s of MAC address %v", port, mac)
	}
	local := p.of(kindGID, "fe80:0000:0000:0000:966d:aeff:fe12:3451")
	if !strings.HasSuffix(local, mac[2]+"ff:fe"+mac[3]+":"+mac[4]+mac[5]) {
		t.Errorf("GID %s of MAC address %v", local, mac)
	}
	mapped, four := p.of(kindGID, "0000:0000:0000:0000:0000:ffff:c0a8:0102"), p.of(kindIP, "::ffff:192.168.1.2")
	if !strings.HasPrefix(mapped, "0000:0000:0000:0000:0000:ffff:0a") || four != "::ffff:"+p.of(kindIP, "192.168.1.2") {
		t.Errorf("%s, %s", mapped, four)
	}
	if a, b := p.of(kindUUID, "GPU-5c2f8b1e-1234-4abc-8def-0123456789ab"), p.of(kindUUID, "5c2f8b1e12344abc8def0123456789ab"); strings.ReplaceAll(a[4:], "-", "") != b {
		t.Errorf("%s, %s", a, b)
	}
}

// TestPseudonymHost: the host's names are found as words, in any case, and not
// in other words; a name that paths are made of is left alone.
func TestPseudonymHost(t *testing.T) {
	p := newPseudonyms(testKey(4), []string{"Node17.example.org", "node17", "example.org", "", "nvidia", "localhost", "a", "node17", "1234567", "alpha"})
	if len(p.hosts) != 4 {
		t.Fatalf("%q", p.hosts)
	}
	text := "ib-node17 NODE17: node17.example.org, \xffnode17\xff ibnode17s0 alpha-1"
	got := p.of(kindPath, text)
	if strings.Contains(strings.ToLower(got), "node17") || strings.Contains(got, "example") || strings.Count(got, "host-") != 6 || strings.Count(got, "\xff") != 2 {
		t.Errorf("%q", got)
	}
	for _, text := range []string{"alphabet", "alpha1", "/sys/module/nvidia", "localhost", "1234567"} {
		if got := p.of(kindPath, text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}
