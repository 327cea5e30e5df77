/* cuGetProcAddress: of a plain name the version that was current in the CUDA asked for. */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *name, *suffix;
	int since; /* the CUDA that brought it */
} newer[] = { /* versions with other arguments; the newest first */
	{ "cuCtxCreate", "_v4", 12050 },
	{ "cuCtxCreate", "_v3", 11040 },
	{ "cuCtxCreate", "_v2", 3020 },
	{ "cuGetProcAddress", "_v2", 12000 },
	{ "cuGetProcAddress", "", 11030 },
};

/* Functions that use the default stream have a second version for a default stream per thread. */
static void *find_suffixed(void *library, const char *symbol, const char *suffix, bool is_per_thread)
{
	static const char *const streams[] = { "_ptsz", "_ptds" };
	void *found = NULL;
	char name[128];

	for (unsigned i = 0; i < 2 && is_per_thread && !found; i++) {
		snprintf(name, sizeof(name), "%s%s%s", symbol, suffix, streams[i]);
		found = dlsym(library, name);
	}
	snprintf(name, sizeof(name), "%s%s", symbol, suffix);
	return found ? found : dlsym(library, name);
}

static void *find_in(void *library, const char *symbol, int version, bool is_per_thread)
{
	static const char *const suffixes[] = { "_v4", "_v3", "_v2", "" };
	void *found = NULL;

	for (size_t i = 0; i < sizeof(newer) / sizeof(*newer); i++)
		if (strcmp(newer[i].name, symbol) == 0 && version >= newer[i].since)
			return find_suffixed(library, symbol, newer[i].suffix, is_per_thread);
	for (unsigned i = 0; i < 4 && !found; i++)
		found = find_suffixed(library, symbol, suffixes[i], is_per_thread);
	return found;
}

static void *find(const char *symbol, int version, bool is_per_thread)
{
	Dl_info self;
	void *library, *found;

	if (!dladdr((void *)(uintptr_t)&cuInit, &self))
		return NULL;
	library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!library)
		return NULL;
	found = find_in(library, symbol, version, is_per_thread);
	dlclose(library);
	return found;
}

SIM_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
					CUdriverProcAddressQueryResult *symbolStatus)
{
	if (!symbol || !pfn || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	*pfn = find(symbol, cudaVersion, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
	if (symbolStatus)
		*symbolStatus = *pfn ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return *pfn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* NVRTC asks, and crashes without the function.  Tables are the vendor's private interface: there are none here. */
SIM_EXPORT CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
	if (!ppExportTable || !pExportTableId)
		return CUDA_ERROR_INVALID_VALUE;
	*ppExportTable = NULL;
	return CUDA_ERROR_NOT_FOUND;
}
