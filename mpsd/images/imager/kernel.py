"""The hash of a block on the GPU, which native/include/mpsd_image.h defines: NH with a key of the directory of images.

Two different blocks have equal hashes with a probability of at most 2^-128, over the key, which no other user knows.  The order
of words counts.  The simulator runs the C function (native/sim/driver/image_kernel.c).
"""

from typing import Any

import numpy
from cuda.core import Device, LaunchConfig, ObjectCode, Program, ProgramOptions, Stream, launch

BLOCK_BYTES = 2 << 20
THREADS = 512

SOURCE = """
typedef unsigned long long u64;
enum { BLOCK = 2 << 20, AT_ONCE = 4 }; /* loads of a thread that are under way at a time */

__device__ u64 product(unsigned a, unsigned b, unsigned k, unsigned l) { return (u64)(a + k) * (b + l); }

__device__ u64 products(uint4 w, uint4 k) { return product(w.x, w.y, k.x, k.y) + product(w.z, w.w, k.z, k.w); }

/* Each CUDA block hashes every gridDim.x-th part of the blocks of memory, and copies it to `to`, unless that is null. */
extern "C" __global__ void image_hash(const u64 *addresses, u64 count, const uint4 *key, u64 *out, uint4 *to, u64 parts)
{
	const unsigned words_of_part = BLOCK / sizeof(uint4) / parts;

	__shared__ u64 of_warps[4][32];

	for (u64 part = blockIdx.x; part < count * parts; part += gridDim.x) {
		u64 number = part / parts;
		unsigned begin = part % parts * words_of_part, end = begin + words_of_part;
		const uint4 *words = (const uint4 *)addresses[number];
		uint4 *copy = to ? to + number * (BLOCK / sizeof(uint4)) : 0;
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

			for (unsigned warp = 0; warp < blockDim.x / 32; warp++)
				whole += of_warps[threadIdx.x][warp];
			out[4 * part + threadIdx.x] = whole;
		}
		__syncthreads();
	}
}
"""


class HashKernel:
    """The compiled kernel, loaded for one device."""

    def __init__(self, device: Device) -> None:
        arch = "sm_" + "".join(map(str, device.compute_capability))
        cubin = Program(SOURCE, "c++", ProgramOptions(arch=arch)).compile("cubin")
        self._kernel = ObjectCode.from_cubin(cubin.code).get_kernel("image_hash")
        self._most = 4 * device.properties.multiprocessor_count  # CUDA blocks that run at a time, about

    def launch(self, stream: Stream, addresses: int, count: int, key: int, out: int, to: int, parts: int) -> None:
        """Hash `count` blocks, whose addresses and hashes are arrays that the GPU can use; copy them to `to`, unless it is 0.

        parts: so many hashes of each block, which have to be added."""
        values: list[Any] = [numpy.uint64(value) for value in (addresses, count, key, out, to, parts)]
        launch(stream, LaunchConfig(grid=min(count * parts, self._most), block=THREADS), self._kernel, *values)


def expected_hash(block: bytes, key: bytes) -> tuple[int, ...]:
    """Compute the same on the CPU, to check the GPU."""
    words, keys = numpy.frombuffer(block, numpy.uint32), numpy.frombuffer(key, numpy.uint32)
    sums = []
    for shift in (0, 4, 8, 12):
        keyed = (words + keys[shift : shift + len(words)]).astype(numpy.uint64)
        sums.append(int((keyed[::2] * keyed[1::2]).sum(dtype=numpy.uint64)))
    return tuple(sums)
