// A libcuda whose GPU memory is host memory. Package cudatest says what the
// environment makes it do.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	OPERATING_SYSTEM = 304,
	DEVICE_UNAVAILABLE = 46,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	ILLEGAL_STATE = 401,
	NOT_READY = 600,
	ALREADY_REGISTERED = 712,
	NOT_REGISTERED = 713,
	NOT_SUPPORTED = 801,
	MOST = 256, // of everything
	QUEUE = 4096,
	ALIGNMENT = 2 << 20,
};

static const struct {
	int code;
	const char *name;
} names[] = {
	{0, "CUDA_SUCCESS"},
	{INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
	{OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
	{NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
	{4, "CUDA_ERROR_DEINITIALIZED"},
	{DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
	{100, "CUDA_ERROR_NO_DEVICE"},
	{INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
	{INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
	{214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
	{OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM"},
	{INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
	{ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE"},
	{NOT_READY, "CUDA_ERROR_NOT_READY"},
	{700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
	{719, "CUDA_ERROR_LAUNCH_FAILED"},
	{ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
	{NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
	{NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
	{802, "CUDA_ERROR_SYSTEM_NOT_READY"},
	{803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
	{999, "CUDA_ERROR_UNKNOWN"},
};

struct memory {
	char *device, *shadow; // two mappings of one memfd: handed out, and for copies
	size_t size;
	int fd, sync;
};

struct pinned {
	char *host;
	size_t size;
};

struct copy {
	char *to;
	const char *from;
	size_t size;
};

struct stream {
	int used;
	uint64_t queued, done; // numbers of copies
	struct copy copies[QUEUE];
};

struct event {
	int used;
	struct stream *stream;
	uint64_t at;
};

// Everything below is kept by lock.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory memories[MOST];
static struct pinned pins[MOST];
static struct stream *streams[MOST];
static struct event events[MOST];
static int contexts, initialised;
static int broken;	// what every call fails with, 0 for none
static int kept = -1;	// descriptor of DOUBLE_DEVFILE
static char context;
static __thread char *current;

static struct {
	char gpus[256], name[96], fail[64], hang[64], crash[64], sticky[64], log[256], devfile[256], once[256];
	int version, mode, gdr, dmabuf, ordering, unregistrable, flip, taken, fail_code, fail_from, hang_ms, sticky_code, cloexec;
	size_t total, free, context;
	int calls; // of the function that is to fail
} config;

static char file[4096]; // content of DOUBLE_FILE

static void read_file(void)
{
	const char *path = getenv("DOUBLE_FILE");
	FILE *from = path && *path ? fopen(path, "re") : NULL;
	file[from ? fread(file, 1, sizeof(file) - 1, from) : 0] = 0;
	if (from)
		fclose(from);
}

// The value of a name: the file's, else the environment's; "" for none.
static void setting(char *into, size_t size, const char *name)
{
	size_t length = strlen(name);
	const char *value = getenv(name);
	snprintf(into, size, "%s", value ? value : "");
	for (const char *line = file; *line; line += strcspn(line, "\n"), line += *line == '\n')
		if (!strncmp(line, name, length) && line[length] == '=') {
			value = line + length + 1;
			snprintf(into, size, "%.*s", (int)strcspn(value, "\n"), value);
		}
}

static long long number(const char *name, long long otherwise)
{
	char value[64];
	setting(value, sizeof(value), name);
	return *value ? strtoll(value, NULL, 0) : otherwise;
}

static void text(char *into, size_t size, const char *name, const char *otherwise)
{
	setting(into, size, name);
	if (!*into)
		snprintf(into, size, "%s", otherwise);
}

static void configure(void)
{
	char *rest;
	memset(&config, 0, sizeof(config));
	read_file();
	text(config.gpus, sizeof(config.gpus), "DOUBLE_GPUS", "0000:3b:00.0,0000:5e:00.0");
	text(config.name, sizeof(config.name), "DOUBLE_NAME", "NVIDIA H200");
	text(config.log, sizeof(config.log), "DOUBLE_LOG", "");
	config.version = number("DOUBLE_VERSION", 13000);
	config.mode = number("DOUBLE_COMPUTE_MODE", 0);
	config.gdr = number("DOUBLE_GDR", 1);
	config.dmabuf = number("DOUBLE_DMABUF", 1);
	config.ordering = number("DOUBLE_ORDERING", 100);
	config.total = number("DOUBLE_TOTAL", 16LL << 30);
	config.free = number("DOUBLE_FREE", config.total);
	config.context = number("DOUBLE_CONTEXT", 0);
	config.unregistrable = number("DOUBLE_UNREGISTRABLE", 0);
	config.flip = number("DOUBLE_FLIP", 0);
	config.taken = number("DOUBLE_TAKEN", 0);
	text(config.fail, sizeof(config.fail), "DOUBLE_FAIL", "");
	if ((rest = strchr(config.fail, ':'))) {
		*rest = 0;
		config.fail_code = strtol(rest + 1, &rest, 0);
		config.fail_from = *rest == ':' ? atoi(rest + 1) : 1;
	}
	text(config.hang, sizeof(config.hang), "DOUBLE_HANG", "");
	config.hang_ms = -1;
	if ((rest = strchr(config.hang, ':'))) {
		*rest = 0;
		config.hang_ms = atoi(rest + 1);
	}
	text(config.crash, sizeof(config.crash), "DOUBLE_CRASH", "");
	text(config.sticky, sizeof(config.sticky), "DOUBLE_STICKY", "");
	if ((rest = strchr(config.sticky, ':'))) {
		*rest = 0;
		config.sticky_code = atoi(rest + 1);
	}
	text(config.once, sizeof(config.once), "DOUBLE_ONCE", "");
	text(config.devfile, sizeof(config.devfile), "DOUBLE_DEVFILE", "");
	config.cloexec = number("DOUBLE_DEVFILE_CLOEXEC", 1);
}

static void note(const char *line)
{
	FILE *file = *config.log ? fopen(config.log, "a") : NULL;
	if (!file)
		return;
	fprintf(file, "%s\n", line);
	fclose(file);
}

static void hang(void)
{
	if (config.hang_ms >= 0) {
		usleep(config.hang_ms * 1000u);
		return;
	}
	pthread_mutex_unlock(&lock); // only this call hangs
	for (;;)
		pause();
}

// Whether a function is the one that is to do something extraordinary, now.
static int chosen(const char *function, const char *name)
{
	return *name && !strcmp(function, name) && (!*config.once || !unlink(config.once));
}

static void crash(void)
{
	volatile int *volatile nowhere = NULL;
	*nowhere = 0;
}

// What every function begins with: it takes the lock, and returns what to answer
// with at once. Needs is 0 for nothing, 1 for cuInit, 2 for a current context.
static int enter(const char *function, int needs)
{
	pthread_mutex_lock(&lock);
	if (*config.log)
		note(function);
	if (chosen(function, config.crash))
		crash();
	if (chosen(function, config.hang))
		hang();
	if (chosen(function, config.sticky))
		broken = config.sticky_code;
	if (broken)
		return broken;
	if (*config.fail && !strcmp(function, config.fail) && ++config.calls >= config.fail_from)
		return config.fail_code;
	if (needs >= 1 && !initialised)
		return NOT_INITIALIZED;
	if (needs >= 2 && (!contexts || current != &context))
		return INVALID_CONTEXT;
	return 0;
}

static int leave(int result)
{
	pthread_mutex_unlock(&lock);
	return result;
}

#define ENTER(needs) \
	do { \
		int refused = enter(__func__, needs); \
		if (refused) \
			return leave(refused); \
	} while (0)

int cuInit(unsigned int flags)
{
	pthread_mutex_lock(&lock);
	if (!contexts)
		configure();
	pthread_mutex_unlock(&lock);
	ENTER(0);
	if (*config.devfile && kept < 0) {
		kept = open(config.devfile, config.cloexec ? O_RDONLY | O_CLOEXEC : O_RDONLY);
		if (kept < 0)
			return leave(OPERATING_SYSTEM);
	}
	initialised = 1;
	return leave(flags ? INVALID_VALUE : 0);
}

int cuGetErrorName(int code, const char **name)
{
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (names[i].code == code) {
			*name = names[i].name;
			return 0;
		}
	*name = NULL;
	return INVALID_VALUE;
}

int cuDriverGetVersion(int *version)
{
	ENTER(0);
	*version = config.version;
	return leave(0);
}

static int device_number(const char *address)
{
	char list[sizeof(config.gpus)], *rest = list, *entry;
	memcpy(list, config.gpus, sizeof(list));
	for (int i = 0; (entry = strsep(&rest, ",")); i++)
		if (!address ? rest == NULL : !strcasecmp(entry, address))
			return i;
	return -1;
}

int cuDeviceGetCount(int *count)
{
	ENTER(1);
	*count = device_number(NULL) + 1;
	return leave(0);
}

int cuDeviceGetByPCIBusId(int *device, const char *address)
{
	ENTER(1);
	*device = device_number(address);
	return leave(*device < 0 ? INVALID_DEVICE : 0);
}

int cuDeviceGetName(char *name, int size, int device)
{
	ENTER(1);
	snprintf(name, size, "%s", config.name);
	return leave(device < 0 ? INVALID_DEVICE : 0);
}

#ifndef DOUBLE_OLD
int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
	ENTER(1);
	memset(uuid, 0xab, 16);
	uuid[15] = device;
	return leave(device < 0 ? INVALID_DEVICE : 0);
}
#endif

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	ENTER(1);
	switch (attribute) {
	case 20:
		*value = config.mode;
		break;
	case 116:
		*value = config.gdr;
		break;
#ifndef DOUBLE_OLD
	case 118:
		*value = config.ordering;
		break;
	case 124:
		*value = config.dmabuf;
		break;
#endif
	default:
		return leave(INVALID_VALUE);
	}
	return leave(device < 0 ? INVALID_DEVICE : 0);
}

int cuDevicePrimaryCtxRetain(void **into, int device)
{
	ENTER(1);
	if (device < 0)
		return leave(INVALID_DEVICE);
	if (config.taken) {
		config.mode = 3;
		return leave(DEVICE_UNAVAILABLE);
	}
	if (config.free < config.context)
		return leave(OUT_OF_MEMORY);
	if (!contexts)
		config.free -= config.context;
	contexts++;
	*into = &context;
	return leave(0);
}

int cuCtxSetCurrent(void *to)
{
	ENTER(1);
	if (to && to != &context)
		return leave(INVALID_CONTEXT);
	current = to;
	return leave(0);
}

static size_t used(void)
{
	size_t sum = 0;
	for (int i = 0; i < MOST; i++)
		sum += memories[i].device ? memories[i].size : 0;
	return sum;
}

int cuMemGetInfo_v2(size_t *free, size_t *total)
{
	ENTER(2);
	size_t now = used();
	*free = now < config.free ? config.free - now : 0;
	*total = config.total;
	return leave(0);
}

static void unmap(struct memory *m)
{
	if (m->device)
		munmap(m->device, m->size);
	if (m->shadow)
		munmap(m->shadow, m->size);
	close(m->fd);
	memset(m, 0, sizeof(*m));
}

// Maps the memory at an address that is aligned as CUDA's are.
static char *map(size_t size, int protection, int fd)
{
	char *room = mmap(NULL, size + ALIGNMENT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED)
		return NULL;
	size_t before = -(uintptr_t)room & (ALIGNMENT - 1);
	char *found = mmap(room + before, size, protection, MAP_SHARED | MAP_FIXED, fd, 0);
	if (found == MAP_FAILED) {
		munmap(room, size + ALIGNMENT);
		return NULL;
	}
	if (before)
		munmap(room, before);
	munmap(found + size, ALIGNMENT - before);
	return found;
}

int cuMemAlloc_v2(unsigned long long *pointer, size_t size)
{
	ENTER(2);
	struct memory *m = NULL;
	for (int i = 0; i < MOST && !m; i++)
		if (!memories[i].device)
			m = &memories[i];
	if (!m || size == 0 || used() + size > config.free)
		return leave(size ? OUT_OF_MEMORY : INVALID_VALUE);
	m->fd = memfd_create("gpu", MFD_CLOEXEC);
	m->size = size;
	if (m->fd < 0 || ftruncate(m->fd, size)
		|| !(m->shadow = map(size, PROT_READ | PROT_WRITE, m->fd))
		|| !(m->device = map(size, config.unregistrable ? PROT_NONE : PROT_READ | PROT_WRITE, m->fd))) {
		unmap(m);
		return leave(OUT_OF_MEMORY);
	}
	*pointer = (uintptr_t)m->device;
	return leave(0);
}

// The memory that has a range, or NULL.
static struct memory *holder(unsigned long long pointer, size_t size)
{
	for (int i = 0; i < MOST; i++) {
		struct memory *m = &memories[i];
		uintptr_t start = (uintptr_t)m->device;
		if (start && pointer >= start && pointer - start <= m->size && size <= m->size - (pointer - start))
			return m;
	}
	return NULL;
}

static void drain(struct stream *s, uint64_t until);

int cuMemFree_v2(unsigned long long pointer)
{
	ENTER(2);
	struct memory *m = holder(pointer, 1);
	if (!m || (uintptr_t)m->device != pointer)
		return leave(INVALID_VALUE);
	for (int i = 0; i < MOST; i++) // as the real one does: it waits for the GPU
		if (streams[i])
			drain(streams[i], streams[i]->queued);
	unmap(m);
	return leave(0);
}

int cuPointerSetAttribute(const void *value, int attribute, unsigned long long pointer)
{
	ENTER(2);
	struct memory *m = holder(pointer, 1);
	if (!m || attribute != 6)
		return leave(INVALID_VALUE);
	m->sync = *(const unsigned int *)value;
	return leave(0);
}

int cuPointerGetAttribute(void *value, int attribute, unsigned long long pointer)
{
	ENTER(2);
	struct memory *m = holder(pointer, 1);
	if (!m || attribute != 6)
		return leave(INVALID_VALUE);
	*(unsigned int *)value = m->sync;
	return leave(0);
}

#ifndef DOUBLE_OLD
int cuMemGetHandleForAddressRange(void *handle, unsigned long long pointer, size_t size, int type, unsigned long long flags)
{
	ENTER(2);
	struct memory *m = holder(pointer, size);
	long page = sysconf(_SC_PAGESIZE);
	if (!m || type != 1 || pointer % page || size % page)
		return leave(INVALID_VALUE);
	if (!config.dmabuf || flags)
		return leave(NOT_SUPPORTED);
	int fd = dup(m->fd);
	if (fd < 0)
		return leave(OUT_OF_MEMORY);
	*(int *)handle = fd;
	return leave(0);
}
#endif

static void move(struct copy c)
{
	memcpy(c.to, c.from, c.size);
	if (config.flip && c.size)
		c.to[c.size / 2]++;
}

static void drain(struct stream *s, uint64_t until)
{
	while (s->done < until)
		move(s->copies[s->done++ % QUEUE]);
}

// Where in its shadow a range of GPU memory is.
static char *shadow(unsigned long long pointer, size_t size)
{
	struct memory *m = holder(pointer, size);
	return m ? m->shadow + (pointer - (uintptr_t)m->device) : NULL;
}

int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size)
{
	ENTER(2);
	char *at = shadow(to, size);
	if (!at)
		return leave(INVALID_VALUE);
	move((struct copy){at, from, size});
	return leave(0);
}

int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size)
{
	ENTER(2);
	char *at = shadow(from, size);
	if (!at)
		return leave(INVALID_VALUE);
	move((struct copy){to, at, size});
	return leave(0);
}

static int is_pinned(const char *host, size_t size)
{
	for (int i = 0; i < MOST; i++)
		if (pins[i].host && host >= pins[i].host && host + size <= pins[i].host + pins[i].size)
			return 1;
	return 0;
}

static int enqueue(struct stream *s, struct copy c, const char *host)
{
	if (!s || !s->used)
		return INVALID_HANDLE;
	if (!c.to || !c.from || !is_pinned(host, c.size))
		return INVALID_VALUE;
	if (s->queued - s->done == QUEUE)
		drain(s, s->done + 1);
	s->copies[s->queued++ % QUEUE] = c;
	return 0;
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t size, struct stream *s)
{
	ENTER(2);
	return leave(enqueue(s, (struct copy){shadow(to, size), from, size}, from));
}

int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t size, struct stream *s)
{
	ENTER(2);
	return leave(enqueue(s, (struct copy){to, shadow(from, size), size}, to));
}

int cuMemHostRegister_v2(void *host, size_t size, unsigned int flags)
{
	ENTER(2);
	struct pinned *free = NULL;
	for (int i = 0; i < MOST; i++) {
		if (!pins[i].host)
			free = &pins[i];
		else if ((char *)host < pins[i].host + pins[i].size && pins[i].host < (char *)host + size)
			return leave(ALREADY_REGISTERED);
	}
	if (!free || !host || !size || flags)
		return leave(INVALID_VALUE);
	*free = (struct pinned){host, size};
	return leave(0);
}

int cuMemHostUnregister(void *host)
{
	ENTER(2);
	for (int i = 0; i < MOST; i++)
		if (host && pins[i].host == host) {
			pins[i].host = NULL;
			return leave(0);
		}
	return leave(NOT_REGISTERED);
}

int cuStreamCreate(struct stream **stream, unsigned int flags)
{
	ENTER(2);
	for (int i = 0; i < MOST; i++)
		if (!streams[i]) {
			*stream = streams[i] = calloc(1, sizeof(struct stream));
			if (!*stream)
				break;
			(*stream)->used = 1;
			return leave(flags == 1 ? 0 : INVALID_VALUE);
		}
	return leave(OUT_OF_MEMORY);
}

static int is_stream(struct stream *s)
{
	for (int i = 0; i < MOST; i++)
		if (s && streams[i] == s)
			return 1;
	return 0;
}

int cuStreamSynchronize(struct stream *s)
{
	ENTER(2);
	if (!is_stream(s))
		return leave(INVALID_HANDLE);
	drain(s, s->queued);
	return leave(0);
}

// Ends a stream; events on it have been reached.
static void end(struct stream *s)
{
	drain(s, s->queued);
	for (int i = 0; i < MOST; i++) {
		if (events[i].stream == s)
			events[i].stream = NULL;
		if (streams[i] == s)
			streams[i] = NULL;
	}
	free(s);
}

int cuStreamDestroy_v2(struct stream *s)
{
	ENTER(2);
	if (!is_stream(s))
		return leave(INVALID_HANDLE);
	end(s);
	return leave(0);
}

int cuEventCreate(struct event **event, unsigned int flags)
{
	ENTER(2);
	for (int i = 0; i < MOST; i++)
		if (!events[i].used) {
			events[i] = (struct event){1, NULL, 0};
			*event = &events[i];
			return leave(flags & ~3u ? INVALID_VALUE : 0);
		}
	return leave(OUT_OF_MEMORY);
}

int cuEventRecord(struct event *event, struct stream *s)
{
	ENTER(2);
	if (!event || !event->used || !is_stream(s))
		return leave(INVALID_HANDLE);
	event->stream = s;
	event->at = s->queued;
	return leave(0);
}

int cuEventQuery(struct event *event)
{
	ENTER(2);
	if (!event || !event->used)
		return leave(INVALID_HANDLE);
	struct stream *s = event->stream;
	if (!s || s->done >= event->at)
		return leave(0);
	drain(s, s->done + 1);
	return leave(NOT_READY);
}

int cuEventSynchronize(struct event *event)
{
	ENTER(2);
	if (!event || !event->used)
		return leave(INVALID_HANDLE);
	if (event->stream)
		drain(event->stream, event->at);
	return leave(0);
}

int cuEventDestroy_v2(struct event *event)
{
	ENTER(2);
	if (!event || !event->used)
		return leave(INVALID_HANDLE);
	event->used = 0;
	return leave(0);
}

// Releases a context, with all that lives in it, and says how much that was.
int cuDevicePrimaryCtxRelease_v2(int device)
{
	char line[96];
	int memory = 0, pinned = 0, flowing = 0, marked = 0;
	int result = enter(__func__, 1);
	if (!initialised || device < 0 || !contexts)
		return leave(device < 0 ? INVALID_DEVICE : INVALID_CONTEXT);
	if (--contexts) // also if it is to fail: nobody could do it later
		return leave(result);
	for (int i = 0; i < MOST; i++) {
		flowing += streams[i] != NULL;
		if (streams[i])
			end(streams[i]);
	}
	for (int i = 0; i < MOST; i++) {
		memory += memories[i].device != NULL;
		if (memories[i].device)
			unmap(&memories[i]);
		pinned += pins[i].host != NULL;
		marked += events[i].used;
	}
	memset(pins, 0, sizeof(pins));
	memset(events, 0, sizeof(events));
	config.free += config.context;
	snprintf(line, sizeof(line), "released memory=%d pinned=%d streams=%d events=%d", memory, pinned, flowing, marked);
	note(line);
	if (!result && (memory || pinned || flowing || marked))
		result = ILLEGAL_STATE;
	return leave(result);
}
