/* A library for LD_PRELOAD in addition to the shim: it replaces malloc and cuMemAlloc_v2, as others do, by dlsym(RTLD_NEXT), and
 * counts.  At the end it prints the number of calls to stderr. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static unsigned long mallocs, allocs;
static void *(*real_malloc)(size_t);
static int (*real_alloc)(unsigned long long *, size_t);

EXPORT void *malloc(size_t bytes)
{
	if (!real_malloc)
		*(void **)&real_malloc = dlsym(RTLD_NEXT, "malloc");
	__atomic_fetch_add(&mallocs, 1, __ATOMIC_RELAXED);
	return real_malloc(bytes);
}

EXPORT int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
EXPORT int cuMemAlloc_v2(unsigned long long *address, size_t bytes)
{
	if (!real_alloc)
		*(void **)&real_alloc = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
	allocs++;
	return real_alloc(address, bytes);
}

static void __attribute__((constructor)) begin(void)
{
	*(void **)&real_malloc = dlsym(RTLD_NEXT, "malloc"); /* perhaps before the shim's own constructor */
}

static void __attribute__((destructor)) end(void)
{
	char line[80];
	int used = snprintf(line, sizeof(line), "mallocs %d allocs %lu\n", mallocs > 0, allocs);

	if (write(2, line, (size_t)used) < 0)
		_exit(9);
}
