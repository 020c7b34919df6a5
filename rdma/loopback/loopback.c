#define _GNU_SOURCE
#include "loopback.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Work requests posted, or completions taken, with one call. */
#define LB_BATCH 16

/* Empty polls between two looks at the clock, which in some machines is slow. */
#define LB_POLLS_PER_CLOCK 1024

/* How long an answer is polled for before the thread sleeps for it. */
#define LB_POLL_NS 500000

/* The longest sleep, so that a stop is noticed. */
#define LB_SLEEP_MS 100

/*
 * The functions that verbs.h does not define inline. verbs.h turns some of their
 * names into macros, so the fields have names of their own.
 */
struct lb_library {
	void *handle;
	struct ibv_device **(*get_device_list)(int *);
	void (*free_device_list)(struct ibv_device **);
	const char *(*get_device_name)(struct ibv_device *);
	struct ibv_context *(*open_device)(struct ibv_device *);
	int (*close_device)(struct ibv_context *);
	int (*query_device)(struct ibv_context *, struct ibv_device_attr *);
	int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *);
	int (*dealloc_pd)(struct ibv_pd *);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
	struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);
	int (*dereg_mr)(struct ibv_mr *);
	struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *);
	int (*destroy_comp_channel)(struct ibv_comp_channel *);
	struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	int (*destroy_cq)(struct ibv_cq *);
	int (*get_cq_event)(struct ibv_comp_channel *, struct ibv_cq **, void **);
	void (*ack_cq_events)(struct ibv_cq *, unsigned int);
	struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
	int (*destroy_qp)(struct ibv_qp *);
	int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
};

#define SYMBOL(field, version, required) { "ibv_" #field, version, offsetof(struct lb_library, field), required }

static const struct {
	const char *name, *version;
	size_t offset;
	int required;
} symbols[] = {
	SYMBOL(get_device_list, "IBVERBS_1.1", 1),
	SYMBOL(free_device_list, "IBVERBS_1.1", 1),
	SYMBOL(get_device_name, "IBVERBS_1.1", 1),
	SYMBOL(open_device, "IBVERBS_1.1", 1),
	SYMBOL(close_device, "IBVERBS_1.1", 1),
	SYMBOL(query_device, "IBVERBS_1.1", 1),
	SYMBOL(query_port, "IBVERBS_1.1", 1),
	SYMBOL(alloc_pd, "IBVERBS_1.1", 1),
	SYMBOL(dealloc_pd, "IBVERBS_1.1", 1),
	SYMBOL(reg_mr, "IBVERBS_1.1", 1),
	SYMBOL(reg_mr_iova2, "IBVERBS_1.8", 0),   /* relaxed ordering: rdma-core 28 */
	SYMBOL(reg_dmabuf_mr, "IBVERBS_1.12", 0), /* rdma-core 34 */
	SYMBOL(dereg_mr, "IBVERBS_1.1", 1),
	SYMBOL(create_comp_channel, "IBVERBS_1.0", 1),
	SYMBOL(destroy_comp_channel, "IBVERBS_1.0", 1),
	SYMBOL(create_cq, "IBVERBS_1.1", 1),
	SYMBOL(destroy_cq, "IBVERBS_1.1", 1),
	SYMBOL(get_cq_event, "IBVERBS_1.1", 1),
	SYMBOL(ack_cq_events, "IBVERBS_1.1", 1),
	SYMBOL(create_qp, "IBVERBS_1.1", 1),
	SYMBOL(destroy_qp, "IBVERBS_1.1", 1),
	SYMBOL(modify_qp, "IBVERBS_1.1", 1),
};

static struct lb_error ok(void)
{
	return (struct lb_error){ 0 };
}

static struct lb_error failed(enum lb_step step, int error)
{
	return (struct lb_error){ .step = step, .error = error };
}

/*
 * Functions that return int give an errno, or -1 and set errno; those that return
 * a pointer give NULL and set errno, which not every provider does.
 */
static struct lb_error returned(enum lb_step step, int rc)
{
	if (rc == 0)
		return ok();
	if (rc < 0)
		rc = errno ? errno : EIO;
	return failed(step, rc);
}

