/* The arena, opened by the first allocation that is placed, committed while the program waits anyway.
 *
 *   MPSD_ARENA_ADOPT=1    the predecessor's allocations are given to requests of the same size, in the order in which they were made
 *   else                  the predecessor's allocations are dropped
 *
 * The shim does not use an arena with a layout of another library.  If mpsd fails, mapped memory stays mapped and works; from
 * then on the driver allocates. */
#include "backing.h"

#include "layout.h"

#define WAIT_SECONDS 10.0   /* for a predecessor to be gone */
#define COMMIT_SHARE 10.0   /* a commit takes at most one part in so many of the time */

enum { CLOSED, OPEN, FAILED };

static int state;
static struct mpsd_arena *arena;
static struct window window;
static struct layout layout;
static bool is_dirty; /* atomic: asked without the lock */
static bool is_full;  /* reported once */
static double committed_at, commit_seconds;

static int before_map(void *argument, uint64_t address, uint64_t bytes)
{
	return window_lift(argument, address, address + bytes);
}

static int create(struct mpsd_session *session, const struct settings *wish, CUdevice device)
{
	struct mpsd_arena_options options = { .capacity_bytes = wish->arena_capacity_bytes };
	size_t total = 0;
	char gpu[48];
	int used;

	if (!options.capacity_bytes && real.cuDeviceTotalMem_v2 && real.cuDeviceTotalMem_v2(&total, device) == CUDA_SUCCESS)
		options.capacity_bytes = total / MPSD_GRANULE * MPSD_GRANULE;
	used = snprintf(gpu, sizeof(gpu), "GPU-");
	for (int i = 0; i < 16; i++)
		used += snprintf(gpu + used, sizeof(gpu) - (size_t)used, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
				 (unsigned char)window.uuid.bytes[i]);
	options.gpu = gpu;
	return mpsd_arena_create(session, wish->arena, &options);
}

/* Drop the arena's allocations that the program will not claim. */
static void drop_waiting(void)
{
	uint64_t offset;

	while (layout_waiting(&layout, &offset) == 0) {
		if (mpsd_arena_free(arena, window.base + offset) == 0)
			window_freed(&window, window.base + offset);
		layout_remove(&layout, offset);
		__atomic_store_n(&is_dirty, true, __ATOMIC_RELEASE);
	}
}

static int note_memory(void *argument, const struct mpsd_allocation *allocation)
{
	(void)argument;
	return window_know(&window, allocation->address, allocation->bytes);
}

/* Whether an entry names memory of the arena that none before it did: who may write the arena may have written its layout, and two
 * requests of the program must not get the same memory. */
static bool is_there_once(const struct layout_entry *entry)
{
	struct ledger_range *range = ledger_find(&window.ledger, window.base + entry->offset);

	return range && range->base == window.base + entry->offset && range->bytes >= entry->bytes && !range->note++;
}

/* After the memory is noted.  0; -EBADMSG: it is not ours. */
static int read_layout(void)
{
	void *text;
	size_t bytes;
	int rc = mpsd_arena_layout(arena, &text, &bytes);

	if (rc < 0 || !text)
		return rc;
	rc = layout_read(&layout, text, bytes);
	free(text);
	for (size_t i = 0; rc == 0 && i < layout.count; i++)
		if (!is_there_once(&layout.entries[i]))
			rc = -EBADMSG;
	return rc;
}

static int take_over(void)
{
	struct mpsd_arena_hooks hooks = { before_map, NULL, &window };
	int rc = mpsd_arena_for_each(arena, note_memory, NULL);

	if (rc == 0)
		rc = read_layout();
	if (rc == 0)
		rc = mpsd_arena_set_hooks(arena, &hooks);
	if (rc == 0 && window.shield != SHIELD_OFF)
		rc = mpsd_arena_set_guard(arena, window.band);
	return rc;
}

static int open_arena(struct mpsd_session *session, const struct settings *wish, CUdevice device)
{
	int rc = mpsd_arena_open(session, &real.vmm, wish->arena, MPSD_WRITE, WAIT_SECONDS, &arena);

	if (rc == -ENOENT) {
		rc = create(session, wish, device);
		if (rc == 0 || rc == -EEXIST)
			rc = mpsd_arena_open(session, &real.vmm, wish->arena, MPSD_WRITE, WAIT_SECONDS, &arena);
	}
	if (rc < 0) {
		shim_log("arena %s: %s", wish->arena, mpsd_error(session));
		return rc;
	}
	window_begin(&window, device, mpsd_arena_base(arena), mpsd_arena_window_bytes(arena));
	rc = take_over();
	if (rc == -EBADMSG)
		shim_log("arena %s: its layout is not the shim's: it is left alone", wish->arena);
	if (rc < 0) {
		mpsd_arena_close(arena);
		arena = NULL;
		ledger_clear(&window.ledger);
		layout_clear(&layout);
	}
	return rc;
}

