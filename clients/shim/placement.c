/* Decide which memory of cuMemAlloc the shim places, and where: in the arena, else, with a shield, in a window of its own. */
#include "backing.h"

enum { MOST_DEVICES = 16 };
#define OWN_FIRST 0x500000000000ull /* beyond mpsd's arenas, below where programs are loaded */
#define OWN_STEP (1ull << 39)
#define UNIT (1ull << 30)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects what follows, and all of window.c, backing.c, layout.c */
static struct window own[MOST_DEVICES];
static bool is_refused[MOST_DEVICES]; /* no window there */
static bool has_any; /* atomic: something was placed, ever */

bool placement_wants(size_t bytes)
{
	const struct settings *wish = settings();

	return (wish->arena[0] || wish->shield != SHIELD_OFF) && bytes >= wish->least_bytes && bytes && bytes <= wish->most_bytes &&
	       bytes <= SIZE_MAX - MPSD_GRANULE && real.has_vmm && gate_has_begun();
}

/* Reserve twice the memory, so that a place is always free, with room for guards. */
static int reserve(struct window *window, CUdevice device)
{
	CUdeviceptr base = 0;
	size_t total = 0;
	uint64_t bytes;

	if (!real.cuDeviceTotalMem_v2 || real.cuDeviceTotalMem_v2(&total, device) != CUDA_SUCCESS || !real.cuDeviceGetUuid_v2 ||
	    real.cuDeviceGetUuid_v2(&window->uuid, device) != CUDA_SUCCESS)
		return -ENODEV;
	bytes = (2 * (uint64_t)total + UNIT - 1) / UNIT * UNIT;
	if (real.vmm.cuMemAddressReserve(&base, bytes, 0, OWN_FIRST + (uint64_t)device * OWN_STEP, 0) != CUDA_SUCCESS)
		return -ENOMEM;
	window_begin(window, device, base, bytes);
	return 0;
}

static struct window *own_window(CUdevice device)
{
	if (device < 0 || device >= MOST_DEVICES || is_refused[device])
		return NULL;
	if (!own[device].base && reserve(&own[device], device) < 0) {
		is_refused[device] = true;
		shim_log("no window on GPU %d: no shield there", device);
	}
	return own[device].base ? &own[device] : NULL;
}

/* Memory behind addresses that are free.  0, or -errno and nothing is there. */
static int map(const struct window *window, uint64_t base, uint64_t bytes)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location = { CU_MEM_LOCATION_TYPE_DEVICE, window->device } };
	CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;
	CUresult result;

	if (real.vmm.cuMemCreate(&handle, bytes, &prop, 0) != CUDA_SUCCESS)
		return -ENOMEM;
	result = real.vmm.cuMemMap(base, bytes, 0, handle, 0);
	real.vmm.cuMemRelease(handle); /* the mapping keeps it */
	if (result != CUDA_SUCCESS)
		return -EIO;
	if (real.vmm.cuMemSetAccess(base, bytes, &access, 1) == CUDA_SUCCESS)
		return 0;
	real.vmm.cuMemUnmap(base, bytes);
	return -EIO;
}

static int own_alloc(struct window *window, size_t bytes, uint64_t *address)
{
	uint64_t rounded = (bytes + MPSD_GRANULE - 1) / MPSD_GRANULE * MPSD_GRANULE, at;
	CUcontext context = NULL;
	int rc;

	at = ledger_place(&window->ledger, window->base, window->end, rounded, window->band);
	if (!at)
		return -ENOSPC;
	if (real.cuCtxGetCurrent)
		real.cuCtxGetCurrent(&context);
	rc = window_lift(window, at, at + rounded);
	if (rc == 0)
		rc = map(window, at, rounded);
	if (rc < 0) {
		window_again(window);
		return rc;
	}
	rc = window_put(window, at, rounded, (uintptr_t)context);
	if (rc < 0) {
		real.vmm.cuMemUnmap(at, rounded);
		return rc;
	}
	*address = at;
	return 0;
}

CUresult placement_alloc(size_t bytes, CUdeviceptr *address)
{
	struct window *window;
	uint64_t at = 0;
	CUdevice device;
	int rc = -ENODEV;

	if (!real.cuCtxGetDevice || real.cuCtxGetDevice(&device) != CUDA_SUCCESS)
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&lock);
	window = settings()->arena[0] ? backing_open(device) : NULL;
	if (window)
		rc = backing_alloc(bytes, &at);
	else if (settings()->shield != SHIELD_OFF && (window = own_window(device)))
		rc = own_alloc(window, bytes, &at);
	pthread_mutex_unlock(&lock);
	if (rc < 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	__atomic_store_n(&has_any, true, __ATOMIC_RELEASE);
	*address = at;
	return CUDA_SUCCESS;
}

/* With the lock held: the window with memory that begins there. */
static struct window *holder(CUdeviceptr address)
{
	struct window *arena = backing_window();

	for (int i = -1; i < MOST_DEVICES; i++) {
		struct window *each = i < 0 ? arena : &own[i];
		struct ledger_range *range = each ? ledger_find(&each->ledger, address) : NULL;

		if (range && range->base == address && range->kind == LEDGER_MEMORY)
			return each;
	}
	return NULL;
}

bool placement_has_any(void)
{
	return __atomic_load_n(&has_any, __ATOMIC_ACQUIRE);
}

bool placement_has(CUdeviceptr address)
{
	bool found;

	if (!placement_has_any())
		return false;
	pthread_mutex_lock(&lock);
	found = holder(address) != NULL;
	pthread_mutex_unlock(&lock);
	return found;
}

static CUresult own_free(struct window *window, uint64_t base)
{
	CUresult result = real.vmm.cuMemUnmap(base, ledger_find(&window->ledger, base)->bytes);

	if (result == CUDA_SUCCESS)
		window_freed(window, base);
	return result;
}

CUresult placement_free(CUdeviceptr address)
{
	CUresult result = CUDA_ERROR_INVALID_VALUE;
	struct window *window;

	pthread_mutex_lock(&lock);
	window = holder(address);
	if (window && window == backing_window())
		result = backing_free(address) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	else if (window)
		result = own_free(window, address);
	pthread_mutex_unlock(&lock);
	return result;
}

void placement_context_gone(CUcontext context)
{
	if (!placement_has_any())
		return;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < MOST_DEVICES; i++) {
		uint64_t at = own[i].base;
		struct ledger_range *range;
		bool had_any = false;

		while (at && (range = ledger_next(&own[i].ledger, at))) {
			at = range->base + range->bytes;
			if (range->kind == LEDGER_MEMORY && range->note == (uintptr_t)context) {
				had_any = true;
				own_free(&own[i], range->base);
			}
		}
		if (had_any)
			window_bare(&own[i]);
	}
	pthread_mutex_unlock(&lock);
}

void placement_settle(bool is_all)
{
	if (!backing_is_dirty() || gate_depth)
		return;
	gate_depth++;
	if (pthread_mutex_trylock(&lock) == 0) { /* another thread is at it: the next moment will do */
		backing_commit(is_all);
		pthread_mutex_unlock(&lock);
	}
	gate_depth--;
}

/* The last moment; a child has its shim switched off. */
static void __attribute__((destructor)) end(void)
{
	if (gate_is_off() || !backing_is_dirty() || pthread_mutex_trylock(&lock) != 0)
		return;
	gate_depth++;
	backing_commit(true);
	gate_depth--;
	pthread_mutex_unlock(&lock);
}
