// Package verbs makes the endpoints of peer sessions: it is what is between package
// session, which knows nothing of RDMA, and the endpoints of package loopback, which
// know nothing of sessions.
package verbs

import (
	"context"
	"encoding/json"
	"fmt"
	"syscall"

	"gdr_exporter/rdma/loopback"
	"gdr_exporter/rdma/peer/session"
)

// DefaultMostBuffer is that of an Opener without one: the default of
// [session.Limits].
const DefaultMostBuffer = 64 << 20

// mostOutstanding bounds the writes that all queue pairs of an endpoint have room for.
// Each costs memory that the kernel pins, and who asks for them is the peer.
const mostOutstanding = 8192

// Opener makes endpoints of this host's RDMA devices.
type Opener struct {
	// Template is what all endpoints have in common: where the library and the devices
	// are, P_Key, GID, the method of registration, how much GPU memory must stay free,
	// and the sizes that a session leaves open. Device, port, role, memory, GPU, peer
	// and lock are not of it: a session says the former, and holds the lock.
	Template loopback.EndpointSpec
	// OpenGPU opens the GPU at a PCI address, on the thread of the endpoint. nil: there
	// are no GPUs.
	OpenGPU func(address string) (loopback.GPU, error)
	// MostBuffer bounds the bytes of a buffer, whoever asks for it. 0: DefaultMostBuffer.
	MostBuffer int
	// Isolation, if it returns one, has endpoints with memory of a GPU. Those with host
	// memory alone are always opened in this process. nil: as all are.
	Isolation func() *Isolation
}

var _ session.Opener = Opener{}

// Open makes an endpoint that is connected to nobody. Failures are of type
// *[session.Failure].
func (o Opener) Open(ctx context.Context, spec session.Spec) (session.Endpoint, error) {
	own, err := o.spec(spec)
	if err != nil {
		return nil, err
	}
	if o.Isolation != nil && spec.Memory != session.Host {
		if i := o.Isolation(); i != nil {
			return i.open(ctx, order{Template: o.Template, MostBuffer: o.MostBuffer, Spec: spec})
		}
	}
	e, err := loopback.OpenEndpoint(ctx, own)
	if err != nil {
		return nil, failure(loopback.StageOpen, err)
	}
	address, err := newAddress(e.Address())
	if err != nil {
		_ = e.Close() // what failed before says more
		return nil, failure(loopback.StageOpen, err)
	}
	return &endpoint{own: e, address: address}, nil
}

// Parse reads and checks an address that came from another host.
func (o Opener) Parse(text json.RawMessage) (session.Address, error) {
	a, err := loopback.ParseAddress(text)
	if err != nil {
		return session.Address{}, session.Fail(session.ReasonInvalid, "", err)
	}
	address, err := newAddress(a)
	if err != nil {
		return session.Address{}, session.Fail(session.ReasonInvalid, "", err)
	}
	return address, nil
}

// newAddress is an address as sessions have it. Its text is written anew: what else
// was in the peer's is gone.
func newAddress(a loopback.Address) (session.Address, error) {
	text, err := json.Marshal(a)
	if err != nil {
		return session.Address{}, fmt.Errorf("address: %w", err)
	}
	return session.Address{Text: text, Where: where(a), Length: a.Length}, nil
}

// where is the port that packets to an address go to, in one spelling only. On an
// InfiniBand subnet the LID alone decides: a peer that gives another's LID beside a
// GID of its own would have its packets.
func where(a loopback.Address) string {
	if !a.Ethernet && a.LID != 0 {
		return fmt.Sprintf("LID %d", a.LID)
	}
	return a.GID.Unmap().String()
}

// spec is what loopback makes the endpoint of.
func (o Opener) spec(s session.Spec) (loopback.EndpointSpec, error) {
	own := o.Template
	own.Device, own.Port = s.Device, s.Port.Port
	own.Memory = loopback.Memory(s.Memory)
	own.LockPath, own.OpenGPU, own.Peer = "", nil, nil
	if own.Role = role(s); own.Role == "" {
		return own, refuse(syscall.EINVAL, "an endpoint that neither sends nor receives")
	}
	if s.Deadline > 0 {
		own.Deadline = s.Deadline
	}
	if s.Peer != nil {
		peer, err := loopback.ParseAddress(s.Peer.Text)
		if err != nil {
			return own, session.Fail(session.ReasonInvalid, string(loopback.StageOpen), err)
		}
		own.Peer = &peer
	}
	if err := o.size(&own, s.Shape); err != nil {
		return own, err
	}
	return own, o.withGPU(&own, s)
}

func role(s session.Spec) loopback.Role {
	switch {
	case s.Sends && s.Receives:
		return loopback.RoleBoth
	case s.Sends:
		return loopback.RoleInitiator
	case s.Receives:
		return loopback.RoleResponder
	}
	return ""
}

func (o Opener) withGPU(own *loopback.EndpointSpec, s session.Spec) error {
	switch {
	case s.Memory == session.Host:
		return nil
	case s.GPU == "":
		return refuse(syscall.EINVAL, "%s memory, of no GPU", s.Memory)
	case o.OpenGPU == nil:
		return session.Fail(session.ReasonNoRail, string(loopback.StageOpen), fmt.Errorf("GPU %s: %w", s.GPU, syscall.ENODEV))
	}
	own.OpenGPU = func() (loopback.GPU, error) { return o.OpenGPU(s.GPU) }
	return nil
}

// size sets the sizes: what the session says, else what the template says. What
// nobody says is made to fit the buffer.
func (o Opener) size(own *loopback.EndpointSpec, s session.Shape) error {
	most := o.MostBuffer
	if most == 0 {
		most = DefaultMostBuffer
	}
	for _, size := range []struct {
		own    *int
		wanted int
	}{{&own.BufferSize, s.Buffer}, {&own.MessageSize, s.Message}, {&own.ChunkSize, s.Chunk}, {&own.QueuePairs, s.QueuePairs}, {&own.Depth, s.Depth}} {
		if size.wanted < 0 {
			return refuse(syscall.EINVAL, "sizes %+v", s)
		}
		if size.wanted != 0 {
			*size.own = size.wanted
		}
	}
	switch {
	case s.Buffer > most:
		return refuse(syscall.EMSGSIZE, "a buffer of %d bytes: at most %d", s.Buffer, most)
	case own.BufferSize == 0 || own.BufferSize > most:
		own.BufferSize = most
	}
	const queuePairs, message = 4, 1 << 20 // loopback's defaults
	if own.QueuePairs == 0 {
		own.QueuePairs = queuePairs
	}
	if own.MessageSize == 0 {
		own.MessageSize = min(message, own.BufferSize/max(own.QueuePairs, 1)&^7)
	}
	if own.Depth > mostOutstanding/max(own.QueuePairs, 1) {
		return refuse(syscall.EMSGSIZE, "%d queue pairs with %d writes each: at most %d writes", own.QueuePairs, own.Depth, mostOutstanding)
	}
	return nil
}

// refuse is the failure of a wish that cannot be met.
func refuse(errno syscall.Errno, format string, args ...any) *session.Failure {
	return session.Fail(session.ReasonInvalid, string(loopback.StageOpen), fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errno))
}