static struct lb_error made(enum lb_step step, const void *object)
{
	return object ? ok() : failed(step, errno ? errno : EIO);
}

struct lb_library *lb_load(const char *path, char *message, size_t size)
{
	struct lb_library *lib = calloc(1, sizeof(*lib));
	Dl_info info;

	if (!lib) {
		snprintf(message, size, "out of memory");
		return NULL;
	}
	/*
	 * The library keeps its list of devices and its providers, which it cannot
	 * give back: loading it anew for each run would leak them.
	 */
	lib->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!lib->handle) {
		const char *reason = dlerror();
		snprintf(message, size, "%s", reason ? reason : "dlopen failed");
		goto free_lib;
	}
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *symbol = dlvsym(lib->handle, symbols[i].name, symbols[i].version);
		if (!symbol && symbols[i].required) {
			snprintf(message, size, "%s has no %s@%s", path, symbols[i].name, symbols[i].version);
			goto close_handle;
		}
		memcpy((char *)lib + symbols[i].offset, &symbol, sizeof(symbol));
	}
	snprintf(message, size, "%s", dladdr(dlsym(lib->handle, "ibv_open_device"), &info) ? info.dli_fname : path);
	return lib;

close_handle:
	dlclose(lib->handle);
free_lib:
	free(lib);
	return NULL;
}

void lb_unload(struct lb_library *lib)
{
	dlclose(lib->handle);
	free(lib);
}

struct lb_error lb_open(struct lb_library *lib, const char *name, uintptr_t *context)
{
	struct lb_error err = failed(LB_OPEN_DEVICE, ENODEV);
	struct ibv_device **list;

	errno = 0;
	list = lib->get_device_list(NULL);
	if (!list)
		return made(LB_GET_DEVICE_LIST, list);
	for (struct ibv_device **device = list; *device; device++) {
		if (strcmp(lib->get_device_name(*device), name) != 0)
			continue;
		errno = 0;
		*context = (uintptr_t)lib->open_device(*device);
		err = made(LB_OPEN_DEVICE, (void *)*context);
		break;
	}
	lib->free_device_list(list);
	return err;
}

struct lb_error lb_close(struct lb_library *lib, uintptr_t context)
{
	return returned(LB_CLOSE_DEVICE, lib->close_device((struct ibv_context *)context));
}

struct lb_error lb_query_device(struct lb_library *lib, uintptr_t context, struct lb_device *device)
{
	struct ibv_device_attr attr = { 0 };
	struct lb_error err = returned(LB_QUERY_DEVICE, lib->query_device((struct ibv_context *)context, &attr));

	device->max_qp = attr.max_qp;
	device->max_qp_wr = attr.max_qp_wr;
	device->max_cqe = attr.max_cqe;
	device->max_mr_size = attr.max_mr_size;
	device->max_rd_atomic = attr.max_qp_rd_atom < attr.max_qp_init_rd_atom ? attr.max_qp_rd_atom : attr.max_qp_init_rd_atom;
	return err;
}

struct lb_error lb_query_port(struct lb_library *lib, uintptr_t context, int number, struct lb_port *port)
{
	struct ibv_context *ctx = (struct ibv_context *)context;
	struct verbs_context *extended = verbs_get_ctx_op(ctx, query_port);
	struct ibv_port_attr attr = { 0 };
	int rc;

	/* As verbs.h has it: the old function fills a shorter structure. */
	if (extended)
		rc = extended->query_port(ctx, number, &attr, sizeof(attr));
	else
		rc = lib->query_port(ctx, number, &attr);
	port->state = attr.state;
	port->active_mtu = attr.active_mtu;
	port->link_layer = attr.link_layer;
	port->lid = attr.lid;
	port->grh_required = (attr.flags & IBV_QPF_GRH_REQUIRED) != 0;
	port->max_msg_size = attr.max_msg_sz;
	return returned(LB_QUERY_PORT, rc);
}

