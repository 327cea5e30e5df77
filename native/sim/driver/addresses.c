/* Which addresses the device may read and write, and what lies there: one sorted table for the process. */
#include "driver.h"
#include "spans.h"

#include <stdlib.h>
#include <sys/mman.h>

struct range {
	struct span span; /* first */
	struct address_facts facts;
};

/* Far from where programs and libraries lie, below where mpsd's windows begin (mpsd/model/arena.py), and outside what
 * AddressSanitizer keeps for itself. */
#ifdef __SANITIZE_THREAD__ /* leaves less room than others do */
#define FIRST_ADDRESS 0x550000000000ull
#define LAST_ADDRESS 0x555000000000ull
#else
#define FIRST_ADDRESS 0x110000000000ull
#define LAST_ADDRESS 0x200000000000ull
#endif
#define STEP (2ull << 20)

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER; /* protects all below */
static struct spans ranges;
static CUdeviceptr next_address = FIRST_ADDRESS;

static struct range *range_at(CUdeviceptr address)
{
	return (struct range *)span_at(&ranges, address);
}

int address_add(CUdeviceptr base, size_t bytes, struct address_facts facts)
{
	struct range *range = malloc(sizeof(*range));

	if (!range)
		return -1;
	*range = (struct range){ .span = { .base = base, .bytes = bytes }, .facts = facts };
	pthread_rwlock_wrlock(&lock);
	span_add(&ranges, &range->span);
	pthread_rwlock_unlock(&lock);
	return 0;
}

size_t address_remove(CUdeviceptr base, enum address_kind kind, struct address_facts *facts)
{
	struct range *range;
	size_t bytes = 0;

	pthread_rwlock_wrlock(&lock);
	range = range_at(base);
	if (range && range->span.base == base && range->facts.kind == kind) {
		bytes = range->span.bytes;
		if (facts)
			*facts = range->facts;
		span_take(&ranges, &range->span);
		free(range);
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
	while (left) {
		const struct range *range = range_at(base);
		size_t here;

		if (!range || (range->facts.access & access) != access)
			break;
		here = (size_t)(range->span.base + range->span.bytes - base);
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

bool address_range(CUdeviceptr inside, CUdeviceptr *base, size_t *bytes, struct address_facts *facts)
{
	const struct range *range;

	pthread_rwlock_rdlock(&lock);
	range = range_at(inside);
	if (range) {
		*base = range->span.base;
		*bytes = range->span.bytes;
		if (facts)
			*facts = range->facts;
	}
	pthread_rwlock_unlock(&lock);
	return range;
}

bool address_is_used(CUdeviceptr base, size_t bytes)
{
	bool used = false;

	pthread_rwlock_rdlock(&lock);
	for (const struct span *at = span_from(&ranges, base); at && at->base < base + bytes && !used; at = span_next(&ranges, at))
		used = ((const struct range *)at)->facts.access;
	pthread_rwlock_unlock(&lock);
	return used;
}

void address_protect(CUdeviceptr base, size_t bytes, unsigned access)
{
	pthread_rwlock_wrlock(&lock);
	for (struct span *at = span_from(&ranges, base); at && at->base < base + bytes; at = span_next(&ranges, at))
		((struct range *)at)->facts.access = access;
	pthread_rwlock_unlock(&lock);
}

void address_set_block(CUdeviceptr base, uint64_t block)
{
	struct range *range;

	pthread_rwlock_wrlock(&lock);
	range = range_at(base);
	if (range)
		range->facts.block = block;
	pthread_rwlock_unlock(&lock);
}

static CUdeviceptr try_address(size_t bytes, CUdeviceptr at)
{
	void *got = mmap((void *)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	if (got != MAP_FAILED && (CUdeviceptr)got != at) { /* a kernel that does not know the flag */
		munmap(got, bytes);
		return 0;
	}
	return got == MAP_FAILED ? 0 : (CUdeviceptr)got;
}

/* Address space that nothing backs yet.  A wish that cannot be met is not an error. */
CUdeviceptr address_reserve(size_t bytes, size_t alignment, CUdeviceptr wish)
{
	CUdeviceptr got = wish ? try_address(bytes, wish) : 0;
	CUdeviceptr step = (bytes + 2 * STEP - 1) / STEP * STEP; /* and a gap that catches overruns */
	unsigned rounds = 0;

	if (bytes > LAST_ADDRESS - FIRST_ADDRESS)
		return got;
	alignment = alignment < STEP ? STEP : alignment;
	pthread_rwlock_wrlock(&lock);
	while (!got && rounds < 2) {
		CUdeviceptr at = (next_address + alignment - 1) & ~(alignment - 1);

		if (at + step > LAST_ADDRESS) {
			next_address = FIRST_ADDRESS; /* what was freed serves again */
			rounds++;
			continue;
		}
		got = try_address(bytes, at);
		next_address = at + step;
	}
	pthread_rwlock_unlock(&lock);
	return got;
}
