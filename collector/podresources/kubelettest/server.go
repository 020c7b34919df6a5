// Package kubelettest stands in for the kubelet in tests: a real gRPC server of the
// pod-resources API on a unix socket.
package kubelettest

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Kubelet answers List with what it was told.
type Kubelet struct {
	v1.UnimplementedPodResourcesListerServer

	Socket string

	mu     sync.Mutex
	answer *v1.ListPodResourcesResponse
	err    error
	hangs  chan struct{} // closed: calls return; nil: they do not hang
	calls  int
	server *grpc.Server
}

// Start serves on a socket of its own until the test ends.
func Start(t *testing.T, pods ...*v1.PodResources) *Kubelet {
	t.Helper()
	k := &Kubelet{Socket: filepath.Join(t.TempDir(), "kubelet.sock")}
	k.Answer(pods...)
	k.Listen(t)
	return k
}

// Listen serves on the socket, as a kubelet does that was started again.
func (k *Kubelet) Listen(t *testing.T) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", k.Socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	v1.RegisterPodResourcesListerServer(server, k)
	k.mu.Lock()
	k.server = server
	k.mu.Unlock()
	go func() { _ = server.Serve(listener) }() // it returns when it is stopped
	t.Cleanup(server.Stop)
}

// Stop ends the server. Its socket goes.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	server := k.server
	k.mu.Unlock()
	server.Stop()
}

// Answer says what later calls are answered.
func (k *Kubelet) Answer(pods ...*v1.PodResources) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.answer, k.err = &v1.ListPodResourcesResponse{PodResources: pods}, nil
}

// Fail has later calls fail.
func (k *Kubelet) Fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}

// Hang has later calls hang until release is called, or the caller gives up.
func (k *Kubelet) Hang() (release func()) {
	hangs := make(chan struct{})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hangs = hangs
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.hangs = nil
		close(hangs)
	}
}

// Calls returns how often it was asked.
func (k *Kubelet) Calls() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.calls
}

// List implements v1.PodResourcesListerServer.
func (k *Kubelet) List(ctx context.Context, _ *v1.ListPodResourcesRequest) (*v1.ListPodResourcesResponse, error) {
	k.mu.Lock()
	k.calls++
	answer, err, hangs := k.answer, k.err, k.hangs
	k.mu.Unlock()
	if hangs != nil {
		select {
		case <-hangs:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return answer, err
}

// Pod is a pod in the namespace "team".
func Pod(name string, containers ...*v1.ContainerResources) *v1.PodResources {
	return &v1.PodResources{Namespace: "team", Name: name, Containers: containers}
}

// Container is a container with devices of one device plugin.
func Container(name, resource string, ids ...string) *v1.ContainerResources {
	return &v1.ContainerResources{Name: name, Devices: []*v1.ContainerDevices{{ResourceName: resource, DeviceIds: ids}}}
}

// Claim is a container with a device of dynamic resource allocation.
func Claim(name, driver, device string, cdi ...string) *v1.ContainerResources {
	claim := &v1.ClaimResource{DriverName: driver, PoolName: "node-1", DeviceName: device}
	for _, name := range cdi {
		claim.CdiDevices = append(claim.CdiDevices, &v1.CDIDevice{Name: name})
	}
	return &v1.ContainerResources{Name: name, DynamicResources: []*v1.DynamicResource{{ClaimName: "claim", ClaimNamespace: "team", ClaimResources: []*v1.ClaimResource{claim}}}}
}
