/*
 * The part of an RDMA loopback measurement that must be C: libibverbs, found at
 * run time, and the loops that post and poll.
 *
 * Every function does one step and returns what went wrong with it. None keeps
 * anything: all state is in the objects that the caller holds as numbers and
 * gives back in reverse order. None prints, exits or changes a signal.
 */
#ifndef GDR_EXPORTER_LOOPBACK_H
#define GDR_EXPORTER_LOOPBACK_H

#include <stddef.h>
#include <stdint.h>

#define LB_MAX_QPS 64

/* What failed. The Go side has a name for each. */
enum lb_step {
	LB_OK,
	LB_GET_DEVICE_LIST,
	LB_OPEN_DEVICE,
	LB_CLOSE_DEVICE,
	LB_QUERY_DEVICE,
	LB_QUERY_PORT,
	LB_DATA_DIRECT,
	LB_ALLOC_PD,
	LB_DEALLOC_PD,
	LB_REG_MR,
	LB_REG_DMABUF_MR,
	LB_DEREG_MR,
	LB_CREATE_COMP_CHANNEL,
	LB_DESTROY_COMP_CHANNEL,
	LB_CREATE_CQ,
	LB_DESTROY_CQ,
	LB_CREATE_QP,
	LB_DESTROY_QP,
	LB_MODIFY_QP_INIT,
	LB_MODIFY_QP_RTR,
	LB_MODIFY_QP_RTS,
	LB_POST_SEND,
	LB_POST_RECV,
	LB_POLL_CQ,
	LB_REQ_NOTIFY_CQ,
	LB_GET_CQ_EVENT,
	LB_COMPLETION, /* a completion with an error: see status */
	LB_DEADLINE,   /* error ETIMEDOUT */
	LB_STOPPED,    /* error ECANCELED */
};

struct lb_error {
	int step;        /* enum lb_step */
	int error;       /* errno, 0 if none */
	int status;      /* enum ibv_wc_status of LB_COMPLETION */
	uint32_t vendor; /* its vendor_err */
};

struct lb_library;

/*
 * lb_load writes the file that was loaded to message. It returns NULL, and why in
 * message, if there is no usable library at path.
 */
struct lb_library *lb_load(const char *path, char *message, size_t size);
void lb_unload(struct lb_library *lib);

struct lb_device {
	int max_qp_wr, max_cqe, max_qp;
	int max_rd_atomic; /* RDMA READs in flight that a QP can send and answer */
	uint64_t max_mr_size;
};

struct lb_port {
	int state;      /* enum ibv_port_state */
	int active_mtu; /* enum ibv_mtu */
	int link_layer; /* IBV_LINK_LAYER_* */
	int lid;
	int grh_required;
	uint32_t max_msg_size;
};

struct lb_region {
	uintptr_t mr;
	uint32_t lkey, rkey;
};

struct lb_qp {
	uintptr_t qp;
	uint32_t number;
};

/* What others may do with a region, or with a region through a QP. */
enum lb_access {
	LB_ACCESS_NONE,  /* nothing: the owner only */
	LB_ACCESS_WRITE, /* write it */
	LB_ACCESS_FULL,  /* write and read it */
};

/* How one QP reaches its peer. */
struct lb_connection {
	int port, pkey_index, path_mtu;
	int dlid;
	int global; /* has a GRH: sgid_index and dgid count */
	int sgid_index;
	uint8_t dgid[16];
	uint32_t peer_number;
	uint32_t psn, peer_psn; /* the first number of either direction */
	int rd_atomic;
	int access; /* enum lb_access: what the peer may do */
	int far;    /* the peer is another host's */
};

struct lb_error lb_open(struct lb_library *lib, const char *name, uintptr_t *context);
struct lb_error lb_close(struct lb_library *lib, uintptr_t context);
struct lb_error lb_query_device(struct lb_library *lib, uintptr_t context, struct lb_device *device);
struct lb_error lb_query_port(struct lb_library *lib, uintptr_t context, int number, struct lb_port *port);
/*
 * lb_data_direct succeeds if the NIC has a data-direct function: a second PCI
 * function, near the GPU, by which it can reach GPU memory. ENODEV and EOPNOTSUPP
 * say that it has none, ENOSYS that the mlx5 library is too old to tell.
 */
