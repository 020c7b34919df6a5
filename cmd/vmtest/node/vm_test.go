package node

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What follows runs in several virtual machines at once: see TestThreeNodes of vmtest.

// inNodes skips tests anywhere else, and gives them a time.
func inNodes(t *testing.T) context.Context {
	t.Helper()
	if os.Getenv("GDR_IN_KERNEL") == "" || Number() == 0 {
		t.Skip("runs in virtual machines: see vmtest's tests")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// meet is Barrier for tests.
func meet(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	if err := Barrier(ctx, name); err != nil {
		t.Fatal(err)
	}
}

// TestInNodesReach: each reaches each other one by every address and name.
func TestInNodesReach(t *testing.T) {
	ctx := inNodes(t)
	listener, err := net.Listen("tcp", ":7777")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(conn, "%s %s", Name(Number()), conn.RemoteAddr())
			_ = conn.Close()
		}
	}()
	meet(ctx, t, "listen")
	if Count() != 3 || Rails() != 2 {
		t.Fatalf("%d nodes, %d rails", Count(), Rails())
	}
	for n := 1; n <= Count(); n++ {
		if n == Number() {
			continue
		}
		for rail := range Rails() {
			for to, from := range map[string]string{
				Address(n, rail).String(): Address(Number(), rail).String(), Address6(n, rail).String(): Address6(Number(), rail).String(),
				fmt.Sprintf("%s-rail%d", Name(n), rail): Address(Number(), rail).String(),
			} {
				greets(ctx, t, to, Name(n), from)
			}
		}
		greets(ctx, t, Name(n), Name(n), Address(Number(), 0).String())
	}
	meet(ctx, t, "reached")
}

// greets expects a node to answer at an address, and to see this one's.
func greets(ctx context.Context, t *testing.T, address, name, own string) {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(address, "7777"))
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	var text [256]byte
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	size, _ := conn.Read(text[:])
	who, from, _ := strings.Cut(string(text[:size]), " ")
	if host, _, _ := net.SplitHostPort(from); who != name || host != own {
		t.Errorf("%s: %q says that this is %q, want %q and %q", address, who, host, name, own)
	}
}

// TestInNodesRDMA: devices are on the rails, and those beyond are a node's own.
func TestInNodesRDMA(t *testing.T) {
	inNodes(t)
	for device, netdev := range map[string]string{"rxe0": "rail0", "rxe1": "rail1", "rxe2": "veth2"} {
		if text, err := os.ReadFile("/sys/class/infiniband/" + device + "/parent"); err != nil || strings.TrimSpace(string(text)) != netdev {
			t.Errorf("%s is on %q, %v; want %s", device, text, err, netdev)
		}
		if text, err := os.ReadFile("/sys/class/infiniband/" + device + "/ports/1/state"); err != nil || !strings.HasPrefix(string(text), "4:") {
			t.Errorf("%s: %q, %v", device, text, err)
		}
	}
	if _, err := os.Stat("/sys/module/sch_netem"); err != nil {
		t.Error(err)
	}
}

// TestInNodesShared: what one writes, renames and removes all others see at once.
func TestInNodesShared(t *testing.T) {
	ctx := inNodes(t)
	for round := range 5 {
		writer, file := round%Count()+1, fmt.Sprintf("round%d", round)
		if Number() == writer {
			if err := Put(file, []byte(strings.Repeat(file, 10000))); err != nil {
				t.Fatal(err)
			}
		}
		text, err := Get(ctx, file)
		if err != nil || string(text) != strings.Repeat(file, 10000) {
			t.Errorf("%s: %d bytes, %v", file, len(text), err)
		}
		meet(ctx, t, file+"read")
		if Number() == writer {
			if err := Put(file, []byte("again")); err != nil {
				t.Fatal(err)
			}
		}
		meet(ctx, t, file+"again")
		if text, err := Get(ctx, file); err != nil || string(text) != "again" {
			t.Errorf("%s: written again, but reads %.20q, %v", file, text, err)
		}
		meet(ctx, t, file+"readagain")
		if Number() == writer {
			if err := os.Remove(filepath.Join(Shared(), "files", file)); err != nil {
				t.Fatal(err)
			}
		}
		meet(ctx, t, file+"removed")
		if exists(filepath.Join(Shared(), "files", file)) {
			t.Errorf("%s has been removed, and is there", file)
		}
	}
}

// TestInNodesForward answers the machine, until that has heard all nodes.
func TestInNodesForward(t *testing.T) {
	ctx := inNodes(t)
	server := &http.Server{Addr: ":8080", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, Name(Number())) })}
	go func() { _ = server.ListenAndServe() }()
	defer server.Close()
	heard := filepath.Join(os.Getenv("NODE_TEST_DIR"), "fetched")
	if err := wait(ctx, func() bool { return exists(heard) }, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
}
