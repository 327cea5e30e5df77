"""The hash of a block on the GPU: 128 bits, with a key of the process.

    first  = sum of (w[2i] + k[2i])     * (w[2i+1] + k[2i+1])         of the block's 32-bit words w and the key's k,
    second = sum of (w[2i] + k[2i + 4]) * (w[2i+1] + k[2i + 1 + 4])   modulo 2^64, the additions in brackets modulo 2^32

This is NH (UMAC, RFC 4418, two Toeplitz iterations): two different blocks have equal hashes with a probability of at most
2^-64, over the key, which no other process knows.  The order of words counts.  The simulator runs its own function
(native/sim/driver/image_kernel.c).
"""

import os
from typing import Any

import numpy
from cuda.core import Device, LaunchConfig, ObjectCode, Program, ProgramOptions, Stream, launch

BLOCK_BYTES = 2 << 20
KEY_BYTES = BLOCK_BYTES + 16
THREADS = 512

SOURCE = """
typedef unsigned long long u64;

__device__ u64 product(unsigned a, unsigned b, unsigned k, unsigned l) { return (u64)(a + k) * (b + l); }

__device__ u64 products(uint4 w, uint4 k) { return product(w.x, w.y, k.x, k.y) + product(w.z, w.w, k.z, k.w); }

/* Each CUDA block hashes every gridDim.x-th block of memory. */
extern "C" __global__ void image_hash(const u64 *addresses, u64 count, const uint4 *key, u64 *out)
{
	__shared__ u64 parts[2][32];

	for (u64 number = blockIdx.x; number < count; number += gridDim.x) {
		const uint4 *words = (const uint4 *)addresses[number];
		u64 sums[2] = { 0, 0 };

		for (unsigned i = threadIdx.x; i < (2u << 20) / sizeof(uint4); i += blockDim.x) {
			uint4 w = __ldcs(words + i);

			sums[0] += products(w, __ldg(key + i));
			sums[1] += products(w, __ldg(key + i + 1));
		}
		for (unsigned which = 0; which < 2; which++) {
			for (unsigned lanes = 16; lanes; lanes /= 2)
				sums[which] += __shfl_down_sync(0xffffffffu, sums[which], lanes);
			if (threadIdx.x % 32 == 0)
				parts[which][threadIdx.x / 32] = sums[which];
		}
		__syncthreads();
		if (threadIdx.x < 2) {
			u64 whole = 0;

			for (unsigned warp = 0; warp < blockDim.x / 32; warp++)
				whole += parts[threadIdx.x][warp];
			out[2 * number + threadIdx.x] = whole;
		}
		__syncthreads();
	}
}
"""


def new_key() -> bytes:
    return os.urandom(KEY_BYTES)


class HashKernel:
    """The compiled kernel, loaded for one device."""

    def __init__(self, device: Device) -> None:
        arch = "sm_" + "".join(map(str, device.compute_capability))
        cubin = Program(SOURCE, "c++", ProgramOptions(arch=arch)).compile("cubin")
        self._kernel = ObjectCode.from_cubin(cubin.code).get_kernel("image_hash")
        self._most = 4 * device.properties.multiprocessor_count  # CUDA blocks that run at a time, about

    def launch(self, stream: Stream, addresses: int, count: int, key: int, out: int) -> None:
        """Hash `count` blocks, whose addresses and hashes are arrays in device memory."""
        values: list[Any] = [numpy.uint64(value) for value in (addresses, count, key, out)]
        launch(stream, LaunchConfig(grid=min(count, self._most), block=THREADS), self._kernel, *values)


def expected_hash(block: bytes, key: bytes) -> tuple[int, int]:
    """Compute the same on the CPU, to check the GPU."""
    words, keys = numpy.frombuffer(block, numpy.uint32), numpy.frombuffer(key, numpy.uint32)
    sums = []
    for shift in (0, 4):
        keyed = (words + keys[shift : shift + len(words)]).astype(numpy.uint64)
        sums.append(int((keyed[::2] * keyed[1::2]).sum(dtype=numpy.uint64)))
    return sums[0], sums[1]
