/* Find what a device access meets: memory, a range that accepts any access, or an unmapped address. */
#include "driver.h"

struct extent access_extent(CUcontext context, CUdeviceptr at, size_t bytes, unsigned access)
{
	size_t memory = address_may_bytes(at, bytes, access);
	size_t sparse = memory ? 0 : space_sparse_bytes(at, bytes);
	size_t here = 0;
	bool is_first;

	if (memory)
		return (struct extent){ EXTENT_MEMORY, memory };
	if (sparse)
		return (struct extent){ EXTENT_SPARSE, sparse };
	switch (guard_at(at, bytes, &here, &is_first)) {
	case GUARD_SPARSE:
		return (struct extent){ EXTENT_SPARSE, here };
	case GUARD_MANAGED:
		if (is_first)
			space_report_serviced(&(struct bad_access){ .address = at, .access = access, .gpu = context->gpu });
		return (struct extent){ EXTENT_MEMORY, here };
	default:
		return (struct extent){ EXTENT_BAD, bytes };
	}
}

/* One access of up to 8 bytes.  In a sparse range it goes to *nowhere, which is 0 to begin with. */
void *access_word(CUcontext context, CUdeviceptr at, unsigned access, uint64_t *nowhere)
{
	struct extent extent = access_extent(context, at, 1, access);

	*nowhere = 0;
	if (extent.kind == EXTENT_BAD)
		fault_access(context, at, access, false);
	return extent.kind == EXTENT_MEMORY ? (void *)at : extent.kind == EXTENT_SPARSE ? nowhere : NULL;
}
