/* The kernels that the simulator knows, by name, as functions on the CPU.  All parameters are 64-bit. */
#include "driver.h"

#include <stdatomic.h>
#include <string.h>

#define CLOCKS_PER_US 1755ull /* of an H200 at work */

static uint64_t cycles_ns(uint64_t cycles)
{
	return cycles > UINT64_MAX / 1000 ? UINT64_MAX : cycles * 1000 / CLOCKS_PER_US;
}

static uint64_t spin_needs(const struct work *work)
{
	return cycles_ns(work->launch.values[1]);
}

/* spin(u64 *p, i64 cycles): p[0] += 1 afterwards. */
static void spin(CUcontext context, const struct work *work)
{
	uint64_t nowhere, *p;

	if (queue_sleep(context, spin_needs(work)) &&
	    (p = access_word(context, work->launch.values[0], ADDRESS_READ | ADDRESS_WRITE, &nowhere)))
		*p += 1;
}

/* count_up(u64 *p): each thread adds 1. */
static void count_up(CUcontext context, const struct work *work)
{
	uint64_t threads = (uint64_t)work->launch.grid * work->launch.block, nowhere;
	_Atomic uint64_t *p = access_word(context, work->launch.values[0], ADDRESS_ATOMIC, &nowhere);

	if (p)
		atomic_fetch_add(p, threads);
}

static uint64_t endless(const struct work *work)
{
	(void)work;
	return UINT64_MAX;
}

/* hang(u64 *p): until p[0] is 12345, which this one does not look for. */
static void hang(CUcontext context, const struct work *work)
{
	uint64_t nowhere;

	if (access_word(context, work->launch.values[0], ADDRESS_READ, &nowhere))
		queue_sleep(context, UINT64_MAX);
}

/* How many of the words from p[from] on can be reached in the same way; 0: the first faulted, and the kernel is over. */
static uint64_t reach(CUcontext context, CUdeviceptr p, uint64_t from, uint64_t n, unsigned access, bool *is_memory)
{
	struct extent extent = access_extent(context, p + from * 8, (n - from) * 8, access);

	*is_memory = extent.kind == EXTENT_MEMORY;
	if (extent.kind != EXTENT_BAD && extent.bytes >= 8)
		return extent.bytes / 8;
	fault_access(context, p + from * 8, access, false);
	return 0;
}

/* fill(u64 *p, u64 n, u64 seed) */
static void fill(CUcontext context, const struct work *work)
{
	CUdeviceptr p = work->launch.values[0];
	uint64_t n = work->launch.values[1], more = 1;

	for (uint64_t i = 0; n <= SIZE_MAX / 8 && i < n && more; i += more) {
		bool is_memory;

		more = reach(context, p, i, n, ADDRESS_WRITE, &is_memory);
		for (uint64_t j = i; is_memory && j < i + more; j++)
			((uint64_t *)p)[j] = link_pattern(work->launch.values[2], j);
	}
}

/* check(u64 *p, u64 n, u64 seed, u64 *bad): adds the number of wrong words to bad[0]. */
static void check(CUcontext context, const struct work *work)
{
	CUdeviceptr p = work->launch.values[0];
	uint64_t n = work->launch.values[1], wrong = 0, more, nowhere, *bad;

	for (uint64_t i = 0; n <= SIZE_MAX / 8 && i < n; i += more) {
		bool is_memory;

		more = reach(context, p, i, n, ADDRESS_READ, &is_memory);
		if (!more)
			return;
		for (uint64_t j = i; j < i + more; j++)
			wrong += (is_memory ? ((uint64_t *)p)[j] : 0) != link_pattern(work->launch.values[2], j);
	}
	bad = access_word(context, work->launch.values[3], ADDRESS_ATOMIC, &nowhere);
	if (bad)
		*bad += wrong;
}

