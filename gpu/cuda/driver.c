#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *function(struct gdr_cuda *gdr, int required, const char *name, const char **missing)
{
	void *found = dlsym(gdr->library, name);
	if (!found && required && !*missing)
		*missing = name;
	return found;
}

struct gdr_cuda *gdr_cuda_load(const char *path, char *error, size_t size)
{
	const char *missing = NULL;
	struct gdr_cuda *gdr = calloc(1, sizeof(*gdr));
	if (!gdr) {
		snprintf(error, size, "out of memory");
		return NULL;
	}
	gdr->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!gdr->library) {
		const char *text = dlerror();
		snprintf(error, size, "%s", text ? text : "dlopen failed");
		free(gdr);
		return NULL;
	}
	// POSIX lets an object pointer be a function; C's type system has no cast for it.
#define LOOKUP(required, name, arguments, ...) *(void **)&gdr->name = function(gdr, required, #name, &missing);
	GDR_CUDA_FUNCTIONS(LOOKUP)
#undef LOOKUP
	if (missing) {
		snprintf(error, size, "%s: it does not have %s", path, missing);
		gdr_cuda_unload(gdr);
		return NULL;
	}
	return gdr;
}

void gdr_cuda_unload(struct gdr_cuda *gdr)
{
	dlclose(gdr->library);
	free(gdr);
}
