package podresources_test

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"google.golang.org/grpc"
)

// otherService is the socket of a gRPC server that has another API.
func otherService(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return path
}

// asNobody does something without the rights of root, for the whole process: gRPC
// connects from goroutines of its own.
func asNobody(t *testing.T, do func()) {
	t.Helper()
	const nobody, same = 65534, -1
	if syscall.Geteuid() == 0 {
		if err := syscall.Setresuid(same, nobody, same); err != nil {
			t.Skipf("another user cannot be tried: %v", err)
		}
		defer func() {
			if err := syscall.Setresuid(same, 0, same); err != nil {
				panic(err) // no later test would be what it seems
			}
		}()
	}
	do()
}
