package loopback

// #cgo CFLAGS: -std=gnu11 -Wall -Wextra
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "loopback.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"
)

// libraryName is the run-time name of libibverbs.
const libraryName = "libibverbs.so.1"

// ErrNoLibrary says that libibverbs cannot be used on this host.
var ErrNoLibrary = errors.New("no usable " + libraryName)

// library is the real libibverbs.
type library struct{ lib *C.struct_lb_library }

// loadLibrary loads the library from the first of the directories that has it,
// else from where the dynamic loader finds it. It returns the file's path too.
func loadLibrary(dirs []string) (verbs, string, error) {
	path := libraryName
	for _, dir := range dirs {
		if candidate := filepath.Join(dir, libraryName); exists(candidate) {
			path = candidate
			break
		}
	}
	cPath := C.CString(path)
	defer C.free(unsafe.Pointer(cPath))
	var message [4096]C.char
	lib := C.lb_load(cPath, &message[0], C.size_t(len(message)))
	if lib == nil {
		return nil, path, skip(SkipLibrary, fmt.Errorf("%w: %s", ErrNoLibrary, C.GoString(&message[0])))
	}
	return library{lib}, C.GoString(&message[0]), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (l library) unload() { C.lb_unload(l.lib) }

// calls are the names of enum lb_step.
var calls = map[C.int]string{
	C.LB_GET_DEVICE_LIST:      "ibv_get_device_list",
	C.LB_OPEN_DEVICE:          "ibv_open_device",
	C.LB_CLOSE_DEVICE:         "ibv_close_device",
	C.LB_QUERY_DEVICE:         "ibv_query_device",
	C.LB_QUERY_PORT:           "ibv_query_port",
	C.LB_DATA_DIRECT:          "mlx5dv_get_data_direct_sysfs_path",
	C.LB_ALLOC_PD:             "ibv_alloc_pd",
	C.LB_DEALLOC_PD:           "ibv_dealloc_pd",
	C.LB_REG_MR:               "ibv_reg_mr",
	C.LB_REG_DMABUF_MR:        "ibv_reg_dmabuf_mr",
	C.LB_DEREG_MR:             "ibv_dereg_mr",
	C.LB_CREATE_COMP_CHANNEL:  "ibv_create_comp_channel",
	C.LB_DESTROY_COMP_CHANNEL: "ibv_destroy_comp_channel",
	C.LB_CREATE_CQ:            "ibv_create_cq",
	C.LB_DESTROY_CQ:           "ibv_destroy_cq",
	C.LB_CREATE_QP:            "ibv_create_qp",
	C.LB_DESTROY_QP:           "ibv_destroy_qp",
	C.LB_MODIFY_QP_INIT:       "ibv_modify_qp INIT",
	C.LB_MODIFY_QP_RTR:        "ibv_modify_qp RTR",
	C.LB_MODIFY_QP_RTS:        "ibv_modify_qp RTS",
	C.LB_POST_SEND:            "ibv_post_send",
	C.LB_POST_RECV:            "ibv_post_recv",
	C.LB_POLL_CQ:              "ibv_poll_cq",
	C.LB_REQ_NOTIFY_CQ:        "ibv_req_notify_cq",
	C.LB_GET_CQ_EVENT:         "ibv_get_cq_event",
	C.LB_COMPLETION:           "completion",
	C.LB_DEADLINE:             "deadline",
	C.LB_STOPPED:              "stopped",
}

// failure turns a C error into an *Error, or nil.
func failure(err C.struct_lb_error) error {
	if err.step == C.LB_OK {
		return nil
	}
	return &Error{
		Call: calls[err.step], Errno: syscall.Errno(err.error),
		Status: CompletionStatus(err.status), Vendor: uint32(err.vendor),
	}
}

func (l library) open(device string) (handle, error) {
	name := C.CString(device)
	defer C.free(unsafe.Pointer(name))
	var context C.uintptr_t
	err := failure(C.lb_open(l.lib, name, &context))
	return handle(context), err
}

func (l library) close(context handle) error {
	return failure(C.lb_close(l.lib, C.uintptr_t(context)))
}

func (l library) queryDevice(context handle) (deviceLimits, error) {
	var d C.struct_lb_device
	err := failure(C.lb_query_device(l.lib, C.uintptr_t(context), &d))
	return deviceLimits{
		queuePairs: int(d.max_qp), depth: int(d.max_qp_wr), completions: int(d.max_cqe),
		rdAtomic: int(d.max_rd_atomic), regionSize: uint64(d.max_mr_size),
	}, err
}

func (l library) queryPort(context handle, port int) (portState, error) {
	const linkLayerEthernet = 2
	var p C.struct_lb_port
	err := failure(C.lb_query_port(l.lib, C.uintptr_t(context), C.int(port), &p))
	return portState{
		state: int(p.state), mtu: int(p.active_mtu), ethernet: p.link_layer == linkLayerEthernet,
		lid: int(p.lid), grhRequired: p.grh_required != 0, messageSize: uint64(p.max_msg_size),
	}, err
}

func (l library) dataDirect(context handle) error {
	return failure(C.lb_data_direct(C.uintptr_t(context)))
}

func (l library) allocPD(context handle) (handle, error) {
	var pd C.uintptr_t
	err := failure(C.lb_alloc_pd(l.lib, C.uintptr_t(context), &pd))
	return handle(pd), err
}

func (l library) deallocPD(pd handle) error {
	return failure(C.lb_dealloc_pd(l.lib, C.uintptr_t(pd)))
}

func (l library) regMR(pd handle, address uintptr, length int, allow access, relaxed bool) (region, error) {
	var r C.struct_lb_region
	err := failure(C.lb_reg_mr(l.lib, C.uintptr_t(pd), C.uint64_t(address), C.uint64_t(length), C.int(allow), cBool(relaxed), &r))
	return region{handle(r.mr), uint32(r.lkey), uint32(r.rkey)}, err
}

func (l library) regDMABuf(pd handle, address uintptr, length, fd int, allow access, relaxed bool) (region, error) {
	var r C.struct_lb_region
	err := failure(C.lb_reg_dmabuf_mr(l.lib, C.uintptr_t(pd), C.uint64_t(address), C.uint64_t(length), C.int(fd), C.int(allow), cBool(relaxed), &r))
	return region{handle(r.mr), uint32(r.lkey), uint32(r.rkey)}, err
}

func (l library) deregMR(mr handle) error {
	return failure(C.lb_dereg_mr(l.lib, C.uintptr_t(mr)))
}

func (l library) createChannel(context handle) (handle, error) {
	var channel C.uintptr_t
	err := failure(C.lb_create_comp_channel(l.lib, C.uintptr_t(context), &channel))
	return handle(channel), err
}

func (l library) destroyChannel(channel handle) error {
	return failure(C.lb_destroy_comp_channel(l.lib, C.uintptr_t(channel)))
}

func (l library) createCQ(context, channel handle, entries int) (handle, error) {
	var cq C.uintptr_t
	err := failure(C.lb_create_cq(l.lib, C.uintptr_t(context), C.uintptr_t(channel), C.int(entries), &cq))
	return handle(cq), err
}

func (l library) destroyCQ(cq handle) error {
	return failure(C.lb_destroy_cq(l.lib, C.uintptr_t(cq)))
}

func (l library) createQP(pd, cq handle, depth, receives int) (queuePair, error) {
	var q C.struct_lb_qp
	err := failure(C.lb_create_qp(l.lib, C.uintptr_t(pd), C.uintptr_t(cq), C.int(depth), C.int(receives), &q))
	return queuePair{handle(q.qp), uint32(q.number)}, err
}

func (l library) destroyQP(qp handle) error {
	return failure(C.lb_destroy_qp(l.lib, C.uintptr_t(qp)))
}

func (l library) connectQP(qp handle, c connection) error {
	to := C.struct_lb_connection{
		port: C.int(c.port), pkey_index: C.int(c.pkeyIndex), path_mtu: C.int(c.mtu),
		dlid: C.int(c.lid), global: cBool(c.global), sgid_index: C.int(c.gidIndex),
		peer_number: C.uint32_t(c.peer), psn: C.uint32_t(c.psn), peer_psn: C.uint32_t(c.peerPSN), rd_atomic: C.int(c.rdAtomic),
		access: C.int(c.allow), far: cBool(c.far),
	}
	for i, b := range c.gid {
		to.dgid[i] = C.uint8_t(b)
	}
	return failure(C.lb_connect_qp(l.lib, C.uintptr_t(qp), &to))
}

func (l library) transfer(t transfer, limits limits) (progress, error) {
	var p C.struct_lb_progress
	ct := t.inC()
	err := failure(C.lb_transfer(l.lib, &ct, limits.inC(), (*C.int)(unsafe.Pointer(limits.stop)), &p))
	return progress{
		posted: uint64(p.posted), completed: uint64(p.completed), least: uint64(p.least),
		elapsed: time.Duration(p.last_completion - p.first_post),
	}, err
}

func (l library) latency(t transfer, limits limits, samples []time.Duration) (int, error) {
	if len(samples) == 0 {
		return 0, nil
	}
	var done C.int
	ct := t.inC()
	err := failure(C.lb_latency(l.lib, &ct, limits.inC(), (*C.int)(unsafe.Pointer(limits.stop)),
		(*C.int64_t)(unsafe.Pointer(&samples[0])), C.int(len(samples)), &done))
	return int(done), err
}

func (l library) post(t transfer, localOffset, remoteOffset int, id uint64) error {
	ct := t.inC()
	return failure(C.lb_post(&ct, C.uint64_t(localOffset), C.uint64_t(remoteOffset), C.uint64_t(id)))
}

func (l library) postReceive(qp handle, id uint64) error {
	return failure(C.lb_post_recv(C.uintptr_t(qp), C.uint64_t(id)))
}

func (l library) next(cq, channel handle, limits limits) (completion, bool, error) {
	var c C.struct_lb_completion
	var found C.int
	err := failure(C.lb_next(l.lib, C.uintptr_t(cq), C.uintptr_t(channel), C.int64_t(limits.deadline), &c, &found))
	return completion{uint64(c.id), c.received != 0, uint32(c.imm)}, found != 0, err
}

func (t transfer) inC() C.struct_lb_transfer {
	ct := C.struct_lb_transfer{
		qp_count: C.int(len(t.qps)), cq: C.uintptr_t(t.cq), channel: C.uintptr_t(t.channel),
		read: cBool(t.read), depth: C.int(t.depth), signal_every: C.int(t.signalEvery), batch: C.int(t.batch),
		local: C.uint64_t(t.local), remote: C.uint64_t(t.remote),
		lkey: C.uint32_t(t.lkey), rkey: C.uint32_t(t.rkey),
		size: C.uint32_t(t.size), slice: C.uint64_t(t.slice), bytes: C.uint64_t(t.bytes),
		with_imm: cBool(t.announce), imm: C.uint32_t(t.imm),
	}
	for i, qp := range t.qps {
		ct.qps[i] = C.uintptr_t(qp)
	}
	return ct
}

func (l limits) inC() C.struct_lb_limits {
	return C.struct_lb_limits{enough: C.int64_t(l.enough), deadline: C.int64_t(l.deadline)}
}

func cBool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
