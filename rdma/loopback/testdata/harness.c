/*
 * Runs loopback.c without Go, under AddressSanitizer and UBSan, on a soft-RoCE
 * device: whole measurements, and each way to fail, over and over.
 * Usage: harness DEVICE GID-INDEX GID (32 hexadecimal digits) ROUNDS
 */
#include "loopback.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAIRS 3
#define SIZE 4096
#define SLICE (4 * SIZE)
#define BUFFER (PAIRS * SLICE)
#define DEPTH 8

static int problems;

static void want(const char *what, struct lb_error err, int step, int code)
{
	if (err.step == step && err.error + err.status == code)
		return;
	printf("%s: step %d, errno %d, status %d, wanted step %d, code %d\n", what, err.step, err.error, err.status, step, code);
	problems++;
}

static void check(const char *what, int condition)
{
	if (condition)
		return;
	printf("%s\n", what);
	problems++;
}

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static uint8_t gid[16];
static int gid_index;

struct bench {
	struct lb_library *lib;
	uintptr_t context, pd, channel, cq;
	struct lb_port port;
	struct lb_region source, destination;
	struct lb_qp qps[2 * PAIRS];
	char *from, *to;
};

static void make(struct bench *b, const char *device)
{
	char message[300];
	struct lb_device limits;

	b->from = aligned_alloc(4096, BUFFER);
	b->to = aligned_alloc(4096, BUFFER);
	b->lib = lb_load("libibverbs.so.1", message, sizeof(message));
	if (!b->lib) {
		printf("%s\n", message);
		exit(1);
	}
	want("open", lb_open(b->lib, device, &b->context), LB_OK, 0);
	want("query device", lb_query_device(b->lib, b->context, &limits), LB_OK, 0);
	want("query port", lb_query_port(b->lib, b->context, 1, &b->port), LB_OK, 0);
	want("pd", lb_alloc_pd(b->lib, b->context, &b->pd), LB_OK, 0);
	want("mr", lb_reg_mr(b->lib, b->pd, (uintptr_t)b->from, BUFFER, LB_ACCESS_FULL, 1, &b->source), LB_OK, 0);
	want("mr", lb_reg_mr(b->lib, b->pd, (uintptr_t)b->to, BUFFER, LB_ACCESS_FULL, 0, &b->destination), LB_OK, 0);
	want("channel", lb_create_comp_channel(b->lib, b->context, &b->channel), LB_OK, 0);
	want("cq", lb_create_cq(b->lib, b->context, b->channel, PAIRS * DEPTH, &b->cq), LB_OK, 0);
	for (int i = 0; i < 2 * PAIRS; i++)
		want("qp", lb_create_qp(b->lib, b->pd, b->cq, DEPTH, 1, &b->qps[i]), LB_OK, 0);
	for (int i = 0; i < 2 * PAIRS; i++) {
		struct lb_connection c = {
			.port = 1, .path_mtu = b->port.active_mtu, .global = 1, .sgid_index = gid_index,
			.peer_number = b->qps[i ^ 1].number, .psn = 77, .peer_psn = 77, .rd_atomic = 4,
			.access = LB_ACCESS_FULL,
		};
		memcpy(c.dgid, gid, sizeof(gid));
		want("connect", lb_connect_qp(b->lib, b->qps[i].qp, &c), LB_OK, 0);
	}
}

static void unmake(struct bench *b)
{
	for (int i = 2 * PAIRS - 1; i >= 0; i--)
		want("destroy qp", lb_destroy_qp(b->lib, b->qps[i].qp), LB_OK, 0);
	want("destroy cq", lb_destroy_cq(b->lib, b->cq), LB_OK, 0);
	want("destroy channel", lb_destroy_comp_channel(b->lib, b->channel), LB_OK, 0);
	want("dereg", lb_dereg_mr(b->lib, b->destination.mr), LB_OK, 0);
	want("dereg", lb_dereg_mr(b->lib, b->source.mr), LB_OK, 0);
	want("dealloc pd", lb_dealloc_pd(b->lib, b->pd), LB_OK, 0);
	want("close", lb_close(b->lib, b->context), LB_OK, 0);
	lb_unload(b->lib);
	free(b->to);
	free(b->from);
}

