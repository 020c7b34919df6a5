// A libnvidia-ml with the functions without which a GPU is not usable, and nothing
// else, as a very old driver's. Package nvmltest says what the settings make it do.
// VERSION is its version.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NO_PERMISSION = 4,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	GPU_IS_LOST = 15,
	LIB_RM_VERSION_MISMATCH = 18,
	MOST = 16, // GPUs
};

static int initialised, device_file = -1;
static char gpus[MOST];

// The value of a name for a GPU: the file's NAME@ADDRESS, else its NAME, else the
// environment's; otherwise if there is none.
static void setting(char *into, size_t size, const char *name, const char *address, const char *otherwise)
{
	char line[1024], key[128];
	const char *path = getenv("NVMLTEST_FILE");
	FILE *file = path && *path ? fopen(path, "re") : NULL;
	int rank = 0;
	snprintf(key, sizeof(key), "NVMLTEST_%s", name);
	snprintf(into, size, "%s", getenv(key) ? getenv(key) : otherwise);
	snprintf(key, sizeof(key), "%s@%s", name, address ? address : "");
	while (file && fgets(line, sizeof(line), file)) {
		char *value = strchr(line, '=');
		line[strcspn(line, "\n")] = 0;
		if (!value)
			continue;
		*value++ = 0;
		int found = address && !strcmp(line, key) ? 2 : !strcmp(line, name);
		if (found && found >= rank) {
			rank = found;
			snprintf(into, size, "%s", value);
		}
	}
	if (file)
		fclose(file);
}

static long long number(const char *name, const char *address, const char *otherwise)
{
	char value[64];
	setting(value, sizeof(value), name, address, otherwise);
	return strtoll(value, NULL, 0);
}

// The index-th element of a list with commas, or 0.
static int element(char *into, size_t size, const char *list, int index)
{
	for (; index && *list; index--) {
		list += strcspn(list, ",");
		list += *list == ',';
	}
	snprintf(into, size, "%.*s", (int)strcspn(list, ","), list);
	return *into != 0;
}

static int address_of(char *into, size_t size, int index)
{
	char list[512];
	setting(list, sizeof(list), "GPUS", NULL, "0000:3b:00.0,0000:5e:00.0");
	return element(into, size, list, index);
}

// Whether a setting names the function, with or without its version; rest is what
// follows a colon.
static int names(const char *setting_name, const char *function, char *rest, size_t size)
{
	char value[128];
	setting(value, sizeof(value), setting_name, NULL, "");
	size_t length = strcspn(value, ":");
	snprintf(rest, size, "%s", value[length] ? value + length + 1 : "");
	return length && !strncmp(value, function, length) && (!function[length] || !strncmp(function + length, "_v", 2));
}

// Whether library and kernel module fit.
static int kernel(void)
{
	char path[512], version[64] = "";
	setting(path, sizeof(path), "KERNEL", NULL, "");
	if (!*path)
		return SUCCESS;
	FILE *file = fopen(path, "re");
	if (!file)
		return DRIVER_NOT_LOADED;
	if (!fgets(version, sizeof(version), file))
		*version = 0;
	fclose(file);
	version[strcspn(version, "\n")] = 0;
	return strcmp(version, VERSION) ? LIB_RM_VERSION_MISMATCH : SUCCESS;
}

// What every function begins with; it returns what to answer with at once.
static int enter(const char *function)
{
	char rest[16];
	while (names("HANG", function, rest, sizeof(rest)))
		usleep(5000);
	if (names("FAIL", function, rest, sizeof(rest)))
		return atoi(rest);
	return kernel();
}

static int enter_up(const char *function)
{
	int refused = enter(function);
	return refused ? refused : initialised ? SUCCESS : UNINITIALIZED;
}

// enter_up for a call about a GPU, whose address it tells.
static int enter_gpu(const char *function, const char *device, char *address, size_t size)
{
	int refused = enter_up(function);
	if (refused)
		return refused;
	if (device < gpus || device >= gpus + MOST || !address_of(address, size, device - gpus))
		return INVALID_ARGUMENT;
	return number("LOST", address, "0") ? GPU_IS_LOST : SUCCESS;
}

#define ENTER(how, ...) \
	do { \
		int refused = how(__VA_ARGS__); \
		if (refused) \
			return refused; \
	} while (0)

#define ENTER_GPU() \
	char address[32]; \
	ENTER(enter_gpu, __func__, device, address, sizeof(address))

int nvmlInitWithFlags(unsigned int flags)
{
	char path[512];
	ENTER(enter, "nvmlInit");
	setting(path, sizeof(path), "DEVFILE", NULL, "");
	if (!flags && *path && !initialised) {
		device_file = open(path, number("DEVFILE_CLOEXEC", NULL, "1") ? O_RDONLY | O_CLOEXEC : O_RDONLY);
		if (device_file < 0)
			return NO_PERMISSION;
	}
	initialised++;
	return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
	char rest[16];
	while (names("HANG", __func__, rest, sizeof(rest)))
		usleep(5000);
	if (!initialised)
		return UNINITIALIZED;
	if (!--initialised && device_file >= 0) {
		close(device_file);
		device_file = -1;
	}
	return SUCCESS;
}

