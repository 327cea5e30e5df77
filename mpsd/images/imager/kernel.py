"""The hash of blocks on the GPU, which native/include/mpsd_image.h defines: NH with a key of the directory of images.

Two different blocks have equal hashes with a probability of at most 2^-128, over the key, which no other user knows.  The order
of words counts.  native/kernel has the source; the driver compiles its PTX text for the GPU, and keeps the result in the
user's ~/.nv/ComputeCache.
"""

import ctypes
from pathlib import Path
from typing import Any

from cuda.bindings import driver

from mpsd.images.imager.device import call

BLOCK_BYTES = 2 << 20
THREADS = 512  # of a CUDA block
BLOCKS_OF_PROCESSOR = 4  # CUDA blocks that a multiprocessor runs at a time, about
TEXT = Path(__file__).with_name("image_hash.ptx")
_TYPES = (ctypes.c_uint64,) * 6


class HashKernel:
    """The kernel, loaded in the current context.  Raises OSError if the driver cannot compile it."""

    def __init__(self, device: int) -> None:
        """device: the number of the current GPU."""
        module = call(driver.cuModuleLoadDataEx, TEXT.read_bytes() + b"\0", 0, [], [])
        self.function = call(driver.cuModuleGetFunction, module, b"image_hash")
        wanted = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self.most = BLOCKS_OF_PROCESSOR * int(call(driver.cuDeviceGetAttribute, wanted, device))

    def launch(self, stream: Any, addresses: int, count: int, key: int, out: int, to: int, parts: int) -> None:
        """Hash `count` blocks, whose addresses and hashes are arrays that the GPU can use; copy them to `to`, unless it is 0.

        parts: so many hashes of each block, which have to be added."""
        grid, values = min(count * parts, self.most), (addresses, count, key, out, to, parts)
        call(driver.cuLaunchKernel, self.function, grid, 1, 1, THREADS, 1, 1, 0, stream, (values, _TYPES), 0)
