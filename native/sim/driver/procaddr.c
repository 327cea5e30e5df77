/* cuGetProcAddress: of a plain name the version that was current in the CUDA asked for. */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *name, *suffix;
	int since; /* the CUDA that brought it */
} newer[] = { /* of those whose arguments differ; the newest first */
	{ "cuCtxCreate", "_v4", 12050 },
	{ "cuCtxCreate", "_v3", 11040 },
	{ "cuCtxCreate", "_v2", 3020 },
	{ "cuGetProcAddress", "_v2", 12000 },
	{ "cuGetProcAddress", "", 11030 },
};

static void *find_suffixed(void *library, const char *symbol, const char *suffix)
{
	char name[128];

	snprintf(name, sizeof(name), "%s%s", symbol, suffix);
	return dlsym(library, name);
}

static void *find_in(void *library, const char *symbol, int version)
{
	static const char *const suffixes[] = { "_v4", "_v3", "_v2", "" };
	void *found = NULL;

	for (size_t i = 0; i < sizeof(newer) / sizeof(*newer); i++)
		if (strcmp(newer[i].name, symbol) == 0 && version >= newer[i].since)
			return find_suffixed(library, symbol, newer[i].suffix);
	for (unsigned i = 0; i < 4 && !found; i++)
		found = find_suffixed(library, symbol, suffixes[i]);
	return found;
}

static void *find(const char *symbol, int version)
{
	Dl_info self;
	void *library, *found;

	if (!dladdr((void *)(uintptr_t)&cuInit, &self))
		return NULL;
	library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!library)
		return NULL;
	found = find_in(library, symbol, version);
	dlclose(library);
	return found;
}

SIM_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
					CUdriverProcAddressQueryResult *symbolStatus)
{
	(void)flags;
	if (!symbol || !pfn)
		return CUDA_ERROR_INVALID_VALUE;
	*pfn = find(symbol, cudaVersion);
	if (symbolStatus)
		*symbolStatus = *pfn ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return *pfn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
