/* Which addresses the device may read and write: one sorted table for the process. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct range {
	CUdeviceptr base;
	size_t bytes;
	unsigned access; /* ADDRESS_READ | ADDRESS_WRITE */
	unsigned gpu;
};

/* Far from where programs and libraries lie, and outside what AddressSanitizer keeps for itself. */
#ifdef __SANITIZE_THREAD__ /* leaves less room than others do */
#define FIRST_ADDRESS 0x550000000000ull
#define LAST_ADDRESS 0x555000000000ull
#else
#define FIRST_ADDRESS 0x200000000000ull
#define LAST_ADDRESS 0x5f0000000000ull
#endif
#define STEP (2ull << 20)

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER; /* protects all below */
static struct range *ranges;
static size_t count, room;
static CUdeviceptr next_address = FIRST_ADDRESS;

/* The first range that ends behind `address`. */
static size_t find(CUdeviceptr address)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (ranges[middle].base + ranges[middle].bytes <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int address_add(CUdeviceptr base, size_t bytes, unsigned access, unsigned gpu)
{
	int rc = -1;
	size_t at;

	pthread_rwlock_wrlock(&lock);
	if (count == room) {
		size_t more = room ? room * 2 : 64;
		struct range *grown = realloc(ranges, more * sizeof(*ranges));

		if (!grown)
			goto out;
		ranges = grown;
		room = more;
	}
	at = find(base);
	memmove(&ranges[at + 1], &ranges[at], (count - at) * sizeof(*ranges));
	ranges[at] = (struct range){ base, bytes, access, gpu };
	count++;
	rc = 0;
out:
	pthread_rwlock_unlock(&lock);
	return rc;
}

size_t address_remove(CUdeviceptr base, unsigned *gpu)
{
	size_t at, bytes = 0;

	pthread_rwlock_wrlock(&lock);
	at = find(base);
	if (at < count && ranges[at].base == base) {
		bytes = ranges[at].bytes;
		*gpu = ranges[at].gpu;
		count--;
		memmove(&ranges[at], &ranges[at + 1], (count - at) * sizeof(*ranges));
	}
	pthread_rwlock_unlock(&lock);
	return bytes;
}

/* Over as many adjacent ranges as it takes. */
size_t address_may_bytes(CUdeviceptr base, size_t bytes, unsigned access)
{
	size_t left = bytes;

	if (access & ADDRESS_ATOMIC)
		access = ADDRESS_READ | ADDRESS_WRITE;
	pthread_rwlock_rdlock(&lock);
	for (size_t at = find(base); left && at < count; at++) {
		size_t here;

		if (ranges[at].base > base || (ranges[at].access & access) != access)
			break;
		here = (size_t)(ranges[at].base + ranges[at].bytes - base);
		here = here < left ? here : left;
		base += here;
		left -= here;
	}
	pthread_rwlock_unlock(&lock);
	return bytes - left;
}

bool address_may(CUdeviceptr base, size_t bytes, unsigned access)
{
	return address_may_bytes(base, bytes, access) == bytes;
}

bool address_range(CUdeviceptr inside, CUdeviceptr *base, size_t *bytes)
{
	bool found;
	size_t at;

	pthread_rwlock_rdlock(&lock);
	at = find(inside);
	found = at < count && ranges[at].base <= inside;
	if (found) {
		*base = ranges[at].base;
		*bytes = ranges[at].bytes;
	}
	pthread_rwlock_unlock(&lock);
	return found;
}

void address_protect(CUdeviceptr base, size_t bytes, unsigned access)
{
	pthread_rwlock_wrlock(&lock);
	for (size_t at = find(base); at < count && ranges[at].base < base + bytes; at++)
		ranges[at].access = access;
	pthread_rwlock_unlock(&lock);
}

static CUdeviceptr try_address(size_t bytes, CUdeviceptr at)
{
	void *got = mmap((void *)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	return got == MAP_FAILED ? 0 : (CUdeviceptr)got;
}

/* Address space that nothing backs yet.  A wish that cannot be met is not an error. */
CUdeviceptr address_reserve(size_t bytes, CUdeviceptr wish)
{
	CUdeviceptr got = wish ? try_address(bytes, wish) : 0;
	CUdeviceptr step = (bytes + 2 * STEP - 1) / STEP * STEP; /* and a gap that catches overruns */
	unsigned rounds = 0;

	pthread_rwlock_wrlock(&lock);
	while (!got && rounds < 2) {
		if (next_address + step > LAST_ADDRESS) {
			next_address = FIRST_ADDRESS; /* what was freed serves again */
			rounds++;
			continue;
		}
		got = try_address(bytes, next_address);
		next_address += step;
	}
	pthread_rwlock_unlock(&lock);
	return got;
}
