package targets

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]string{
		"node1":                    "node1:10480",
		"Node1.Example.ORG.:99":    "node1.example.org:99",
		"node_1-a":                 "node_1-a:10480",
		"10.0.0.1":                 "10.0.0.1:10480",
		"10.0.0.1:65535":           "10.0.0.1:65535",
		"::ffff:10.0.0.1":          "10.0.0.1:10480",
		"[::ffff:10.0.0.1]:7":      "10.0.0.1:7",
		"2001:DB8:0::1":            "[2001:db8::1]:10480",
		"[2001:db8::1]":            "[2001:db8::1]:10480",
		"[2001:db8::1]:5":          "[2001:db8::1]:5",
		"1.node":                   "1.node:10480",
		strings.Repeat("a", 63):    strings.Repeat("a", 63) + ":10480",
		"xn--bcher-kva.example:80": "xn--bcher-kva.example:80",
	} {
		got, err := ParseAddress(text, DefaultPort)
		if err != nil || got.Address() != want {
			t.Errorf("%q: %q, %v; not %q", text, got.Address(), err, want)
			continue
		}
		again, err := ParseAddress(got.Address(), 1)
		if err != nil || again.Address() != want {
			t.Errorf("%q: read again: %q, %v", text, again.Address(), err)
		}
	}
}

func TestParseAddressRefuses(t *testing.T) {
	for _, text := range []string{
		"", " ", "a b", "node1:0", "node1:65536", "node1:-1", "node1:http", "node1:", ":10480", "http://node1", "10.0.0.0/8",
		"10.0.0.256", "10.0.0", "12", "0.0.0.0", "::", "ff02::1", "224.0.0.1", "fe80::1%eth0", "[fe80::1%eth0]:5", "[::1", "::1]:5",
		"[]:5", "[node1:5", "a..b", ".a", "-a", "a-", "a.-b", strings.Repeat("a", 64), strings.Repeat("a.", 130) + "a", "a:b:c", "nöde", "a\n",
	} {
		if got, err := ParseAddress(text, DefaultPort); err == nil {
			t.Errorf("%q: taken as %s", text, got.Address())
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestLabels(t *testing.T) {
	target := Target{Host: "10.0.0.1", Labels: map[string]string{
		"node": "gpu-07", "rail_0": "mlx5_0", "rail_1": "mlx5_1/2", "rail_b": "mlx5_4", "rail_a": "mlx5_4/1", "rail_": "mlx5_9", "rails": "mlx5_9",
	}}
	for _, c := range []struct {
		device string
		port   int
		want   string
	}{
		{"mlx5_0", 1, "0"}, {"mlx5_0", 2, ""}, {"mlx5_1", 1, ""}, {"mlx5_1", 2, "1"}, {"mlx5_4", 1, "a"}, {"mlx5_9", 1, ""}, {"", 1, ""},
	} {
		if got := target.Rail(c.device, c.port); got != c.want {
			t.Errorf("%s port %d: rail %q, not %q", c.device, c.port, got, c.want)
		}
	}
	if target.Name() != "gpu-07" || (Target{Host: "10.0.0.1"}).Name() != "10.0.0.1" {
		t.Error("the label node names it, and else the host")
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, text := range []string{"node1:10480", "[2001:db8::1]:5", "10.0.0.1", "::ffff:1.2.3.4", "a.b.", "[", "]:", "fe80::1%a"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		target, err := ParseAddress(text, DefaultPort)
		if err != nil {
			return
		}
		if target.Host == "" || target.Port == 0 || target.Addr.IsValid() != isAddr(target.Host) {
			t.Fatalf("%q: %+v", text, target)
		}
		again, err := ParseAddress(target.Address(), 1)
		if err != nil || again.Address() != target.Address() {
			t.Fatalf("%q: %s, which reads as %s, %v", text, target.Address(), again.Address(), err)
		}
	})
}

func isAddr(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}
