/* The real functions: libcuda's, and the C library's dlsym. They are looked up in the libraries' own tables (elf.c), so that no
 * library that replaces dlsym, this one included, is asked. */
#include "shim.h"

#include "elf.h"

#include <dlfcn.h>

struct real real;
void *(*real_dlsym)(void *, const char *);
void *(*real_dlvsym)(void *, const char *, const char *);

static struct elf_object libcuda;
static bool is_filled; /* `real` and `libcuda` */

static void *find(void *object, const char *name)
{
	return elf_find_symbol(object, name);
}

static void fill(struct real *out, struct elf_object *object)
{
#define OWN(name, base, since, stream, parameters, arguments) *(void **)&out->name = find(object, #name);
#define SYNC OWN
#define WATCH OWN
#include "hooks.def"
#undef OWN
#undef SYNC
#undef WATCH
#define OTHER(name) *(void **)&out->name = find(object, #name)
	OTHER(cuCtxGetCurrent);
	OTHER(cuCtxGetDevice);
	OTHER(cuDeviceGetUuid_v2);
	OTHER(cuDevicePrimaryCtxGetState);
	OTHER(cuDevicePrimaryCtxRetain);
	OTHER(cuDeviceTotalMem_v2);
	OTHER(mpsd_sim_uvm_ioctl);
	OTHER(mpsd_sim_uvm_mmap);
#undef OTHER
	out->has_vmm = mpsd_driver_load(&out->vmm, find, object) == 0;
}

/* Fills the empty words. All early threads have the same ones, so that none waits for another, nor does a child after fork for
 * a thread that it does not have. */
static void share(void *shared, const void *mine, size_t bytes)
{
	typedef uintptr_t __attribute__((may_alias)) word;
	word *to = shared;
	const word *from = mine;

	for (size_t i = 0; i < bytes / sizeof(word); i++) {
		word empty = 0;

		__atomic_compare_exchange_n(&to[i], &empty, from[i], false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	}
}

_Static_assert(sizeof(struct real) % sizeof(uintptr_t) == 0, "whole words");
_Static_assert(sizeof(struct elf_object) % sizeof(uintptr_t) == 0, "whole words");

/* No lock is held during calls of the loader, since a thread with the loader's lock may be about to call this function: each
 * early thread fills its own table. */
bool real_load(void)
{
	struct elf_object object;
	struct real mine = { 0 };

	if (__atomic_load_n(&is_filled, __ATOMIC_ACQUIRE))
		return true;
	if (!elf_find_object("libcuda.so.1", &object))
		return false;
	/* A program may close and open it again: it stays, or what we have found would point nowhere. */
	if (!dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE))
		return false;
	fill(&mine, &object);
	share(&real, &mine, sizeof(real));
	share(&libcuda, &object, sizeof(libcuda));
	__atomic_store_n(&is_filled, true, __ATOMIC_RELEASE);
	return true;
}

bool real_is_driver(const void *address)
{
	return __atomic_load_n(&is_filled, __ATOMIC_ACQUIRE) && elf_contains(&libcuda, address);
}

void real_find_dlsym(void)
{
	static const char *const homes[] = { "libc.so.6", "libdl.so.2" }; /* since glibc 2.34, and before */
	struct elf_object object;
	void *found;

	for (unsigned i = 0; i < sizeof(homes) / sizeof(*homes); i++) {
		if (!elf_find_early(homes[i], &object))
			continue;
		found = elf_find_symbol(&object, "dlvsym");
		if (found && !__atomic_load_n((void **)&real_dlvsym, __ATOMIC_RELAXED))
			__atomic_store_n((void **)&real_dlvsym, found, __ATOMIC_RELAXED);
		found = elf_find_symbol(&object, "dlsym");
		if (found && !__atomic_load_n((void **)&real_dlsym, __ATOMIC_RELAXED))
			__atomic_store_n((void **)&real_dlsym, found, __ATOMIC_RELEASE);
	}
}
