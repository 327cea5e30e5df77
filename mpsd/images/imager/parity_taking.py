"""The parity of arenas on different GPUs: of each stripe one block, and the hashes of the members' blocks.

    prepare      copy each stripe to the host and make its parity while the client works; again those that change, while they
                 become fewer
    stage        the client has reached a barrier: do so with the stripes that differ from what was copied
    finish       the manifest

A block's hash is of the bytes that went into the parity, as of an image (taking.py).
Prose: docs/images.md, "Parity of arenas on several GPUs".
"""

import mmap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from queue import SimpleQueue

import numpy

from mpsd.images.imager.copier import MOST_RATE, PIECE_BLOCKS, SLOTS, BlockTable
from mpsd.images.imager.kernel import BLOCK_BYTES
from mpsd.images.imager.stripes import Member, read_stripes
from mpsd.images.imager.taking import ROUNDS, ClientWroteError
from mpsd.images.parity import make_parity
from mpsd.images.rules.block_hash import BlockHash
from mpsd.images.rules.manifest import ArenaFacts, Manifest, MemberImage, block_offsets
from mpsd.images.rules.parity import NAMES, check_gpus, parity_facts
from mpsd.images.writer import ImageWriter


class ParityTaking:
    """One image with the parity of these arenas.  The methods are called in the order above; `close` at any time."""

    def __init__(
        self, members: Sequence[Member], gpus: Sequence[str], parity: int, writer: ImageWriter, hash_of: BlockHash,
        expect: Callable[[int], None], told: Callable[[int], None],
    ) -> None:  # fmt: skip
        """gpus: UUIDs.  parity: for so many lost GPUs.

        expect: called with the bytes to be copied, before they are; told: with those that are copied.
        Raise BadRequest: two of the arenas are on one GPU."""
        check_gpus(gpus, parity)
        self._names = NAMES[:parity]
        self._members, self._writer, self._hash_of = members, writer, hash_of
        self._expect, self._told = expect, told
        self._copied: list[dict[int, bytes]] = [{} for _ in members]  # for each: sums of blocks in the parity, by offset
        self._tables: dict[int, tuple[list[int], BlockTable]] = {}  # of each member's blocks; made before the barrier
        self._blocks: SimpleQueue[list[memoryview]] = SimpleQueue()  # of each thread, one for each parity
        with ExitStack() as stack:
            for _ in range(SLOTS):
                memory = [stack.enter_context(mmap.mmap(-1, BLOCK_BYTES)) for _ in self._names]
                self._blocks.put([stack.enter_context(memoryview(each)) for each in memory])
            self._pool = ThreadPoolExecutor(SLOTS, "parity")
            stack.callback(self._pool.shutdown, cancel_futures=True)
            self._stack = stack.pop_all()

    def prepare(self) -> None:
        before = 0
        for number in range(ROUNDS):
            changed = self._changed()
            if not changed or (number and len(changed) > before // 2):
                return
            self._encode(changed, MOST_RATE)
            before = len(changed)

    def stage(self) -> int:
        """Make the parity that of this moment; the client must not write until this returns.

        Return the bytes that it copied to the host.  Raise ClientWroteError if the client did write."""
        changed = self._changed()
        size = self._encode(changed) if changed else 0
        if changed and (wrong := self._changed()):
            raise ClientWroteError(f"{len(wrong)} stripes changed during the barrier, the first at {wrong[0]:#x}")
        return size

    def finish(self, instant: float, arenas: Sequence[ArenaFacts]) -> Manifest:
        """Let the image be complete.  arenas: the members' facts, in their order."""
        members = [
            MemberImage(facts, b"".join(self._hash_of.name_of(copied[offset]) for offset in block_offsets(facts)))
            for facts, copied in zip(arenas, self._copied, strict=True)
        ]
        parity = [parity_facts(name, arenas) for name in self._names]
        made = self._writer.finish(instant, parity, members=members, is_latest=True)
        with suppress(OSError):  # the context may be lost: the image no longer needs it
            self.close()
        return made

    def close(self) -> None:
        self._stack.close()
        for number, (_, table) in self._tables.items():
            self._members[number].gpu.set_current()
            table.close()  # fails if the context is lost
        self._tables.clear()

    def _changed(self) -> list[int]:
        """Return the offsets of the stripes that have other blocks than those that were copied, ascending."""
        return sorted(set().union(*self._pool.map(self._changed_of, range(len(self._members)))))

    def _changed_of(self, number: int) -> set[int]:
        """Hash the blocks of one member."""
        member, copied, found = self._members[number], self._copied[number], sorted(self._members[number].offsets())
        member.gpu.set_current()
        offsets, table = self._tables.get(number, ([], None))
        if table is None or offsets != found:
            if table is not None:
                table.close()
            offsets, table = found, member.copier.table(member.memory.base + numpy.array(found, numpy.uint64))
            self._tables[number] = offsets, table
        rows = table.hashes(len(offsets))
        changed = {offset for offset, row in zip(offsets, rows, strict=True) if copied.get(offset) != row.tobytes()}
        return changed | (copied.keys() - set(offsets))

    def _encode(self, offsets: Sequence[int], rate: float = 0.0) -> int:
        """Copy these stripes, and store their parity.  rate: bytes a second of each GPU at most; 0: as fast as it can.

        Return the bytes that were copied.  Raise what storing raises, or OSError: the driver's."""
        present = [member.offsets() for member in self._members]
        size = sum(len(those.intersection(offsets)) for those in present) * BLOCK_BYTES
        self._expect(size)
        began, running = time.monotonic(), list[Future[None]]()
        for first in range(0, len(offsets), PIECE_BLOCKS):
            if rate:
                time.sleep(max(0.0, began + first * BLOCK_BYTES / rate - time.monotonic()))
            piece = offsets[first : first + PIECE_BLOCKS]
            running.append(self._pool.submit(self._encode_piece, piece, present))
            if any(each.done() and each.exception() for each in running[-SLOTS:]):
                break
        for each in running:
            each.result()
        return size

    def _encode_piece(self, offsets: Sequence[int], present: Sequence[set[int]]) -> None:
        wanted = [[offset for offset in offsets if offset in those] for those in present]
        made = self._blocks.get()
        try:
            with read_stripes(self._members, wanted) as found:
                for offset in offsets:
                    sources = [blocks[offset][1] if offset in blocks else None for blocks in found]
                    if any(sources):  # none: all members have dropped it
                        make_parity(sources, *made)
                        for name, block in zip(self._names, made, strict=True):
                            self._writer.add(name, offset, block)
                for copied, blocks, those in zip(self._copied, found, present, strict=True):
                    copied.update((offset, sums) for offset, (sums, _) in blocks.items())
                    for offset in set(offsets) - those:
                        copied.pop(offset, None)
                self._told(sum(map(len, found)) * BLOCK_BYTES)
        finally:
            self._blocks.put(made)