static struct lb_transfer writes(struct bench *b)
{
	struct lb_transfer t = {
		.qp_count = PAIRS, .cq = b->cq, .depth = DEPTH, .signal_every = 3,
		.local = (uintptr_t)b->from, .remote = (uintptr_t)b->to, .lkey = b->source.lkey, .rkey = b->destination.rkey,
		.size = SIZE, .slice = SLICE, .bytes = PAIRS * 50 * SIZE,
	};

	for (int i = 0; i < PAIRS; i++)
		t.qps[i] = b->qps[2 * i].qp;
	return t;
}

static void move_data(struct bench *b, struct lb_limits limits)
{
	struct lb_transfer t = writes(b);
	struct lb_progress progress;
	int64_t samples[20];
	struct lb_completion c = { 0 };
	int stop = 0, done, found = 0;

	memset(b->from, 0x5a, BUFFER);
	memset(b->to, 0, BUFFER);
	want("write", lb_transfer(b->lib, &t, limits, &stop, &progress), LB_OK, 0);
	check("progress", progress.completed == PAIRS * 50 && progress.least == 50 && progress.last_completion > progress.first_post);
	check("written", memcmp(b->from, b->to, BUFFER) == 0);

	memset(b->from, 0, BUFFER);
	t.read = 1;
	t.channel = b->channel;
	want("read", lb_transfer(b->lib, &t, limits, &stop, &progress), LB_OK, 0);
	check("read back", memcmp(b->from, b->to, BUFFER) == 0);

	t = writes(b);
	t.size = 8;
	want("latency", lb_latency(b->lib, &t, limits, &stop, samples, 20, &done), LB_OK, 0);
	check("samples", done == 20 && samples[19] > 0);
	t.channel = b->channel;
	want("latency with events", lb_latency(b->lib, &t, limits, &stop, samples, 20, &done), LB_OK, 0);
	check("samples with events", done == 20 && samples[19] > 0);

	want("post", lb_post(&t, 8, 16, 42), LB_OK, 0);
	while (!found && now() < limits.deadline)
		want("next", lb_next(b->lib, b->cq, b->channel, limits.deadline, &c, &found), LB_OK, 0);
	check("id", found && c.id == 42 && !c.received);
	want("next of none", lb_next(b->lib, b->cq, 0, limits.deadline, &c, &found), LB_OK, 0);
	check("none found", !found);
}

/* Messages that the other side hears of: size bytes, or none, and a number. */
static void tell(struct bench *b, struct lb_limits limits, uint32_t size, uint32_t imm)
{
	struct lb_transfer t = writes(b);
	int sent = 0, heard = 0;

	t.with_imm = 1;
	t.size = size;
	t.imm = imm;
	memset(b->from, 0x17, size);
	memset(b->to, 0, SIZE);
	want("post receive", lb_post_recv(b->qps[1].qp, 77), LB_OK, 0);
	want("post with imm", lb_post(&t, 0, 0, 43), LB_OK, 0);
	while (!(sent && heard) && now() < limits.deadline) {
		struct lb_completion c = { 0 };
		int found = 0;

		want("next", lb_next(b->lib, b->cq, b->channel, limits.deadline, &c, &found), LB_OK, 0);
		if (!found)
			continue;
		if (c.received)
			heard = c.id == 77 && c.imm == imm;
		else
			sent = c.id == 43;
	}
	check("heard of", sent && heard);
	check("data before it", memcmp(b->from, b->to, size) == 0);
}