struct window *backing_open(CUdevice device)
{
	const struct settings *wish = settings();
	struct mpsd_session *session;

	if (state == CLOSED) {
		state = FAILED;
		session = session_get();
		if (session && real.cuDeviceGetUuid_v2 && real.cuDeviceGetUuid_v2(&window.uuid, device) == CUDA_SUCCESS &&
		    open_arena(session, wish, device) == 0) {
			state = OPEN;
			shim_log("arena %s: generation %llu, %zu allocations of a predecessor", wish->arena,
				 (unsigned long long)mpsd_arena_generation(arena), layout.count);
			if (!wish->adopts) {
				drop_waiting();
				backing_commit(true); /* until then it counts against the capacity */
			}
			window_guard_all(&window);
		} else {
			shim_log("arena %s is not used: the driver allocates", wish->arena);
		}
	}
	return state == OPEN && window.device == device ? &window : NULL;
}

struct window *backing_window(void)
{
	return arena && window.base ? &window : NULL;
}

/* A call to mpsd has failed. Memory that cannot be given to it now stays this process's and works. */
static void failed(const char *what, int rc)
{
	if (rc == -ENOSPC && is_full)
		return;
	shim_log("arena %s: %s: %s", settings()->arena, what, mpsd_error(mpsd_arena_session(arena)));
	if (rc == -ENOSPC)
		is_full = true;
	else if (rc != -ENOMEM)
		state = FAILED;
}

int backing_alloc(size_t bytes, uint64_t *address)
{
	uint64_t offset;
	int rc;

	if (layout_claim(&layout, bytes, &offset) == 0) {
		*address = window.base + offset;
		__atomic_store_n(&is_dirty, true, __ATOMIC_RELEASE);
		return 0;
	}
	rc = mpsd_arena_alloc(arena, bytes, address);
	if ((rc == -ENOMEM || rc == -ENOSPC) && layout_waiting(&layout, &offset) == 0) { /* what waits makes room */
		drop_waiting();
		backing_commit(true);
		rc = mpsd_arena_alloc(arena, bytes, address);
	}
	if (rc < 0) {
		window_again(&window);
		failed("allocating", rc);
		return rc;
	}
	rc = layout_add(&layout, *address - window.base, bytes, false);
	if (rc == 0)
		rc = window_put(&window, *address, (bytes + MPSD_GRANULE - 1) / MPSD_GRANULE * MPSD_GRANULE, 0);
	if (rc < 0) {
		layout_remove(&layout, *address - window.base);
		mpsd_arena_free(arena, *address);
		window_again(&window);
		return rc;
	}
	__atomic_store_n(&is_dirty, true, __ATOMIC_RELEASE);
	return 0;
}

int backing_free(uint64_t address)
{
	int rc = mpsd_arena_free(arena, address);

	layout_remove(&layout, address - window.base);
	if (rc == 0)
		window_freed(&window, address);
	else
		failed("freeing", rc); /* still mapped: no guard may lie there, and the program cannot use the reason */
	is_full = false;
	__atomic_store_n(&is_dirty, true, __ATOMIC_RELEASE);
	return 0;
}

bool backing_is_dirty(void)
{
	return __atomic_load_n(&is_dirty, __ATOMIC_ACQUIRE);
}

void backing_commit(bool now)
{
	double began = session_now();
	size_t bytes;
	char *text;
	int rc;

	if (state != OPEN || !backing_is_dirty() || (!now && began - committed_at < COMMIT_SHARE * commit_seconds))
		return;
	text = layout_write(&layout, &bytes);
	if (!text)
		return;
	rc = mpsd_arena_commit(arena, text, bytes);
	free(text);
	committed_at = session_now();
	commit_seconds = committed_at - began;
	if (rc < 0)
		failed("committing", rc);
	else
		__atomic_store_n(&is_dirty, false, __ATOMIC_RELEASE);
}
