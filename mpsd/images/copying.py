"""Copy an image to another directory: from host memory to disk, or to a disk that another machine reads."""

import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue

from mpsd.images.reader import ImageReader
from mpsd.images.rules.manifest import BLOCK_BYTES, Manifest, block_offsets, check_has_blocks
from mpsd.images.store import Images

THREADS = 8  # each hashes two times: once for either directory, since their keys differ


def copy(image: ImageReader, to: Images, name: str, told: Callable[[int], None] = lambda size: None) -> Manifest:
    """Store the image there under this name, and return it; blocks that are there already are shared.

    told: called with the bytes of each block.  After ImageDamaged, BadRequest (the name is taken), NoRoom or OSError the image
    is not in `to`.
    """
    check_has_blocks(image.manifest)  # the hashes of its members' blocks are made with the key of its directory
    arenas = [each.facts for each in image.manifest.arenas]
    with ExitStack() as stack:
        new = stack.enter_context(to.begin(name, image.manifest.group, THREADS, image.manifest.epoch))
        buffers: SimpleQueue[memoryview] = SimpleQueue()
        for _ in range(THREADS):
            buffers.put(stack.enter_context(memoryview(stack.enter_context(mmap.mmap(-1, BLOCK_BYTES)))))

        def copy_block(where: tuple[int, int]) -> None:
            arena, offset = where
            block = buffers.get()
            try:
                image.read_into(arena, offset, block)
                new.add(arenas[arena].name, offset, block)
            finally:
                buffers.put(block)

        pool = ThreadPoolExecutor(THREADS, "copy")
        stack.callback(pool.shutdown, cancel_futures=True)
        places = [(number, offset) for number, facts in enumerate(arenas) for offset in block_offsets(facts)]
        for _ in pool.map(copy_block, places):
            told(BLOCK_BYTES)
        return new.finish(image.manifest.instant, arenas)
