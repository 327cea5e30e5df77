"""Taking an image while its arena is being written.

    prepare   blocks are copied to the host while the client runs, and again while fewer change each time; not those that
              change all the time;
    stage     the client stands still: the blocks that kept changing are copied inside the GPU, and those of the others with
              other bytes than the saved ones;
    finish    the client runs: the staged copies go to the host.

A block is hashed where it was saved from: the imager copies it into its own memory on the GPU, hashes on the way what it
copies, and sends the copy to the host.  So a hash always belongs to the bytes that were saved, at any moment that the client
wrote; a hash of the block in the arena, before or after the copy, would not.  At the barrier the imager hashes the arena's
blocks: where the hash is equal, the saved bytes are the barrier's.

Prose: docs/images.md, "Taking an image".
"""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy

from mpsd.errors import MpsdError
from mpsd.images.imager.copier import MOST_RATE, SUMS, BlockTable, Copier
from mpsd.images.imager.device import ArenaMemory, DeviceMemory, free_bytes, upload
from mpsd.images.imager.kernel import BLOCK_BYTES

ROUNDS = 4  # of copies before the barrier
LEAST_ROOM = 32  # blocks
SPARE = 8  # the part of the GPU's free memory that staging leaves to others
WATCH = 20  # the part of the time of their copying that blocks are watched before it
FEW = 8  # after a copy of at most this part of all blocks, looking at all again would cost the client more than it saves

BLOCK = numpy.uint64(BLOCK_BYTES)
Save = Callable[[int, bytes, memoryview], None]  # an offset, the sums of the bytes, the bytes
Share = Callable[[int, bytes], bool]  # an offset, the sums: whether the store has a block of this hash, and takes it


class ClientWroteError(MpsdError):
    """The arena changed between the barrier and its release."""


def _most_room() -> int:
    """Return how many blocks the current GPU has room for, beside what it leaves to others."""
    return free_bytes() // SPARE * (SPARE - 1) // BLOCK_BYTES


