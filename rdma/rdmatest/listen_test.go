package rdmatest

import (
	"net"
	"testing"
)

func TestListens(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("not tried: %v", err) // a machine without IPv6
			continue
		}
		port := l.Addr().(*net.TCPAddr).Port
		if !Listens(port) {
			t.Errorf("%v: nobody listens", l.Addr())
		}
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if other := client.LocalAddr().(*net.TCPAddr).Port; Listens(other) {
			t.Errorf("%v: a client listens", client.LocalAddr())
		}
		_ = l.Close()
		if Listens(port) {
			t.Errorf("%v: a connection that is left listens", l.Addr())
		}
		_, _ = server.Close(), client.Close()
		if Listens(port) {
			t.Errorf("%v: a connection that has ended listens", l.Addr())
		}
	}
}
