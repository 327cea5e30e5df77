/* The imager's hash kernel as a function on the CPU.  It computes what the CUDA source in mpsd/images/imager/kernel.py does;
 * a test compares both with a third computation. */
#include "driver.h"
#include "mpsd_image.h"

#include <string.h>

static const void *readable(CUcontext context, CUdeviceptr at, size_t bytes)
{
	struct extent extent = access_extent(context, at, bytes, ADDRESS_READ);

	if (extent.kind == EXTENT_MEMORY && extent.bytes >= bytes)
		return (const void *)at;
	fault_access(context, at + (extent.kind == EXTENT_MEMORY ? extent.bytes : 0), ADDRESS_READ, false);
	return NULL;
}

/* image_hash(const u64 *addresses, u64 count, const void *key, u64 *out, void *to, u64 parts): four numbers for each part of each
 * block; the i-th is copied to the i-th place of `to`, unless that is null */
static void image_hash(CUcontext context, const struct work *work)
{
	uint64_t count = work->launch.values[1];
	CUdeviceptr to = work->launch.values[4];
	uint64_t parts = work->launch.values[5];
	const void *key = readable(context, work->launch.values[2], MPSD_BLOCK_KEY_BYTES);

	for (uint64_t i = 0; key && i < count; i++) {
		const uint64_t *address = readable(context, work->launch.values[0] + i * 8, 8);
		const void *block = address ? readable(context, *address, MPSD_BLOCK_BYTES) : NULL;
		uint64_t nowhere;

		if (!block)
			return;
		if (to) {
			CUdeviceptr at = to + i * MPSD_BLOCK_BYTES;
			struct extent extent = access_extent(context, at, MPSD_BLOCK_BYTES, ADDRESS_WRITE);

			if (extent.kind != EXTENT_MEMORY || extent.bytes < MPSD_BLOCK_BYTES) {
				fault_access(context, at, ADDRESS_WRITE, false);
				return;
			}
			block = memcpy((void *)at, block, MPSD_BLOCK_BYTES); /* a client may write meanwhile: the hash is the copy's */
		}
		for (uint64_t part = 0; part < parts; part++) {
			size_t words = MPSD_BLOCK_BYTES / 4 / parts;
			uint64_t sums[MPSD_BLOCK_SUMS] = { 0 };

			mpsd_hash_part((const uint32_t *)block + part * words, words * 4, (const uint32_t *)key + part * words, sums);
			for (unsigned which = 0; which < MPSD_BLOCK_SUMS; which++) {
				CUdeviceptr at = work->launch.values[3] + ((i * parts + part) * MPSD_BLOCK_SUMS + which) * 8;
				uint64_t *out = access_word(context, at, ADDRESS_WRITE, &nowhere);

				if (!out)
					return;
				*out = sums[which];
			}
		}
	}
}

const struct kernel image_kernels[] = {
	{ "image_hash", 6, image_hash, NULL },
	{ NULL, 0, NULL, NULL },
};
