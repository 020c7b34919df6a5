package rdmatest

import (
	"encoding/binary"
	"io"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"

	"gdr_exporter/rdma"
	"gdr_exporter/rdma/nldev"
)

// Netlink plays the kernel's RDMA netlink family over a tree: what it answers is what the tree's files say. The numbers are copied from
// include/uapi/rdma/rdma_netlink.h rather than taken from package nldev, so that a wrong one there is found.
type Netlink struct {
	tree *Tree

	mu       sync.Mutex
	fail     map[string]syscall.Errno // by command, "STAT_GET"
	mangle   func(command string, data []byte) []byte
	requests map[string]int
	owners   map[string][]nldev.Owner // by device; one that is not in it has some of nobody
	hang     chan struct{}
	down     error
}

// Netlink returns the family as it speaks of the tree's devices.
func (t *Tree) Netlink() *Netlink {
	return &Netlink{tree: t, fail: map[string]syscall.Errno{}, requests: map[string]int{}}
}

// Dial opens a connection.
func (n *Netlink) Dial() (rdma.Netlink, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down != nil {
		return nil, n.down
	}
	return nldev.New(nltest.Dial(n.answer), 0), nil
}

// Monitor returns a Monitor that hears of the tree's devices being registered, one after the other, and then of nothing until stop is
// called.
func (n *Netlink) Monitor() (monitor *rdma.Monitor, stop func()) {
	names, gate := n.tree.List("sys/class/infiniband"), make(chan struct{})
	conn := nltest.Dial(func([]netlink.Message) ([]netlink.Message, error) {
		if len(names) == 0 {
			<-gate
			return nil, io.EOF
		}
		name := names[0]
		names = names[1:]
		return []netlink.Message{{Header: netlink.Header{Type: 5<<10 | 28}, Data: attrs(u8(102, 0), str(2, name))}}, nil
	})
	return rdma.NewMonitor(nldev.NewMonitor(conn)), func() { close(gate) }
}

// Down makes Dial fail, nil makes it succeed again.
func (n *Netlink) Down(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = err
}

// Fail makes a command fail, 0 makes it succeed again.
func (n *Netlink) Fail(command string, errno syscall.Errno) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fail[command] = errno
}

// Mangle changes the answers; nil leaves them as they are.
func (n *Netlink) Mangle(f func(command string, data []byte) []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mangle = f
}

// Requests returns how often each command was asked for, and forgets it.
func (n *Netlink) Requests() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	requests := n.requests
	n.requests = map[string]int{}
	return requests
}

// Hang makes all requests wait until the returned function is called.
func (n *Netlink) Hang() (release func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	gate := make(chan struct{})
	n.hang = gate
	return func() {
		n.mu.Lock()
		n.hang = nil
		n.mu.Unlock()
		close(gate)
	}
}

var commands = map[uint16]string{
	1: "GET", 5: "PORT_GET", 6: "SYS_GET", 9: "RES_GET", 13: "RES_MR_GET", 17: "STAT_GET", 22: "RES_CTX_GET", 24: "STAT_GET_STATUS",
}

func (n *Netlink) answer(requests []netlink.Message) ([]netlink.Message, error) {
	if len(requests) == 0 {
		return nil, nil
	}
	request := requests[0]
	command := commands[uint16(request.Header.Type)&0x3ff]
	n.mu.Lock()
	n.requests[command]++
	errno, mangle, hang := n.fail[command], n.mangle, n.hang
	n.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if errno != 0 {
		return nltest.Error(int(errno), requests)
	}
	device, port := target(request.Data)
	var answers []netlink.Message
	for _, data := range n.data(command, device, port) {
		if mangle != nil {
			data = mangle(command, data)
		}
		answers = append(answers, netlink.Message{Header: request.Header, Data: data})
	}
	if len(answers) == 0 && request.Header.Flags&netlink.Dump == 0 {
		return nltest.Error(int(syscall.EINVAL), requests)
	}
	if request.Header.Flags&netlink.Dump != 0 {
		answers = append(answers, netlink.Message{Header: request.Header})
		return nltest.Multipart(answers)
	}
	return answers, nil
}

// target reads DEV_INDEX and PORT_INDEX.
func target(data []byte) (device, port int) {
	decoder, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return 0, 0
	}
	for decoder.Next() {
		switch decoder.Type() {
		case 1:
			device = int(decoder.Uint32())
		case 3:
			port = int(decoder.Uint32())
		}
	}
	return device, port
}

func (n *Netlink) data(command string, device, port int) [][]byte {
	names := n.tree.List("sys/class/infiniband")
	if command == "GET" {
		var all [][]byte
		for index, name := range names {
			all = append(all, n.device(index, name))
		}
		return all
	}
	if command == "SYS_GET" {
		return [][]byte{attrs(u8(66, 1))}
	}
	if device >= len(names) {
		return nil
	}
	dir := path.Join("sys/class/infiniband", names[device])
	at := path.Join(dir, "ports", strconv.Itoa(port))
	switch command {
	case "PORT_GET":
		return n.port(at)
	case "STAT_GET":
		return n.counters(path.Join(at, "hw_counters"))
	case "STAT_GET_STATUS":
		return [][]byte{attrs(nest(80, nest(81, str(82, "cc_rx_ce_pkts"), u32(94, 40), u8(95, 0)), nest(81, str(82, "out_of_buffer"), u32(94, 3))))}
	case "RES_GET":
		return [][]byte{attrs(nest(15, nest(16, str(17, "qp"), u64(18, 7)), nest(16, str(17, "mr"), u64(18, 3))))}
	case "RES_MR_GET":
		if owners := n.owned(device); owners != nil {
			return regions(owners)
		}
		return [][]byte{attrs(nest(40, nest(41, u64(45, 4096)), nest(41, u64(45, 1<<20)))), attrs(nest(40, nest(41, u64(45, 10))))}
	case "RES_CTX_GET":
		if owners := n.owned(device); owners != nil {
			return contexts(owners)
		}
		return [][]byte{attrs(nest(86, nest(87, u32(64, 1)), nest(87, u32(64, 2))))}
	}
	return nil
}

