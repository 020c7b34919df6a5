/* A stand-in for libnvidia-ml.so.1 with one GPU, as an old driver's: it has few
 * of the functions. VERSION is its version; the file named by
 * GDR_TEST_KERNEL_DRIVER holds that of the "kernel module", and its absence
 * means that none is loaded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, DRIVER_NOT_LOADED = 9, LIB_RM_VERSION_MISMATCH = 18 };

static int kernel(void) {
	char version[32] = "";
	FILE *f = fopen(getenv("GDR_TEST_KERNEL_DRIVER"), "r");
	if (!f)
		return DRIVER_NOT_LOADED;
	if (!fgets(version, sizeof version, f))
		version[0] = 0;
	fclose(f);
	version[strcspn(version, "\n")] = 0;
	return strcmp(version, VERSION) ? LIB_RM_VERSION_MISMATCH : SUCCESS;
}

int nvmlInit_v2(void) { return kernel(); }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return kernel(); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int ret) {
	return ret == LIB_RM_VERSION_MISMATCH ? "Driver/library version mismatch" : ret == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "stand-in";
}

static int text(char *to, unsigned room, const char *from) {
	int ret = kernel();
	if (ret == SUCCESS)
		snprintf(to, room, "%s", from);
	return ret;
}

int nvmlSystemGetDriverVersion(char *to, unsigned room) { return text(to, room, VERSION); }
int nvmlSystemGetNVMLVersion(char *to, unsigned room) { return text(to, room, "12." VERSION); }

int nvmlDeviceGetCount_v2(unsigned *count) {
	*count = 1;
	return kernel();
}

static int device;

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
	*handle = &device;
	return index ? INVALID_ARGUMENT : kernel();
}

struct pci {
	char legacy[16];
	unsigned domain, bus, device, id, subsystem;
	char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci) {
	(void)handle;
	memset(pci, 0, sizeof *pci);
	pci->bus = 0x1b;
	pci->id = 0x233010de;
	strcpy(pci->legacy, "0000:1B:00.0");
	strcpy(pci->bus_id, "00000000:1B:00.0");
	return kernel();
}

int nvmlDeviceGetUUID(void *handle, char *to, unsigned room) { (void)handle; return text(to, room, "GPU-00000000-0000-0000-0000-000000000001"); }
int nvmlDeviceGetName(void *handle, char *to, unsigned room) { (void)handle; return text(to, room, "NVIDIA stand-in"); }

int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long memory[3]) {
	(void)handle;
	memory[0] = 80ULL << 30;
	memory[1] = 79ULL << 30;
	memory[2] = 1ULL << 30;
	return kernel();
}