struct lb_error lb_data_direct(uintptr_t context)
{
	/* libibverbs has loaded it if there is any mlx5 device: never load it here. */
	void *mlx5 = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_NOLOAD);
	int (*sysfs_path)(struct ibv_context *, char *, size_t);
	char path[4096];
	void *symbol;
	int rc = ENOSYS;

	if (!mlx5)
		return failed(LB_DATA_DIRECT, EOPNOTSUPP);
	symbol = dlvsym(mlx5, "mlx5dv_get_data_direct_sysfs_path", "MLX5_1.25"); /* rdma-core 54 */
	if (symbol) {
		memcpy(&sysfs_path, &symbol, sizeof(symbol));
		rc = sysfs_path((struct ibv_context *)context, path, sizeof(path));
	}
	dlclose(mlx5);
	return returned(LB_DATA_DIRECT, rc);
}

struct lb_error lb_alloc_pd(struct lb_library *lib, uintptr_t context, uintptr_t *pd)
{
	errno = 0;
	*pd = (uintptr_t)lib->alloc_pd((struct ibv_context *)context);
	return made(LB_ALLOC_PD, (void *)*pd);
}

struct lb_error lb_dealloc_pd(struct lb_library *lib, uintptr_t pd)
{
	return returned(LB_DEALLOC_PD, lib->dealloc_pd((struct ibv_pd *)pd));
}

/* Local writes are always allowed: memory that is read only is pinned in another way. */
static const int access_flags[] = {
	[LB_ACCESS_NONE] = IBV_ACCESS_LOCAL_WRITE,
	[LB_ACCESS_WRITE] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
	[LB_ACCESS_FULL] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
};

static struct lb_error registered(enum lb_step step, struct ibv_mr *mr, struct lb_region *region)
{
	if (mr)
		*region = (struct lb_region){ .mr = (uintptr_t)mr, .lkey = mr->lkey, .rkey = mr->rkey };
	return made(step, mr);
}

struct lb_error lb_reg_mr(struct lb_library *lib, uintptr_t pd, uint64_t address, uint64_t length, int access, int relaxed, struct lb_region *region)
{
	struct ibv_mr *mr;

	if (relaxed && !lib->reg_mr_iova2)
		return failed(LB_REG_MR, EOPNOTSUPP);
	errno = 0;
	if (relaxed)
		mr = lib->reg_mr_iova2((struct ibv_pd *)pd, (void *)(uintptr_t)address, length, address, access_flags[access] | IBV_ACCESS_RELAXED_ORDERING);
	else
		mr = lib->reg_mr((struct ibv_pd *)pd, (void *)(uintptr_t)address, length, access_flags[access]);
	return registered(LB_REG_MR, mr, region);
}

struct lb_error lb_reg_dmabuf_mr(struct lb_library *lib, uintptr_t pd, uint64_t iova, uint64_t length, int fd, int access, int relaxed, struct lb_region *region)
{
	struct ibv_mr *mr;

	if (!lib->reg_dmabuf_mr)
		return failed(LB_REG_DMABUF_MR, ENOSYS);
	errno = 0;
	mr = lib->reg_dmabuf_mr((struct ibv_pd *)pd, 0, length, iova, fd, access_flags[access] | (relaxed ? IBV_ACCESS_RELAXED_ORDERING : 0));
	return registered(LB_REG_DMABUF_MR, mr, region);
}

struct lb_error lb_dereg_mr(struct lb_library *lib, uintptr_t mr)
{
	return returned(LB_DEREG_MR, lib->dereg_mr((struct ibv_mr *)mr));
}

struct lb_error lb_create_comp_channel(struct lb_library *lib, uintptr_t context, uintptr_t *channel)
{
	errno = 0;
	*channel = (uintptr_t)lib->create_comp_channel((struct ibv_context *)context);
	return made(LB_CREATE_COMP_CHANNEL, (void *)*channel);
}

struct lb_error lb_destroy_comp_channel(struct lb_library *lib, uintptr_t channel)
{
	return returned(LB_DESTROY_COMP_CHANNEL, lib->destroy_comp_channel((struct ibv_comp_channel *)channel));
}