const char *nvmlErrorString(int ret)
{
	return ret == LIB_RM_VERSION_MISMATCH ? "Driver/library version mismatch" : ret == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "stand-in";
}

int nvmlSystemGetDriverVersion(char *to, unsigned int room)
{
	ENTER(enter_up, __func__);
	snprintf(to, room, "%s", VERSION);
	return SUCCESS;
}

int nvmlSystemGetNVMLVersion(char *to, unsigned int room)
{
	ENTER(enter_up, __func__);
	snprintf(to, room, "12.%s", VERSION);
	return SUCCESS;
}

struct confidential {
	unsigned int environment, feature, devtools;
};

int nvmlSystemGetConfComputeState(struct confidential *state)
{
	ENTER(enter_up, __func__);
	int value = number("CONFIDENTIAL", NULL, "-1");
	*state = (struct confidential){0, value, 0};
	return value < 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
	char address[32];
	ENTER(enter_up, __func__);
	for (*count = 0; *count < MOST && address_of(address, sizeof(address), *count); ++*count)
		;
	return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, char **handle)
{
	char address[32];
	ENTER(enter_up, __func__);
	if (index >= MOST || !address_of(address, sizeof(address), index))
		return INVALID_ARGUMENT;
	*handle = &gpus[index];
	return number("LOST", address, "0") ? GPU_IS_LOST : SUCCESS;
}

struct pci {
	char legacy[16];
	unsigned int domain, bus, device, id, subsystem;
	char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(char *device, struct pci *pci)
{
	unsigned int function;
	ENTER_GPU();
	memset(pci, 0, sizeof(*pci));
	if (sscanf(address, "%x:%x:%x.%x", &pci->domain, &pci->bus, &pci->device, &function) != 4)
		return INVALID_ARGUMENT;
	pci->id = 0x233510de; // H200
	snprintf(pci->legacy, sizeof(pci->legacy), "%04X:%02X:%02X.%X", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0x1f, function & 7);
	snprintf(pci->bus_id, sizeof(pci->bus_id), "%08X:%02X:%02X.%X", pci->domain, pci->bus & 0xff, pci->device & 0x1f, function & 7);
	return SUCCESS;
}

int nvmlDeviceGetUUID(char *device, char *to, unsigned int room)
{
	char usual[48];
	ENTER_GPU();
	// As the stand-in for libcuda has it.
	snprintf(usual, sizeof(usual), "GPU-abababab-abab-abab-abab-ababababab%02x", (unsigned int)(device - gpus) & 0xff);
	setting(to, room, "UUID", address, usual);
	return SUCCESS;
}

int nvmlDeviceGetName(char *device, char *to, unsigned int room)
{
	ENTER_GPU();
	setting(to, room, "NAME", address, "NVIDIA stand-in");
	return SUCCESS;
}

struct memory {
	unsigned long long total, free, used;
};

int nvmlDeviceGetMemoryInfo(char *device, struct memory *memory)
{
	char total[32];
	ENTER_GPU();
	setting(total, sizeof(total), "TOTAL", address, "17179869184"); // 16 GiB
	memory->total = strtoull(total, NULL, 0);
	memory->free = number("FREE", address, total);
	memory->used = memory->total - memory->free;
	return SUCCESS;
}

int nvmlDeviceGetComputeMode(char *device, int *mode)
{
	ENTER_GPU();
	*mode = number("COMPUTE_MODE", address, "0");
	return SUCCESS;
}

int nvmlDeviceGetMigMode(char *device, unsigned int *current, unsigned int *pending)
{
	ENTER_GPU();
	*current = *pending = number("MIG", address, "0");
	return SUCCESS;
}

int nvmlDeviceGetPersistenceMode(char *device, int *mode)
{
	ENTER_GPU();
	*mode = number("PERSISTENCE", address, "1");
	return SUCCESS;
}

struct utilization {
	unsigned int gpu, memory;
};

int nvmlDeviceGetUtilizationRates(char *device, struct utilization *rates)
{
	ENTER_GPU();
	int percent = number("UTILIZATION", address, "0");
	*rates = (struct utilization){percent, 0};
	return percent < 0 ? NOT_SUPPORTED : SUCCESS;
}

struct process {
	unsigned int pid;
	unsigned long long used;
	unsigned int gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(char *device, unsigned int *count, struct process *processes)
{
	char list[512], pid[16];
	unsigned int room = *count, i;
	ENTER_GPU();
	setting(list, sizeof(list), "PROCESSES", address, "");
	for (i = 0; element(pid, sizeof(pid), list, i); i++)
		if (i < room)
			processes[i] = (struct process){atoi(pid), 1 << 20, ~0u, ~0u};
	*count = i;
	return i > room ? INSUFFICIENT_SIZE : SUCCESS;
}
