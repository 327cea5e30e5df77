/* The ranges that a process maps into its own address space: the ioctls of /dev/nvidia-uvm that mpsd's libraries use, with the
 * real driver's answers.
 *
 *   73  an external range, which takes no access yet    74  sparse, over a range: reads give 0, writes vanish    34  remove it
 *
 * A managed guard accepts accesses too, and the first access to each page is reported to the reader of the events.
 * Ranges that other processes map into it are in uvm_space.c. */
#include "driver.h"
#include "mpsd_uvm.h"
#include "spans.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, SPARSE_PAGE = 64 << 10 };
enum { INVALID_ADDRESS = 0x1e, NO_MEMORY = 0x51 }; /* NV_STATUS */

struct guard {
	struct span span; /* first */
	enum guard_kind kind;
	uint64_t *touched; /* of a managed guard: a bit for each of its pages of SPARSE_PAGE bytes */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects all guards; that of the addresses may be taken under it */
static struct spans guards;

static void remove_guard(struct guard *guard)
{
	span_take(&guards, &guard->span);
	free(guard->touched);
	free(guard);
}

/* By a call that reads eight bytes there before it rejects the rest of its arguments. */
static bool is_readable(uint64_t address)
{
	return syscall(SYS_rt_sigprocmask, -1, address, NULL, 8) < 0 && errno != EFAULT;
}

/* A managed guard ends where the host unmaps it or maps other memory over it. The caller holds the lock. */
static void forget_unmapped(CUdeviceptr base, size_t bytes)
{
	struct span *at, *next;

	for (at = span_from(&guards, base); at && at->base < base + bytes; at = next) {
		next = span_next(&guards, at);
		if (((struct guard *)at)->kind == GUARD_MANAGED && !is_readable(at->base))
			remove_guard((struct guard *)at);
	}
}

bool guard_meets(CUdeviceptr base, size_t bytes)
{
	bool meets;

	pthread_mutex_lock(&lock);
	forget_unmapped(base, bytes);
	meets = span_meets(&guards, base, bytes);
	pthread_mutex_unlock(&lock);
	return meets;
}

static bool is_first_touch(struct guard *guard, uint64_t page)
{
	uint64_t bit = 1ull << page % 64;
	bool first = !(guard->touched[page / 64] & bit);

	guard->touched[page / 64] |= bit;
	return first;
}

/* A managed one is looked at page by page. */
enum guard_kind guard_at(CUdeviceptr at, size_t bytes, size_t *here, bool *is_first)
{
	struct guard *guard;
	enum guard_kind kind = GUARD_NONE;

	pthread_mutex_lock(&lock);
	forget_unmapped(at, 1);
	guard = (struct guard *)span_at(&guards, at);
	if (guard) {
		uint64_t inside = at - guard->span.base, left = guard->span.bytes - inside;

		kind = guard->kind;
		*is_first = false;
		if (kind == GUARD_MANAGED) {
			*is_first = is_first_touch(guard, inside / SPARSE_PAGE);
			left = SPARSE_PAGE - inside % SPARSE_PAGE < left ? SPARSE_PAGE - inside % SPARSE_PAGE : left;
		}
		*here = left < bytes ? left : bytes;
	}
	pthread_mutex_unlock(&lock);
	return kind;
}

static bool is_page_of(uint64_t base, uint64_t length, uint64_t page)
{
	return base && length && base % page == 0 && length % page == 0 && base + length > base;
}

/* The caller holds the lock. */
static uint32_t add(uint64_t base, uint64_t length, enum guard_kind kind)
{
	struct guard *guard;

	if (!is_page_of(base, length, PAGE))
		return INVALID_ADDRESS;
	forget_unmapped(base, length);
	if (span_meets(&guards, base, length) || address_is_used(base, length) || space_meets(base, length))
		return MPSD_UVM_ADDRESS_IN_USE;
	guard = calloc(1, sizeof(*guard));
	if (guard && kind == GUARD_MANAGED)
		guard->touched = calloc((length + SPARSE_PAGE - 1) / SPARSE_PAGE / 64 + 1, sizeof(*guard->touched));
	if (!guard || (kind == GUARD_MANAGED && !guard->touched)) {
		free(guard);
		return NO_MEMORY;
	}
	guard->span = (struct span){ .base = base, .bytes = length };
	guard->kind = kind;
	span_add(&guards, &guard->span);
	return MPSD_UVM_DONE;
}

/* The caller holds the lock.  NULL: no such guard of exactly these addresses, or a managed one. */
static struct guard *find(uint64_t base, uint64_t length)
{
	struct guard *guard = (struct guard *)span_at(&guards, base);