struct lb_error lb_data_direct(uintptr_t context);
struct lb_error lb_alloc_pd(struct lb_library *lib, uintptr_t context, uintptr_t *pd);
struct lb_error lb_dealloc_pd(struct lb_library *lib, uintptr_t pd);
struct lb_error lb_reg_mr(struct lb_library *lib, uintptr_t pd, uint64_t address, uint64_t length, int access, int relaxed, struct lb_region *region);
struct lb_error lb_reg_dmabuf_mr(struct lb_library *lib, uintptr_t pd, uint64_t iova, uint64_t length, int fd, int access, int relaxed, struct lb_region *region);
struct lb_error lb_dereg_mr(struct lb_library *lib, uintptr_t mr);
struct lb_error lb_create_comp_channel(struct lb_library *lib, uintptr_t context, uintptr_t *channel);
struct lb_error lb_destroy_comp_channel(struct lb_library *lib, uintptr_t channel);
struct lb_error lb_create_cq(struct lb_library *lib, uintptr_t context, uintptr_t channel, int entries, uintptr_t *cq);
struct lb_error lb_destroy_cq(struct lb_library *lib, uintptr_t cq);
struct lb_error lb_create_qp(struct lb_library *lib, uintptr_t pd, uintptr_t cq, int depth, int receives, struct lb_qp *qp);
struct lb_error lb_destroy_qp(struct lb_library *lib, uintptr_t qp);
struct lb_error lb_connect_qp(struct lb_library *lib, uintptr_t qp, const struct lb_connection *connection);

/* When a loop ends early. Times are CLOCK_MONOTONIC in nanoseconds. */
struct lb_limits {
	int64_t enough;   /* post no more after it, but wait for what is under way */
	int64_t deadline; /* give up */
};

/*
 * RDMA WRITEs (or READs) of size bytes each. QP i works through its own slice of
 * both buffers, from local + i * slice, over and over.
 */
struct lb_transfer {
	uintptr_t qps[LB_MAX_QPS];
	int qp_count;
	uintptr_t cq;
	uintptr_t channel; /* sleep for completion events; 0: poll without pause */
	int read;
	int depth;        /* outstanding on each QP */
	int signal_every; /* a completion for every so many, at most depth */
	int batch;        /* posted with one call at most; 0: LB_BATCH of loopback.c */
	uint64_t local, remote;
	uint32_t lkey, rkey;
	uint32_t size;
	uint64_t slice; /* multiple of size */
	uint64_t bytes; /* most bytes to move */
	int with_imm;   /* lb_post only: tell the peer too, with imm; of size 0 nothing else */
	uint32_t imm;
};

struct lb_progress {
	uint64_t posted, completed; /* messages */
	uint64_t least;             /* completed of the QP that has fewest */
	int64_t first_post, last_completion;
};

/* lb_transfer moves bytes with the window full. progress is filled on error too. */
struct lb_error lb_transfer(struct lb_library *lib, const struct lb_transfer *transfer, struct lb_limits limits, const int *stop, struct lb_progress *progress);

/*
 * lb_latency posts one message of size bytes after the other on the first QP and
 * notes the time from post to completion of each. done counts them. With a channel
 * it polls for the time of a usual answer and sleeps for those that are late.
 */
struct lb_error lb_latency(struct lb_library *lib, const struct lb_transfer *transfer, struct lb_limits limits, const int *stop, int64_t *samples, int count, int *done);

/* lb_post posts one message on the first QP, with a completion that says id. */
struct lb_error lb_post(const struct lb_transfer *transfer, uint64_t offset_local, uint64_t offset_remote, uint64_t id);

/* lb_post_recv lets one more message of the peer in, that has an imm and no data. */
struct lb_error lb_post_recv(uintptr_t qp, uint64_t id);

struct lb_completion {
	uint64_t id;  /* of what was posted */
	int received; /* a message of the peer's, which said imm */
	uint32_t imm;
};

/*
 * lb_next takes one completion. With a channel it sleeps for one, for 100 ms and
 * to the deadline at most. found is 0 if there was none.
 */
struct lb_error lb_next(struct lb_library *lib, uintptr_t cq, uintptr_t channel, int64_t deadline, struct lb_completion *completion, int *found);

#endif
