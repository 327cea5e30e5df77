/* What the device meets where it reads or writes: memory, a sparse range that takes anything, or nothing. */
#include "driver.h"

struct extent access_extent(CUdeviceptr at, size_t bytes, unsigned access)
{
	size_t memory = address_may_bytes(at, bytes, access);
	size_t sparse = memory ? 0 : space_sparse_bytes(at, bytes);

	if (memory)
		return (struct extent){ EXTENT_MEMORY, memory };
	return sparse ? (struct extent){ EXTENT_SPARSE, sparse } : (struct extent){ EXTENT_BAD, bytes };
}

/* One access of up to 8 bytes.  In a sparse range it goes to *nowhere, which is 0 to begin with. */
void *access_word(CUcontext context, CUdeviceptr at, unsigned access, uint64_t *nowhere)
{
	struct extent extent = access_extent(at, 1, access);

	*nowhere = 0;
	if (extent.kind == EXTENT_BAD)
		fault_access(context, at, access, false);
	return extent.kind == EXTENT_MEMORY ? (void *)at : extent.kind == EXTENT_SPARSE ? nowhere : NULL;
}