struct lb_error lb_create_cq(struct lb_library *lib, uintptr_t context, uintptr_t channel, int entries, uintptr_t *cq)
{
	errno = 0;
	*cq = (uintptr_t)lib->create_cq((struct ibv_context *)context, entries, NULL, (struct ibv_comp_channel *)channel, 0);
	return made(LB_CREATE_CQ, (void *)*cq);
}

struct lb_error lb_destroy_cq(struct lb_library *lib, uintptr_t cq)
{
	return returned(LB_DESTROY_CQ, lib->destroy_cq((struct ibv_cq *)cq));
}

struct lb_error lb_create_qp(struct lb_library *lib, uintptr_t pd, uintptr_t cq, int depth, int receives, struct lb_qp *qp)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = (struct ibv_cq *)cq,
		.recv_cq = (struct ibv_cq *)cq,
		.cap = { .max_send_wr = depth, .max_recv_wr = receives, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *made_qp;

	errno = 0;
	made_qp = lib->create_qp((struct ibv_pd *)pd, &attr);
	if (made_qp)
		*qp = (struct lb_qp){ .qp = (uintptr_t)made_qp, .number = made_qp->qp_num };
	return made(LB_CREATE_QP, made_qp);
}

struct lb_error lb_destroy_qp(struct lb_library *lib, uintptr_t qp)
{
	return returned(LB_DESTROY_QP, lib->destroy_qp((struct ibv_qp *)qp));
}

static struct lb_error to_init(struct lb_library *lib, struct ibv_qp *qp, const struct lb_connection *c)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = c->pkey_index,
		.port_num = c->port,
		.qp_access_flags = access_flags[c->access],
	};

	return returned(LB_MODIFY_QP_INIT, lib->modify_qp(qp, &attr,
		IBV_QP_STATE |
		IBV_QP_PKEY_INDEX |
		IBV_QP_PORT |
		IBV_QP_ACCESS_FLAGS));
}

static struct lb_error to_rtr(struct lb_library *lib, struct ibv_qp *qp, const struct lb_connection *c)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = c->path_mtu,
		.dest_qp_num = c->peer_number,
		.rq_psn = c->peer_psn,
		.max_dest_rd_atomic = c->rd_atomic,
		.min_rnr_timer = 12, /* 0.64 ms */
		.ah_attr = {
			.port_num = c->port,
			.dlid = c->dlid,
			.is_global = c->global,
		},
	};

	if (c->global) {
		attr.ah_attr.grh.sgid_index = c->sgid_index;
		attr.ah_attr.grh.hop_limit = 64;
		memcpy(attr.ah_attr.grh.dgid.raw, c->dgid, sizeof(c->dgid));
	}
	return returned(LB_MODIFY_QP_RTR, lib->modify_qp(qp, &attr,
		IBV_QP_STATE |
		IBV_QP_AV |
		IBV_QP_PATH_MTU |
		IBV_QP_DEST_QPN |
		IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC |
		IBV_QP_MIN_RNR_TIMER));
}