	return guard && guard->span.base == base && guard->span.bytes == length && guard->kind != GUARD_MANAGED ? guard : NULL;
}

/* Over memory that is in use it is not refused, and destroys it. */
static uint32_t make_sparse(uint64_t base, uint64_t length, const unsigned char *uuid)
{
	struct guard *guard;
	uint32_t status = MPSD_UVM_DONE;

	if (!is_page_of(base, length, SPARSE_PAGE))
		return INVALID_ADDRESS;
	if (!space_is_registered() || !device_has_uuid(uuid))
		return MPSD_UVM_INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	guard = find(base, length);
	if (guard)
		guard->kind = GUARD_SPARSE;
	else if (!address_is_used(base, length))
		status = INVALID_ADDRESS;
	pthread_mutex_unlock(&lock);
	if (!guard && status == MPSD_UVM_DONE)
		fault_memory_lost();
	return status;
}

static uint32_t take_away(uint64_t base, uint64_t length)
{
	struct guard *guard;

	pthread_mutex_lock(&lock);
	guard = find(base, length);
	if (guard)
		remove_guard(guard);
	pthread_mutex_unlock(&lock);
	return guard ? MPSD_UVM_DONE : INVALID_ADDRESS;
}

static uint32_t create(uint64_t base, uint64_t length)
{
	uint32_t status;

	pthread_mutex_lock(&lock);
	status = add(base, length, GUARD_EMPTY);
	pthread_mutex_unlock(&lock);
	return status;
}

/* Behaves like ioctl(2) on a descriptor of /dev/nvidia-uvm: 0, and the answer in the structure; or -1 and errno. The simulator
 * has no such descriptor, so any number will do. */
SIM_EXPORT int mpsd_sim_uvm_ioctl(int fd, unsigned long number, void *argument)
{
	struct mpsd_uvm_range *range = argument;
	struct mpsd_uvm_sparse *sparse = argument;

	(void)fd;
	if (!driver.ready || !argument) {
		errno = driver.ready ? EFAULT : EBADF;
		return -1;
	}
	switch (number) {
	case MPSD_UVM_CREATE_EXTERNAL_RANGE:
		range->status = create(range->base, range->length);
		return 0;
	case MPSD_UVM_MAP_EXTERNAL_SPARSE:
		sparse->status = make_sparse(sparse->base, sparse->length, sparse->gpu_uuid);
		return 0;
	case MPSD_UVM_FREE:
		range->status = take_away(range->base, range->length);
		return 0;
	}
	errno = EINVAL;
	return -1;
}

/* Behaves like mmap(2) of such a descriptor with MAP_FIXED at `address`, which replaces any mapping of the host there: 0, or -1
 * and errno. Another mmap(2) or munmap(2) removes it, as with all mappings. */
SIM_EXPORT int mpsd_sim_uvm_mmap(void *address, size_t bytes)
{
	uint32_t status;

	pthread_mutex_lock(&lock);
	status = driver.ready ? add((uint64_t)address, bytes, GUARD_MANAGED) : MPSD_UVM_INVALID_DEVICE;
	if (status == MPSD_UVM_DONE &&
	    mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
		remove_guard((struct guard *)span_at(&guards, (uint64_t)address));
		status = NO_MEMORY;
	}
	pthread_mutex_unlock(&lock);
	errno = status == MPSD_UVM_ADDRESS_IN_USE ? EEXIST : status == NO_MEMORY ? ENOMEM : EINVAL;
	return status == MPSD_UVM_DONE ? 0 : -1;
}
