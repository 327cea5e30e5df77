/* SPDX-License-Identifier: MIT */
/*
 * The hash of a block on the GPU, which native/include/mpsd_image.h defines. The simulator runs the C function
 * (native/sim/driver/image_kernel.c). `make kernel` makes mpsd/images/imager/image_hash.ptx of this file.
 */
typedef unsigned long long u64;
enum { BLOCK = 2 << 20, AT_ONCE = 4 }; /* loads of a thread that are under way at a time */

__device__ u64 product(unsigned a, unsigned b, unsigned k, unsigned l) { return (u64)(a + k) * (b + l); }

__device__ u64 products(uint4 w, uint4 k) { return product(w.x, w.y, k.x, k.y) + product(w.z, w.w, k.z, k.w); }

/* Each CUDA block hashes every gridDim.x-th part of the blocks of memory, and copies it to `to`, unless that is null. */
extern "C" __global__ void image_hash(const u64 *addresses, u64 count, const uint4 *key, u64 *out, uint4 *to, u64 parts)
{
	const unsigned of_block = (unsigned)parts, words_of_part = BLOCK / sizeof(uint4) / of_block;

	__shared__ u64 of_warps[4][32];

	for (unsigned part = blockIdx.x; part < (unsigned)count * of_block; part += gridDim.x) {
		unsigned number = part / of_block, begin = part % of_block * words_of_part, end = begin + words_of_part;
		const uint4 *words = (const uint4 *)addresses[number];
		uint4 *copy = to ? to + (u64)number * (BLOCK / sizeof(uint4)) : 0;
		u64 sums[4] = { 0, 0, 0, 0 };

		for (unsigned first = begin + threadIdx.x; first < end; first += AT_ONCE * blockDim.x) {
			uint4 w[AT_ONCE];

			for (unsigned each = 0; each < AT_ONCE; each++)
				w[each] = __ldcs(words + first + each * blockDim.x);
			for (unsigned each = 0; each < AT_ONCE; each++) {
				unsigned i = first + each * blockDim.x;

				if (copy)
					__stcs(copy + i, w[each]);
				for (unsigned which = 0; which < 4; which++)
					sums[which] += products(w[each], __ldg(key + i + which));
			}
		}
		for (unsigned which = 0; which < 4; which++) {
			for (unsigned lanes = 16; lanes; lanes /= 2)
				sums[which] += __shfl_down_sync(0xffffffffu, sums[which], lanes);
			if (threadIdx.x % 32 == 0)
				of_warps[which][threadIdx.x / 32] = sums[which];
		}
		__syncthreads();
		if (threadIdx.x < 4) {
			u64 whole = 0;

#pragma unroll 1
			for (unsigned warp = 0; warp < blockDim.x / 32; warp++)
				whole += of_warps[threadIdx.x][warp];
			out[4 * (u64)part + threadIdx.x] = whole;
		}
		__syncthreads();
	}
}