/* advance(u64 *from, u64 *to, u64 n, u64 step): to[i] = (from[i] ^ step) * K + i */
static void advance(CUcontext context, const struct work *work)
{
	CUdeviceptr from = work->launch.values[0], to = work->launch.values[1];
	uint64_t n = work->launch.values[2], more;

	for (uint64_t i = 0; n <= SIZE_MAX / 8 && i < n; i += more) {
		bool is_read, is_written;
		uint64_t can_read = reach(context, from, i, n, ADDRESS_READ, &is_read);
		uint64_t can_write = can_read ? reach(context, to, i, n, ADDRESS_WRITE, &is_written) : 0;

		more = can_read < can_write ? can_read : can_write;
		if (!more)
			return;
		for (uint64_t j = i; is_written && j < i + more; j++)
			((uint64_t *)to)[j] = link_pattern(0, (is_read ? ((uint64_t *)from)[j] : 0) ^ work->launch.values[3]) + j;
	}
}

/* tick(u64 *p, i64 cycles): p[0] += 1 every now and then while they last. */
static void tick(CUcontext context, const struct work *work)
{
	uint64_t end = machine_now_ns() + spin_needs(work), nowhere, *p;

	do {
		p = access_word(context, work->launch.values[0], ADDRESS_READ | ADDRESS_WRITE, &nowhere);
		if (!p)
			return;
		++*(volatile uint64_t *)p;
	} while (machine_now_ns() < end && queue_sleep(context, LINK_TICK_NS));
}

/* still(u64 *p, i64 cycles, u64 *changes): changes[0] += how often p[0] was seen to change while they last. */
static void still(CUcontext context, const struct work *work)
{
	uint64_t end = machine_now_ns() + spin_needs(work), nowhere, *changes;
	volatile uint64_t *p = access_word(context, work->launch.values[0], ADDRESS_READ, &nowhere);
	uint64_t last, seen = 0;

	if (!p)
		return;
	last = *p;
	while (machine_now_ns() < end && queue_sleep(context, LINK_TICK_NS)) {
		seen += *p != last;
		last = *p;
	}
	changes = access_word(context, work->launch.values[2], ADDRESS_READ | ADDRESS_WRITE, &nowhere);
	if (changes)
		*changes += seen;
}

/* smids(u32 *m): m[s] = 1 for each SM on which a block ran. */
static void smids(CUcontext context, const struct work *work)
{
	double percent = driver.mps ? mps_percent(&context->link) : 100.0;
	unsigned sms = machine_sms(context->gpu, percent);
	CUdeviceptr m = work->launch.values[0];

	sms = sms < work->launch.grid ? sms : work->launch.grid;
	for (unsigned i = 0; i < sms; i++) {
		uint64_t nowhere;
		uint32_t *mark = access_word(context, m + i * 4ul, ADDRESS_WRITE, &nowhere);

		if (!mark)
			return;
		*mark = 1;
	}
}

static const struct kernel kernels[] = {
	{ "spin", 2, spin, spin_needs },
	{ "count_up", 1, count_up, NULL },
	{ "hang", 1, hang, endless },
	{ "fill", 3, fill, NULL },
	{ "check", 4, check, NULL },
	{ "smids", 1, smids, NULL },
	{ "advance", 4, advance, NULL },
	{ "tick", 2, tick, spin_needs },
	{ "still", 3, still, spin_needs },
	{ NULL, 0, NULL, NULL },
};

static const struct kernel *find_in(const struct kernel *list, const char *name, size_t length)
{
	for (; list->name; list++)
		if (strlen(list->name) == length && strncmp(list->name, name, length) == 0)
			return list;
	return NULL;
}

const struct kernel *kernel_find(const char *name, size_t length)
{
	const struct kernel *const lists[] = { kernels, fault_kernels, image_kernels }, *found = NULL;

	for (unsigned i = 0; i < sizeof(lists) / sizeof(*lists) && !found; i++)
		found = find_in(lists[i], name, length);
	return found;
}