static struct lb_error to_rts(struct lb_library *lib, struct ibv_qp *qp, const struct lb_connection *c)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		/*
		 * 4.096 us * 2^14 = 67 ms, four times: within a NIC a dead path is to
		 * fail in well under a second. Between hosts there are switches that
		 * pause: 268 ms, seven times. Soft-RoCE takes a count of 7 for no limit.
		 */
		.timeout = c->far ? 16 : 14,
		.retry_cnt = c->far ? 6 : 3,
		.rnr_retry = 7,
		.sq_psn = c->psn,
		.max_rd_atomic = c->rd_atomic,
	};

	return returned(LB_MODIFY_QP_RTS, lib->modify_qp(qp, &attr,
		IBV_QP_STATE |
		IBV_QP_TIMEOUT |
		IBV_QP_RETRY_CNT |
		IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

struct lb_error lb_connect_qp(struct lb_library *lib, uintptr_t qp, const struct lb_connection *connection)
{
	struct lb_error err = to_init(lib, (struct ibv_qp *)qp, connection);

	if (err.step == LB_OK)
		err = to_rtr(lib, (struct ibv_qp *)qp, connection);
	if (err.step == LB_OK)
		err = to_rts(lib, (struct ibv_qp *)qp, connection);
	return err;
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static struct lb_error check_limits(struct lb_limits limits, const int *stop, int64_t now)
{
	if (__atomic_load_n(stop, __ATOMIC_RELAXED))
		return failed(LB_STOPPED, ECANCELED);
	if (now >= limits.deadline)
		return failed(LB_DEADLINE, ETIMEDOUT);
	return ok();
}

/* take polls for completions: *n of them, all successful, unless it fails. */
static struct lb_error take(uintptr_t cq, struct ibv_wc *wc, int most, int *n)
{
	struct lb_error err = ok();

	errno = 0;
	*n = ibv_poll_cq((struct ibv_cq *)cq, most, wc);
	if (*n < 0) {
		*n = 0;
		return returned(LB_POLL_CQ, -1);
	}
	for (int i = 0; i < *n; i++) {
		if (wc[i].status == IBV_WC_SUCCESS)
			continue;
		/* Flushed requests are a consequence: another one has the cause. */
		if (err.step == LB_OK || err.status == IBV_WC_WR_FLUSH_ERR)
			err = (struct lb_error){ .step = LB_COMPLETION, .status = wc[i].status, .vendor = wc[i].vendor_err };
	}
	return err;
}

/* sleep_for waits for a completion event. Spurious wake-ups are fine. */
static struct lb_error sleep_for(struct lb_library *lib, uintptr_t channel, int64_t deadline)
{
	struct ibv_comp_channel *ch = (struct ibv_comp_channel *)channel;
	struct pollfd ready = { .fd = ch->fd, .events = POLLIN };
	int64_t left = (deadline - now_ns()) / 1000000;
	struct ibv_cq *cq;
	void *ignored;
	int n;

	if (left < 0)
		left = 0;
	n = poll(&ready, 1, left < LB_SLEEP_MS ? (int)left + 1 : LB_SLEEP_MS);
	if (n == 0 || (n < 0 && errno == EINTR))
		return ok();
	if (n < 0)
		return failed(LB_GET_CQ_EVENT, errno);
	if (!(ready.revents & POLLIN))
		return failed(LB_GET_CQ_EVENT, EIO); /* the device has gone */
	errno = 0;
	if (lib->get_cq_event(ch, &cq, &ignored))
		return returned(LB_GET_CQ_EVENT, -1);
	lib->ack_cq_events(cq, 1);
	return ok();
}

/* Messages of one QP. */
struct flow {
	uint64_t posted, completed, limit;
};

/* A completion's id says the QP and how many messages it completes. */
#define COUNT_BITS 48
#define COUNT_MASK ((UINT64_C(1) << COUNT_BITS) - 1)

static struct lb_error post_batch(const struct lb_transfer *t, int i, struct flow *f)
{
	struct ibv_send_wr wr[LB_BATCH], *bad;
	struct ibv_sge sge[LB_BATCH];
	int batch = t->batch ? t->batch : LB_BATCH;
	int n = 0;

	while (n < batch && f->posted < f->limit && f->posted - f->completed < (uint64_t)t->depth) {
		uint64_t offset = t->slice * i + f->posted * t->size % t->slice;
		int signal = ++f->posted == f->limit || f->posted % t->signal_every == 0;

		sge[n] = (struct ibv_sge){ .addr = t->local + offset, .length = t->size, .lkey = t->lkey };
		wr[n] = (struct ibv_send_wr){
			.wr_id = (uint64_t)i << COUNT_BITS | f->posted,
			.sg_list = &sge[n],
			.num_sge = 1,
			.opcode = t->read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
			.send_flags = signal ? IBV_SEND_SIGNALED : 0,
			.wr.rdma = { .remote_addr = t->remote + offset, .rkey = t->rkey },
		};
		if (n > 0)
			wr[n - 1].next = &wr[n];
		n++;
	}
	if (n == 0)
		return ok();
	return returned(LB_POST_SEND, ibv_post_send((struct ibv_qp *)t->qps[i], wr, &bad));
}

/* post_all fills every window; *left is whether anything is not completed yet. */
static struct lb_error post_all(const struct lb_transfer *t, struct flow *flows, int *left)
{
	struct lb_error err = ok();

	*left = 0;
	for (int i = 0; i < t->qp_count && err.step == LB_OK; i++) {
		if (flows[i].posted < flows[i].limit)
			err = post_batch(t, i, &flows[i]);
		*left |= flows[i].completed < flows[i].limit;
	}
	return err;
}

/* end_early lets no QP post more than up to its next message with a completion. */
static void end_early(const struct lb_transfer *t, struct flow *flows)
{
	for (int i = 0; i < t->qp_count; i++) {
		uint64_t every = t->signal_every;
		uint64_t limit = (flows[i].posted + every - 1) / every * every;

		if (limit < flows[i].limit)
			flows[i].limit = limit;
	}
}

static void account(const struct lb_transfer *t, const struct flow *flows, struct lb_progress *progress)
{
	progress->posted = progress->completed = 0;
	progress->least = flows[0].completed;
	for (int i = 0; i < t->qp_count; i++) {
		progress->posted += flows[i].posted;
		progress->completed += flows[i].completed;
		if (flows[i].completed < progress->least)
			progress->least = flows[i].completed;
	}
}

static struct lb_error run_transfer(struct lb_library *lib, const struct lb_transfer *t, struct lb_limits limits, const int *stop, struct flow *flows, int64_t *last)
{
	struct ibv_wc wc[LB_BATCH];
	struct lb_error err = ok();
	int left = 1, armed = 0, n;

	for (unsigned int empty = 0;;) {
		err = post_all(t, flows, &left);
		if (err.step != LB_OK || !left)
			return err;
		err = take(t->cq, wc, LB_BATCH, &n);
		if (err.step != LB_OK)
			return err;
		for (int i = 0; i < n; i++) {
			if (wc[i].wr_id >> COUNT_BITS >= (uint64_t)t->qp_count)
				return failed(LB_POLL_CQ, EPROTO); /* not of this transfer */
			flows[wc[i].wr_id >> COUNT_BITS].completed = wc[i].wr_id & COUNT_MASK;
		}
		if (n == 0 && t->channel && !armed) {
			/* A completion between the last poll and this makes no event: poll again. */
			err = returned(LB_REQ_NOTIFY_CQ, ibv_req_notify_cq((struct ibv_cq *)t->cq, 0));
			armed = 1;
		} else if (n == 0 && t->channel) {
			err = sleep_for(lib, t->channel, limits.deadline);
			armed = 0;
		} else if (n == 0 && ++empty % LB_POLLS_PER_CLOCK != 0) {
			continue;
		}
		if (err.step != LB_OK)
			return err;

		int64_t now = now_ns();

		if (n > 0)
			*last = now;
		if (now >= limits.enough)
			end_early(t, flows);
		err = check_limits(limits, stop, now);
		if (err.step != LB_OK)
			return err;
	}
}

/* valid keeps the loop from waiting for a completion that nobody asked for. */
static int valid(const struct lb_transfer *t)
{
	return t->qp_count >= 1 && t->qp_count <= LB_MAX_QPS && t->size > 0 && t->slice >= t->size &&
	       t->signal_every >= 1 && t->signal_every <= t->depth && t->batch >= 0 && t->batch <= LB_BATCH;
}

struct lb_error lb_transfer(struct lb_library *lib, const struct lb_transfer *transfer, struct lb_limits limits, const int *stop, struct lb_progress *progress)
{
	struct flow flows[LB_MAX_QPS] = { 0 };
	struct lb_error err;

	*progress = (struct lb_progress){ 0 };
	if (!valid(transfer))
		return failed(LB_POST_SEND, EINVAL);
	for (int i = 0; i < transfer->qp_count; i++)
		flows[i].limit = transfer->bytes / transfer->size / transfer->qp_count;
	progress->first_post = progress->last_completion = now_ns();
	err = run_transfer(lib, transfer, limits, stop, flows, &progress->last_completion);
	account(transfer, flows, progress);
	return err;
}

struct lb_error lb_post(const struct lb_transfer *transfer, uint64_t offset_local, uint64_t offset_remote, uint64_t id)
{
	struct ibv_sge sge = { .addr = transfer->local + offset_local, .length = transfer->size, .lkey = transfer->lkey };
	struct ibv_send_wr wr = {
		.wr_id = id,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = transfer->read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = transfer->remote + offset_remote, .rkey = transfer->rkey },
	};
	struct ibv_send_wr *bad;

	if (transfer->with_imm) {
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = htonl(transfer->imm);
	}
	if (transfer->with_imm && transfer->size == 0) {
		/* Not a write of nothing: that needs the peer's leave to write. */
		wr.opcode = IBV_WR_SEND_WITH_IMM;
		wr.num_sge = 0;
	}
	return returned(LB_POST_SEND, ibv_post_send((struct ibv_qp *)transfer->qps[0], &wr, &bad));
}

struct lb_error lb_post_recv(uintptr_t qp, uint64_t id)
{
	struct ibv_recv_wr wr = { .wr_id = id };
	struct ibv_recv_wr *bad;

	return returned(LB_POST_RECV, ibv_post_recv((struct ibv_qp *)qp, &wr, &bad));
}

/* take_one polls for one completion and, with a channel, sleeps for it once. */
static struct lb_error take_one(struct lb_library *lib, uintptr_t cq, uintptr_t channel, int64_t deadline, struct ibv_wc *wc, int *found)
{
	struct lb_error err = take(cq, wc, 1, found);

	if (err.step != LB_OK || *found > 0 || !channel)
		return err;
	err = returned(LB_REQ_NOTIFY_CQ, ibv_req_notify_cq((struct ibv_cq *)cq, 0));
	if (err.step == LB_OK)
		err = take(cq, wc, 1, found);
	if (err.step == LB_OK && *found == 0) {
		err = sleep_for(lib, channel, deadline);
		if (err.step == LB_OK)
			err = take(cq, wc, 1, found);
	}
	return err;
}

/* answered waits for the completion of what was posted at began; *now is when it came. */
static struct lb_error answered(struct lb_library *lib, const struct lb_transfer *t, struct lb_limits limits, const int *stop, int64_t began, int64_t *now)
{
	struct lb_error err = ok();
	struct ibv_wc wc;
	int n = 0, late = 0;

	for (unsigned int polls = 1; err.step == LB_OK; polls++) {
		err = take_one(lib, t->cq, late ? t->channel : 0, limits.deadline, &wc, &n);
		if (err.step != LB_OK || (n == 0 && !late && polls % LB_POLLS_PER_CLOCK != 0))
			continue;
		*now = now_ns();
		if (n > 0)
			break;
		err = check_limits(limits, stop, *now);
		late = t->channel && *now - began > LB_POLL_NS;
	}
	return err;
}

struct lb_error lb_latency(struct lb_library *lib, const struct lb_transfer *transfer, struct lb_limits limits, const int *stop, int64_t *samples, int count, int *done)
{
	struct lb_error err = ok();

	for (*done = 0; *done < count; ++*done) {
		int64_t began = now_ns(), now = began;

		if (began >= limits.enough)
			return ok();
		err = check_limits(limits, stop, began);
		if (err.step == LB_OK)
			err = lb_post(transfer, 0, 0, 0);
		if (err.step == LB_OK)
			err = answered(lib, transfer, limits, stop, began, &now);
		if (err.step != LB_OK)
			return err;
		samples[*done] = now - began;
	}
	return ok();
}

struct lb_error lb_next(struct lb_library *lib, uintptr_t cq, uintptr_t channel, int64_t deadline, struct lb_completion *completion, int *found)
{
	struct ibv_wc wc;
	struct lb_error err = take_one(lib, cq, channel, deadline, &wc, found);

	if (err.step != LB_OK || *found == 0)
		return err;
	*completion = (struct lb_completion){ .id = wc.wr_id };
	if (wc.opcode & IBV_WC_RECV) {
		if (!(wc.wc_flags & IBV_WC_WITH_IMM))
			return failed(LB_POLL_CQ, EPROTO);
		completion->received = 1;
		completion->imm = ntohl(wc.imm_data);
	}
	return err;
}
