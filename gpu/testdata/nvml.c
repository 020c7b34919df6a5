// A library that has little of NVML: the functions without which nothing works,
// and those whose arguments go through more than a plain call. Every other one is
// missing, as it is from a driver that is older than go-nvml.
#include <stdlib.h>
#include <string.h>

struct pci_info {
	char legacy[16];
	unsigned int domain, bus, device, id, subsystem;
	char bus_id[32];
};

struct memory {
	unsigned long long total, free, used;
};

struct event {
	void *device;
	unsigned long long type, data;
	unsigned int gpu_instance, compute_instance;
};

struct field {
	unsigned int id, scope;
	long long timestamp, latency;
	unsigned int type, ret;
	union {
		unsigned int number;
		unsigned long long large;
	} value;
};

struct fabric_v2 {
	unsigned int version;
	unsigned char cluster[16];
	unsigned int status, clique;
	unsigned char state;
	unsigned int health;
};

static int initialised, registered, events = 2;
static char gpus[2];

int nvmlInit_v2(void)
{
	if (getenv("GDR_TEST_MISMATCH"))
		return 18;
	initialised++;
	return 0;
}

int nvmlShutdown(void)
{
	if (!initialised)
		return 1;
	initialised--;
	return 0;
}

const char *nvmlErrorString(int ret)
{
	(void)ret;
	abort(); // the reader has names of its own
}

int nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	strncpy(version, "999.1", length);
	return 0;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
	*count = 2;
	return initialised ? 0 : 1;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
	if (index > 1)
		return 2;
	*device = &gpus[index];
	return 0;
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *pci)
{
	memset(pci, 0, sizeof(*pci));
	strcpy(pci->bus_id, device == &gpus[0] ? "00000000:3B:00.0" : "00000000:5E:00.0");
	return 0;
}

int nvmlDeviceGetP2PStatus(void *a, void *b, int capability, int *status)
{
	*status = capability;
	return a == &gpus[0] && b == &gpus[1] ? 0 : 2;
}

int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, int *level)
{
	*level = 30;
	return a == &gpus[0] && b == &gpus[1] ? 0 : 2;
}

int nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric_v2 *info)
{
	(void)device;
	if (getenv("GDR_TEST_MISMATCH"))
		return 999;
	if (info->version != (sizeof(*info) | 2u << 24))
		return 25; // this driver knows version 2 only
	memset(info->cluster, 0xab, sizeof(info->cluster));
	info->status = 0;
	info->clique = 7;
	info->state = 3;
	info->health = 2;
	return 0;
}

int nvmlDeviceGetFieldValues(void *device, int count, struct field *fields)
{
	(void)device;
	if (getenv("GDR_TEST_MISMATCH"))
		return 999;
	for (int i = 0; i < count; i++) {
		fields[i].ret = 3;
		if (fields[i].id == 230) {
			fields[i].ret = 0;
			fields[i].type = 1;
			fields[i].value.large = ~0ULL;
			fields[i].value.number = 2;
		}
	}
	return 0;
}

int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types)
{
	(void)device;
	*types = 0xd;
	return 0;
}

int nvmlEventSetCreate(void **set)
{
	*set = &events;
	return 0;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
	(void)device;
	registered++;
	return set == &events && types == 8 ? 0 : 2;
}

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned int timeout)
{
	if (set != &events || timeout || registered < 2)
		return 2;
	if (events == 0)
		return 10;
	events--;
	event->device = &gpus[1];
	event->type = 8;
	event->data = 79;
	return 0;
}

int nvmlEventSetFree(void *set)
{
	registered = 0;
	return set == &events ? 0 : 2;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
	(void)device;
	if (getenv("GDR_TEST_MISMATCH"))
		return 999;
	memory->total = 3000;
	memory->free = 2000;
	memory->used = 1000;
	return 0;
}