// Own has processes hold a device, in the place of what it has otherwise: each owner's contexts, and its regions, the first of which has all
// the bytes. What has id 0 is the kernel's own.
func (n *Netlink) Own(device string, owners ...nldev.Owner) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.owners == nil {
		n.owners = map[string][]nldev.Owner{}
	}
	n.owners[device] = append([]nldev.Owner{}, owners...)
}

func (n *Netlink) owned(device int) []nldev.Owner {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.owners[n.tree.List("sys/class/infiniband")[device]]
}

// whose says of an object which process made it, or that the kernel did.
func whose(pid int) netlink.Attribute {
	if pid == 0 {
		return str(29, "nvme_rdma")
	}
	return u32(28, uint32(pid))
}

func regions(owners []nldev.Owner) (messages [][]byte) {
	for _, owner := range owners {
		var entries []netlink.Attribute
		for i := range owner.Regions {
			entry := []netlink.Attribute{u64(45, 0), u32(43, 1), whose(owner.PID)}
			if i == 0 {
				entry[0] = u64(45, owner.Bytes)
			}
			entries = append(entries, nest(41, entry...))
		}
		messages = append(messages, attrs(nest(40, entries...)))
	}
	return messages
}

func contexts(owners []nldev.Owner) (messages [][]byte) {
	for _, owner := range owners {
		var entries []netlink.Attribute
		for range owner.Contexts {
			entries = append(entries, nest(87, u32(64, 1), whose(owner.PID)))
		}
		messages = append(messages, attrs(nest(86, entries...)))
	}
	return messages
}

func (n *Netlink) device(index int, name string) []byte {
	dir := path.Join("sys/class/infiniband", name)
	list := []netlink.Attribute{
		u32(1, uint32(index)), str(2, name), u32(3, uint32(len(n.tree.List(dir+"/ports")))),
		u64(6, n.guid(dir+"/node_guid")), u64(7, n.guid(dir+"/sys_image_guid")), str(67, n.protocol(dir)),
	}
	if kind := n.text(dir + "/node_type"); kind != "" {
		list = append(list, u8(14, kind[0]-'0'))
	}
	if firmware := n.text(dir + "/fw_ver"); firmware != "" {
		list = append(list, str(5, firmware))
	}
	return attrs(list...)
}

func (n *Netlink) port(at string) [][]byte {
	state, physical := n.text(at+"/state"), n.text(at+"/phys_state")
	if state == "" || physical == "" {
		return nil
	}
	list := []netlink.Attribute{u8(12, state[0]-'0'), u8(13, physical[0]-'0')}
	if n.text(at+"/link_layer") == "InfiniBand" {
		list = append(list, u32(9, n.hex(at+"/lid")), u32(10, n.hex(at+"/sm_lid")))
	} else if netdev := n.text(at + "/gid_attrs/ndevs/0"); netdev != "" {
		list = append(list, str(51, netdev))
	}
	return [][]byte{attrs(list...)}
}

func (n *Netlink) counters(dir string) [][]byte {
	names := n.tree.List(dir)
	if len(names) == 0 {
		return nil
	}
	var entries []netlink.Attribute
	for _, name := range names {
		value, err := strconv.ParseUint(n.text(path.Join(dir, name)), 10, 64)
		if err == nil && name != "lifespan" {
			entries = append(entries, nest(81, str(82, name), u64(83, value)))
		}
	}
	return [][]byte{attrs(nest(80, entries...))}
}

func (n *Netlink) protocol(dir string) string {
	switch link := n.text(dir + "/ports/1/link_layer"); {
	case strings.HasPrefix(n.text(dir+"/node_type"), "4"):
		return "iw"
	case link == "InfiniBand":
		return "ib"
	case link == "Ethernet":
		return "roce"
	default:
		return ""
	}
}

func (n *Netlink) text(name string) string {
	content, _ := n.tree.Content(name)
	return strings.TrimSpace(content)
}

// guid turns sysfs's text into the number that netlink sends.
func (n *Netlink) guid(name string) uint64 {
	value, _ := strconv.ParseUint(strings.ReplaceAll(n.text(name), ":", ""), 16, 64)
	return value
}

func (n *Netlink) hex(name string) uint32 {
	value, _ := strconv.ParseUint(strings.TrimPrefix(n.text(name), "0x"), 16, 32)
	return uint32(value)
}

func attrs(list ...netlink.Attribute) []byte {
	data, err := netlink.MarshalAttributes(list)
	if err != nil {
		panic(err) // an attribute of over 64 KiB: the test's mistake
	}
	return data
}

func nest(kind uint16, list ...netlink.Attribute) netlink.Attribute {
	return netlink.Attribute{Type: kind | netlink.Nested, Data: attrs(list...)}
}

func u8(kind uint16, value uint8) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: []byte{value}}
}

func u32(kind uint16, value uint32) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: binary.NativeEndian.AppendUint32(nil, value)}
}

func u64(kind uint16, value uint64) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: binary.NativeEndian.AppendUint64(nil, value)}
}

func str(kind uint16, value string) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: append([]byte(value), 0)}
}