class Taking:
    """One image of one arena.  The methods are called in the order above; `close` at any time."""

    def __init__(
        self, copier: Copier, memory: ArenaMemory, save: Save, expect: Callable[[int], None] = lambda size: None,
        share: Share = lambda offset, sums: False,
    ) -> None:  # fmt: skip
        """save: called for each block, in several threads.  expect: called with the bytes to be saved, before they are, and
        with a number below 0 for those that will not be.  share: called for each block before that."""
        self._copier, self._memory, self._save, self._expect, self._share = copier, memory, save, expect, share
        self._staging: DeviceMemory | None = None
        self._staged_places: BlockTable | None = None
        self._table: BlockTable | None = None
        self._allocations: dict[int, tuple[int, int]] = {}
        self._offsets = numpy.zeros(0, numpy.uint64)  # of all blocks
        self._saved = numpy.zeros((0, SUMS), numpy.uint64)  # the hashes of the bytes of each that were saved last
        self._is_saved = numpy.zeros(0, bool)
        self._is_expected = numpy.zeros(0, bool)  # announced, and not copied yet
        self._staged = numpy.zeros(0, numpy.int64)  # numbers of blocks
        self._staged_at = numpy.zeros(0, numpy.int64)  # the place of each
        self._staged_hashes = numpy.zeros((0, SUMS), numpy.uint64)
        self._changing = numpy.zeros(0, numpy.int64)  # numbers of the blocks that had changed when the copies were prepared

    def _look(self) -> None:
        """Note the blocks of the arena's allocations; what is saved of those that remain stays saved."""
        if self._table and self._allocations == self._memory.allocations:
            return
        self._allocations = dict(self._memory.allocations)
        places = sorted((offset, offset + size) for offset, (size, _) in self._allocations.items())
        offsets = [at for first, end in places for at in range(first, end, BLOCK_BYTES)]
        before, old = self._offsets, (self._saved, self._is_saved, self._is_expected)
        self._offsets = numpy.array(offsets, numpy.uint64)
        self._saved = numpy.zeros((len(offsets), SUMS), numpy.uint64)
        self._is_saved, self._is_expected = (numpy.zeros(len(offsets), bool) for _ in range(2))
        _, here, there = numpy.intersect1d(self._offsets, before, return_indices=True)
        for new, each in zip((self._saved, self._is_saved, self._is_expected), old, strict=True):
            new[here] = each[there]
        self._expect((int(self._is_expected.sum()) - int(old[2].sum())) * BLOCK_BYTES)  # what is gone will not be copied
        self._changing = numpy.zeros(0, numpy.int64)
        if self._table:
            self._table.close()
        self._table = self._copier.table(self._memory.base + self._offsets)

    def _hashes(self, numbers: Any) -> Any:
        """Hash these blocks in the arena."""
        assert self._table
        self._table.fill(self._memory.base + self._offsets[numbers])
        return self._table.hashes(len(numbers))

    def _differ(self, numbers: Any, now: Any) -> Any:
        """Tell of each block whether its saved bytes have another hash than now."""
        return ~self._is_saved[numbers] | (now != self._saved[numbers]).any(axis=1)

    def _copy(self, numbers: Any, addresses: Any, rate: float = MOST_RATE, sums: int = 0) -> None:
        """Save these blocks from these addresses.  sums: as of Copier.save."""

        def done(index: int, sums: bytes, data: memoryview) -> None:
            number = numbers[index]
            self._is_saved[number] = False
            self._save(int(self._offsets[number]), sums, data)
            self._saved[number], self._is_saved[number] = numpy.frombuffer(sums, numpy.uint64), True

        self._expect(int((~self._is_expected[numbers]).sum()) * BLOCK_BYTES)
        self._is_expected[numbers] = False
        self._copier.save(addresses.tolist(), done, rate=rate, sums=sums)

    def _copy_from_arena(self, numbers: Any, rate: float = MOST_RATE) -> None:
        self._copy(numbers, self._memory.base + self._offsets[numbers], rate)

    def _share_known(self) -> Any:
        """Take the blocks that the store has from an earlier image; return the hashes of all.

        A block may change after this hash: the barrier compares it with the block that was taken, as with a copy."""
        every = numpy.arange(len(self._offsets))
        self._expect(len(every) * BLOCK_BYTES)
        now = self._hashes(every)
        known = [self._share(int(offset), sums.tobytes()) for offset, sums in zip(self._offsets, now, strict=True)]
        self._is_saved = numpy.array(known, bool)
        self._is_expected = ~self._is_saved
        self._saved[self._is_saved] = now[self._is_saved]
        return now

    def prepare(self) -> int:
        """Copy all blocks that no earlier image has, and those that change meanwhile as long as they become fewer.  Those that
        change all the time wait for the barrier, if the GPU has room for them.

        Return the bytes that were dirty at last: about as many are copied at the barrier."""
        self._look()
        every, now, before = numpy.arange(len(self._offsets)), self._share_known(), math.inf
        for _ in range(ROUNDS):
            dirty = every[self._differ(every, now)]
            restless = self._restless(dirty, now[dirty])
            settled = numpy.setdiff1d(dirty, restless, assume_unique=True)
            if not len(settled) or 2 * len(settled) > before:
                break
            self._copy_from_arena(settled)
            if len(dirty) <= len(every) // FEW:
                self._changing = restless
                self._make_room(len(restless) + len(settled) // 2)
                return len(restless) * BLOCK_BYTES
            before, now = len(settled), self._hashes(every)
        self._changing = every[self._differ(every, now)]
        self._make_room(len(self._changing))
        return len(self._changing) * BLOCK_BYTES

    def _restless(self, numbers: Any, before: Any) -> Any:
        """Return those of these blocks that have no longer the hash of before, as far as there is room for their copies on the
        GPU: at the barrier they would have changed again."""
        most = _most_room()
        if most:
            time.sleep(len(numbers) * BLOCK_BYTES / MOST_RATE / WATCH)
            numbers = numbers[(self._hashes(numbers) != before).any(axis=1)]
        return numbers[:most]

    def _make_room(self, blocks: int) -> None:
        """Allocate memory for twice the blocks that are dirty now, as far as the GPU has room to spare."""
        wanted = min(max(2 * blocks, LEAST_ROOM), len(self._offsets) + LEAST_ROOM, _most_room())
        if wanted > 0:
            self._staging = DeviceMemory(wanted * BLOCK_BYTES)
        self._staged_places = self._copier.table(numpy.zeros(wanted, numpy.uint64))

    @property
    def room_bytes(self) -> int:
        """The memory for copies inside the GPU: a barrier with more dirty bytes waits for the host."""
        return self._staging.bytes if self._staging else 0

    def _stage(self, numbers: Any, place: int) -> Any:
        """Copy these blocks inside the GPU to the places from this one on; return the hashes of the copies."""
        if not len(numbers):
            return numpy.zeros((0, SUMS), numpy.uint64)
        assert self._staged_places
        assert self._staging
        self._staged_places.fill(self._memory.base + self._offsets[numbers])
        return self._staged_places.hashes(len(numbers), self._staging.address + place * BLOCK_BYTES)

    def stage(self) -> tuple[int, int]:
        """Make the image that of this moment; the client must not write until this returns.

        Return the bytes that were copied inside the GPU, and those for which it had no room, which went to the host at once.
        Raises ClientWroteError if the client did write."""
        self._look()
        room = self.room_bytes // BLOCK_BYTES
        early = self._changing[:room]  # most likely they have changed again: one pass copies and hashes them
        copies = self._stage(early, 0)
        others = numpy.setdiff1d(numpy.arange(len(self._offsets)), early, assume_unique=True)
        now = self._hashes(others)
        differ = self._differ(others, now)
        changed, now = others[differ], now[differ]
        late, rest = numpy.split(changed, [room - len(early)])
        late_copies = self._stage(late, len(early))
        self._copy_from_arena(rest, math.inf)  # the client waits
        wrong = [
            *early[(self._hashes(early) != copies).any(axis=1)],
            *late[(late_copies != now[: len(late)]).any(axis=1)],
            *rest[(self._saved[rest] != now[len(late) :]).any(axis=1)],
        ]
        if wrong:
            raise ClientWroteError(f"{len(wrong)} blocks changed during the barrier, the first at {self._offsets[wrong[0]]:#x}")
        fresh = numpy.flatnonzero(self._differ(early, copies))
        self._staged = numpy.concatenate([early[fresh], late])
        self._staged_at = numpy.concatenate([fresh, len(early) + numpy.arange(len(late))])
        self._staged_hashes = numpy.concatenate([copies[fresh], late_copies])
        return len(self._staged) * BLOCK_BYTES, len(rest) * BLOCK_BYTES

    def finish(self, rate: float = MOST_RATE) -> None:
        """Copy what was staged to the host, so many bytes a second at most.  Raises OSError if the GPU did not copy it, as
        when it fails.

        The copies do not change, so the hashes of the barrier are theirs.  These go to the GPU and come back behind each
        piece: the GPU has copied what they follow."""
        if len(self._staged):
            assert self._staged_places
            assert self._staging
            sums = self._staged_places.out.address
            upload(sums, self._staged_hashes.tobytes(), self._copier.stream)
            self._copy(self._staged, self._staging.address + self._staged_at.astype(numpy.uint64) * BLOCK, rate, sums)
            if (self._saved[self._staged] != self._staged_hashes).any():
                raise OSError("what was copied inside the GPU at the barrier did not come to the host: has the GPU failed?")

    def close(self) -> None:
        for each in (self._staged_places, self._table, self._staging):
            if each:
                each.close()
        self._staged_places = self._table = self._staging = None
