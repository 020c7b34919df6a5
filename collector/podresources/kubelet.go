package podresources

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/podresources/v1"

	"gdr_exporter/collector/sysread"
)

// mostBytes bounds an answer: the kubelet's own clients take as much.
const mostBytes = 16 << 20

// What gRPC has to say goes into the errors of its calls: beside the exporter's own
// log, in a form of its own, it is noise. It must be told before it is used.
func init() { grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard)) }

// kubelet is the kubelet at a socket.
type kubelet struct{ socket string }

// list asks which devices containers have. Each call has a connection of its own: the
// socket of a kubelet that was restarted is another one, and calls are rare.
func (k kubelet) list(ctx context.Context) (*collection, error) {
	var dialed atomic.Pointer[error] // why there is no connection: gRPC's error has only its text
	connection, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostBytes)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var dialer net.Dialer
			conn, err := dialer.DialContext(ctx, "unix", k.socket)
			if err != nil {
				dialed.Store(&err)
			}
			return conn, err
		}))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.socket, err)
	}
	defer func() { _ = connection.Close() }()
	answer, err := v1.NewPodResourcesListerClient(connection).List(ctx, &v1.ListPodResourcesRequest{})
	if err == nil {
		return collect(answer), nil
	}
	if cause := dialed.Load(); cause != nil && ctx.Err() == nil {
		return nil, *cause // it names the socket
	}
	return nil, fmt.Errorf("%s: %w", k.socket, callError{err})
}

// callError is an error of gRPC, with the name that read errors are counted by.
type callError struct{ error }

func (e callError) Unwrap() error { return e.error }

// ErrnoName is the errno that says the same, where there is one.
func (e callError) ErrnoName() string {
	code := status.Code(e.error)
	switch {
	case errors.Is(e.error, context.DeadlineExceeded), code == codes.DeadlineExceeded:
		return "ETIMEDOUT"
	case code == codes.ResourceExhausted:
		return "EMSGSIZE"
	case code == codes.Unimplemented:
		return "EOPNOTSUPP"
	}
	return "grpc_" + strings.ToLower(code.String())
}

// collect takes from an answer what may be GPUs and RDMA devices.
func collect(answer *v1.ListPodResourcesResponse) *collection {
	c := &collection{seen: map[Device]bool{}}
	for _, pod := range answer.GetPodResources() {
		for _, container := range pod.GetContainers() {
			at := Device{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: container.GetName()}
			c.plugins(at, container.GetDevices())
			c.dynamic(at, container.GetDynamicResources())
		}
	}
	return c
}

func (c *collection) plugins(at Device, plugins []*v1.ContainerDevices) {
	for _, devices := range plugins {
		at.Resource = devices.GetResourceName()
		for _, id := range devices.GetDeviceIds() {
			if parsed, ok := parsePlugin(at.Resource, id); ok {
				at.ID = parsed
				c.add(at)
			}
		}
	}
}

func (c *collection) dynamic(at Device, resources []*v1.DynamicResource) {
	for _, claims := range resources {
		for _, claim := range claims.GetClaimResources() {
			var cdi []string
			for _, device := range claim.GetCdiDevices() {
				cdi = append(cdi, device.GetName())
			}
			at.Resource = claim.GetDriverName()
			if parsed, ok := parseDynamic(at.Resource, claim.GetDeviceName(), cdi); ok {
				at.ID = parsed
				c.add(at)
			}
		}
	}
}

// readError is a call's failure as read errors are counted and told.
func readError(err error) sysread.ReadError {
	return sysread.ReadError{Device: deviceName, Source: "list", Err: err}
}