/* Each ends the queue pairs' life, so each has a bench of its own. */
static void end_early(const char *device, int way)
{
	struct bench b = { 0 };
	struct lb_limits limits = { now() + INT64_C(20000000000), now() + INT64_C(20000000000) };
	struct lb_progress progress;
	int stop = 0;

	make(&b, device);
	struct lb_transfer t = writes(&b);
	switch (way) {
	case 0:
		t.rkey ^= 0xffff;
		want("wrong rkey", lb_transfer(b.lib, &t, limits, &stop, &progress), LB_COMPLETION, 10);
		break;
	case 1:
		t.lkey ^= 0xffff; /* IBV_WC_LOC_QP_OP_ERR of soft-RoCE; a NIC says IBV_WC_LOC_PROT_ERR */
		want("wrong lkey", lb_transfer(b.lib, &t, limits, &stop, &progress), LB_COMPLETION, 2);
		break;
	case 2:
		stop = 1;
		t.bytes = UINT64_C(1) << 40;
		want("stopped", lb_transfer(b.lib, &t, limits, &stop, &progress), LB_STOPPED, ECANCELED);
		break;
	case 3:
		limits.deadline = now() + 1000000;
		t.bytes = UINT64_C(1) << 40;
		t.channel = b.channel;
		want("deadline", lb_transfer(b.lib, &t, limits, &stop, &progress), LB_DEADLINE, ETIMEDOUT);
		break;
	case 4:
		limits.enough = now() + 20000000;
		t.bytes = UINT64_C(1) << 40;
		want("enough", lb_transfer(b.lib, &t, limits, &stop, &progress), LB_OK, 0);
		check("all that was posted completed", progress.posted == progress.completed && progress.completed > 0);
		break;
	case 5:
		t.signal_every = 0;
		want("nonsense", lb_transfer(b.lib, &t, limits, &stop, &progress), LB_POST_SEND, EINVAL);
		break;
	}
	unmake(&b);
}

int main(int argc, char **argv)
{
	char message[20];

	if (argc != 5)
		return 2;
	gid_index = atoi(argv[2]);
	for (int i = 0; i < 16; i++) {
		unsigned int byte;

		if (sscanf(argv[3] + 2 * i, "%2x", &byte) != 1)
			return 2;
		gid[i] = byte;
	}
	check("no such library", lb_load("/nowhere/libibverbs.so.1", message, sizeof(message)) == NULL && strlen(message) == sizeof(message) - 1);
	check("no such function", lb_load("libc.so.6", message, sizeof(message)) == NULL);
	for (int round = 0; round < atoi(argv[4]); round++) {
		struct bench b = { 0 };
		struct lb_region none;
		uintptr_t context;

		make(&b, argv[1]);
		struct lb_error none_such = lb_data_direct(b.context);

		/* Before rdma-core 54 nobody can tell. */
		check("no data-direct function", none_such.step == LB_DATA_DIRECT && (none_such.error == EOPNOTSUPP || none_such.error == ENOSYS));
		want("no such device", lb_open(b.lib, "nowhere", &context), LB_OPEN_DEVICE, ENODEV);
		want("no memory", lb_reg_mr(b.lib, b.pd, 4096, 4096, LB_ACCESS_FULL, 0, &none), LB_REG_MR, EFAULT);
		want("no dma-buf", lb_reg_dmabuf_mr(b.lib, b.pd, 0, 4096, -1, LB_ACCESS_FULL, 0, &none), LB_REG_DMABUF_MR, EOPNOTSUPP);
		move_data(&b, (struct lb_limits){ now() + INT64_C(20000000000), now() + INT64_C(20000000000) });
		tell(&b, (struct lb_limits){ .deadline = now() + INT64_C(20000000000) }, SIZE, 0x80000001);
		tell(&b, (struct lb_limits){ .deadline = now() + INT64_C(20000000000) }, 0, 7);
		unmake(&b);
		for (int way = 0; way < 6; way++)
			end_early(argv[1], way);
	}
	printf("%d problems\n", problems);
	return problems != 0;
}
