/* How a program gets the shim's functions: dlsym and dlvsym (by way of dlsym.S), and cuGetProcAddress.
 *
 *   asked for               returns the shim's function when
 *   dlsym(handle, name)     the real answer is libcuda's function of that name, or the shim's
 *   RTLD_DEFAULT            the definition after the shim's is libcuda's
 *   RTLD_NEXT               never by the shim: the order of libraries decides
 *   cuGetProcAddress        the driver's answer is a version of the function that the shim knows
 *
 * The shim does not change the answers to libcuda's own requests. */
#include "shim.h"

#include <dlfcn.h>

enum { LEGACY_FLAG = 1, PER_THREAD_FLAG = 2 }; /* of cuGetProcAddress */
#define LEGACY false
#define PER_THREAD true

#define SYNC OWN
#define WATCH OWN

static const struct hook hooks[] = {
#define OWN(name, base, since, stream, parameters, arguments) \
	{ #name, #base, since, stream, (void *)name, offsetof(struct real, name) },
#include "hooks.def"
#undef OWN
#undef SYNC
#undef WATCH
};
static const size_t hook_count = sizeof(hooks) / sizeof(*hooks);

const struct hook *hook_named(const char *name)
{
	for (size_t i = 0; i < hook_count; i++)
		if (strcmp(hooks[i].name, name) == 0)
			return &hooks[i];
	return NULL;
}

struct decision { /* in two registers */
	long is_decided;
	void *value;
};

/* Every dlsym of the process comes here: what is not CUDA's goes on at once. */
static const struct hook *wanted(const void *handle, const char *name, const void *caller)
{
	const struct hook *hook;

	if (!name || name[0] != 'c' || name[1] != 'u' || handle == RTLD_NEXT || !gate_is_open())
		return NULL;
	hook = hook_named(name);
	if (!hook || (real_load() && real_is_driver(caller)))
		return NULL;
	return hook;
}

/* found: the real answer to the same question; next: what comes after us in the order of libraries. */
static struct decision decide(const struct hook *hook, bool is_default, void *found, void *next)
{
	bool has_driver = real_load();

	if (is_default && next && next != *hook_slot(hook))
		return (struct decision){ 0, NULL };
	if (!has_driver) /* then the shim's must not be found either */
		return (struct decision){ 1, found == hook->replacement ? next : found };
	if (found && (found == *hook_slot(hook) || found == hook->replacement))
		return (struct decision){ 1, hook->replacement };
	return (struct decision){ 1, found };
}

struct decision resolve_dlsym(void *handle, const char *name, const void *caller);
struct decision resolve_dlsym(void *handle, const char *name, const void *caller)
{
	const struct hook *hook;
	void *found, *next = NULL;

	if (!__atomic_load_n((void **)&real_dlsym, __ATOMIC_ACQUIRE))
		real_find_dlsym();
	if (!__atomic_load_n((void **)&real_dlsym, __ATOMIC_ACQUIRE))
		return (struct decision){ 1, NULL };
	hook = wanted(handle, name, caller);
	if (!hook)
		return (struct decision){ 0, NULL };
	found = real_dlsym(handle, name);
	if (handle == RTLD_DEFAULT || (found == hook->replacement && !real_load()))
		next = real_dlsym(RTLD_NEXT, name);
	return decide(hook, handle == RTLD_DEFAULT, found, next);
}

struct decision resolve_dlvsym(void *handle, const char *name, const char *version, const void *caller);
struct decision resolve_dlvsym(void *handle, const char *name, const char *version, const void *caller)
{
	const struct hook *hook;
	void *found, *next = NULL;

	if (!__atomic_load_n((void **)&real_dlvsym, __ATOMIC_ACQUIRE))
		real_find_dlsym();
	if (!__atomic_load_n((void **)&real_dlvsym, __ATOMIC_ACQUIRE))
		return (struct decision){ 1, NULL };
	hook = wanted(handle, name, caller);
	if (!hook)
		return (struct decision){ 0, NULL };
	found = real_dlvsym(handle, name, version);
	if (handle == RTLD_DEFAULT || (found == hook->replacement && !real_load()))
		next = real_dlvsym(RTLD_NEXT, name, version);
	return decide(hook, handle == RTLD_DEFAULT, found, next);
}

static CUresult ask(const char *symbol, void **found, int version, uint64_t flags)
{
	int status;

	if (real.cuGetProcAddress_v2)
		return real.cuGetProcAddress_v2(symbol, found, version, flags, &status);
	return real.cuGetProcAddress(symbol, found, version, flags);
}

/* Whether the driver's answer is the function of that hook. The exported function may differ from the answer of
 * cuGetProcAddress, so the driver is asked again, with the version that the shim knows; a newer version with other parameters
 * is not hooked. */
static bool is_of(const struct hook *hook, const char *symbol, void *found)
{
	void *known = NULL;

	if (found == *hook_slot(hook))
		return true;
	if (ask(symbol, &known, hook->since, hook->is_per_thread ? PER_THREAD_FLAG : LEGACY_FLAG) != CUDA_SUCCESS || known != found)
		return false;
	if (!*hook_slot(hook)) /* it is not exported under that name */
		__atomic_store_n(hook_slot(hook), found, __ATOMIC_RELEASE);
	return true;
}

static const struct hook *find_hook(const char *symbol, bool is_per_thread, void *found)
{
	for (size_t i = 0; i < hook_count; i++) {
		const struct hook *hook = &hooks[i];

		if (hook->is_per_thread == is_per_thread && (strcmp(hook->base, symbol) == 0 || strcmp(hook->name, symbol) == 0) &&
		    is_of(hook, symbol, found))
			return hook;
	}
	return NULL;
}

/* Of two that the driver has as one, that of the stream which was asked for; most functions have one for both. */
static void replace(const char *symbol, void **found, uint64_t flags)
{
	bool is_per_thread = flags & PER_THREAD_FLAG;
	const struct hook *hook;

	if (!gate_is_open())
		return;
	gate_depth++;
	hook = find_hook(symbol, is_per_thread, *found);
	if (!hook)
		hook = find_hook(symbol, !is_per_thread, *found);
	if (hook)
		*found = hook->replacement;
	gate_depth--;
}

SHIM_EXPORT CUresult cuGetProcAddress(const char *symbol, void **found, int version, uint64_t flags)
{
	CUresult result;

	if (!real_load() || !real.cuGetProcAddress)
		return (CUresult)ERROR_NOT_INITIALIZED;
	result = real.cuGetProcAddress(symbol, found, version, flags);
	if (result == CUDA_SUCCESS && symbol && found && *found)
		replace(symbol, found, flags);
	return result;
}

SHIM_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status)
{
	CUresult result;

	if (!real_load() || !real.cuGetProcAddress_v2)
		return (CUresult)ERROR_NOT_INITIALIZED;
	result = real.cuGetProcAddress_v2(symbol, found, version, flags, status);
	if (result == CUDA_SUCCESS && symbol && found && *found)
		replace(symbol, found, flags);
	return result;
}
