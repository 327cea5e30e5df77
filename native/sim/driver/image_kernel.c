/* The imager's hash kernel as a function on the CPU.  It computes what the CUDA source in mpsd/images/imager/kernel.py does;
 * a test compares both with a third computation. */
#include "driver.h"

enum { BLOCK_BYTES = 2 << 20, BLOCK_WORDS = BLOCK_BYTES / 4, KEY_BYTES = BLOCK_BYTES + 16, SHIFT_WORDS = 4 };

static const void *readable(CUcontext context, CUdeviceptr at, size_t bytes)
{
	struct extent extent = access_extent(context, at, bytes, ADDRESS_READ);

	if (extent.kind == EXTENT_MEMORY && extent.bytes >= bytes)
		return (const void *)at;
	fault_access(context, at + (extent.kind == EXTENT_MEMORY ? extent.bytes : 0), ADDRESS_READ, false);
	return NULL;
}

/* Two sums of products of keyed words, modulo 2^64; the second one's key begins SHIFT_WORDS later. */
static void hash_block(const uint32_t *words, const uint32_t *key, uint64_t out[2])
{
	uint64_t first = 0, second = 0;

	for (unsigned i = 0; i < BLOCK_WORDS; i += 2) {
		const uint32_t *k = key + i, *l = k + SHIFT_WORDS;

		first += (uint64_t)(uint32_t)(words[i] + k[0]) * (uint32_t)(words[i + 1] + k[1]);
		second += (uint64_t)(uint32_t)(words[i] + l[0]) * (uint32_t)(words[i + 1] + l[1]);
	}
	out[0] = first;
	out[1] = second;
}

/* image_hash(const u64 *addresses, u64 count, const void *key, u64 *out): out[2 * i], out[2 * i + 1] of the block at addresses[i] */
static void image_hash(CUcontext context, const struct work *work)
{
	uint64_t count = work->launch.values[1];
	const void *key = readable(context, work->launch.values[2], KEY_BYTES);

	for (uint64_t i = 0; key && i < count; i++) {
		const uint64_t *address = readable(context, work->launch.values[0] + i * 8, 8);
		const uint32_t *words = address ? readable(context, *address, BLOCK_BYTES) : NULL;
		uint64_t nowhere, sums[2], *low, *high;

		low = words ? access_word(context, work->launch.values[3] + i * 16, ADDRESS_WRITE, &nowhere) : NULL;
		high = low ? access_word(context, work->launch.values[3] + i * 16 + 8, ADDRESS_WRITE, &nowhere) : NULL;
		if (!high)
			return;
		hash_block(words, key, sums);
		*low = sums[0];
		*high = sums[1];
	}
}

const struct kernel image_kernels[] = {
	{ "image_hash", 4, image_hash, NULL },
	{ NULL, 0, NULL, NULL },
};
