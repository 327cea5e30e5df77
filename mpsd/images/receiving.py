"""Receive an image that another machine sends: the blocks that no image here has, each once.

The receiver keeps the blocks that arrived in a partial image (NAME.partial-N), and replaces it after each KEPT_BLOCKS blocks.
So a transfer that was cut off goes on where that image ends.
"""

from collections.abc import Sequence
from contextlib import suppress

from mpsd.errors import BadRequest, MpsdError, NoRoom
from mpsd.images.directory import check_free
from mpsd.images.rules.block_hash import HASH_BYTES
from mpsd.images.rules.manifest import BLOCK_BYTES, ArenaFacts, Manifest, block_offsets
from mpsd.images.rules.membership import Epoch
from mpsd.images.rules.refusals import NoSuchImage
from mpsd.images.rules.transfer import (
    Done,
    NotTaken,
    Offer,
    Want,
    block_ids,
    checksum,
    known_ids,
    partial_group,
    plan_transfer,
    read_offer,
    split_ids,
    to_ranges,
)
from mpsd.images.store import MOST_MANIFESTS_BYTES, MOST_WITH_RECEIVED, Images
from mpsd.images.stream import Stream, StreamBroken
from mpsd.images.writer import ImageWriter

KEPT_BLOCKS = 256  # a receiver that is killed loses at most so many


def receive(images: Images, stream: Stream, kept_blocks: int = KEPT_BLOCKS) -> Manifest:
    """Receive an image and return it.

    After StreamBroken, BadRequest (the name is taken, no message of a sender, a block that changed on its way) or NoRoom the
    image does not exist; the sender gets the reason.
    """
    try:
        offer = read_offer(stream.receive_body())
        check_free(images.directory, offer.name)
        if (size := images.directory.manifest_bytes()) > MOST_MANIFESTS_BYTES:
            most = f"{images.directory.path} has manifests of {size} bytes, of {MOST_MANIFESTS_BYTES} at most"
            raise NoRoom(f"{most} to receive another image: remove some")
        made = _Receiver(images, stream, offer).run(kept_blocks)
    except StreamBroken:
        raise
    except (MpsdError, OSError) as exc:
        with suppress(StreamBroken):
            stream.send_message(NotTaken(str(exc)))
        raise
    stream.send_message(Done())
    return made


class _Receiver:
    """Guards that each block which has arrived stays, and that the image is made of them all."""

    def __init__(self, images: Images, stream: Stream, offer: Offer) -> None:
        self._images = images
        self._stream = stream
        self._offer = offer
        self._group = partial_group(offer.name)
        self._ids = block_ids(offer)
        found = images.listing().images
        self._partials = [each for each in found if each.group == self._group and self._number(each.name)]
        self._have, self._wanted = plan_transfer(offer, known_ids(found))
        before = [each for one in self._partials for arena in one.arenas for each in split_ids(arena.origins)]
        self._arrived = [each for each in dict.fromkeys(before) if each in self._have]

    def run(self, kept_blocks: int) -> Manifest:
        self._stream.send_message(Want(to_ranges(self._wanted)))
        for first in range(0, len(self._wanted), kept_blocks):
            self._receive_some(self._wanted[first : first + kept_blocks])
        made = self._finish()
        self._forget(self._partials)
        return made

    def _receive_some(self, numbers: Sequence[int]) -> None:
        """Receive these blocks, and keep them with all that arrived before in one image, also if the stream ends."""
        last = max(map(self._number, self._images.directory.names()), default=0)  # of all: others may have such names too
        name, broken = f"{self._group}-{1 + last}", None
        with self._begin(name, self._group) as new:
            for place, block_id in enumerate(self._arrived):
                if not new.share(name, place * BLOCK_BYTES, self._have[block_id]):
                    raise self._removed_meanwhile()
            for number in numbers:
                try:
                    block = self._receive_block(number)
                except StreamBroken as exc:
                    broken = exc
                    break
                new.add(name, len(self._arrived) * BLOCK_BYTES, block)
                self._arrived.append(self._ids[number])
            if self._arrived:
                size = len(self._arrived) * BLOCK_BYTES
                facts = ArenaFacts(name, self._offer.arenas[0].facts.gpu, 0, size, size, ((0, size),))
                kept = new.finish(self._offer.instant, [facts], [b"".join(self._arrived)])
                self._have.update(zip(self._arrived, (place.id for place in kept.places()), strict=True))
                self._forget(self._partials)
                self._partials = [kept]
        if broken is not None:
            raise broken

    def _receive_block(self, number: int) -> bytearray:
        expected = self._stream.receive(HASH_BYTES)
        block = self._stream.receive(BLOCK_BYTES)
        if checksum(block) != expected:
            raise BadRequest(f"block {number} of image {self._offer.name} changed on its way: send it again")
        return block

    def _finish(self) -> Manifest:
        offer = self._offer
        ids = iter(self._ids)
        with self._begin(offer.name, offer.group, offer.epoch) as new:
            for arena in offer.arenas:
                for offset in block_offsets(arena.facts):
                    if not new.share(arena.facts.name, offset, self._have[next(ids)]):
                        raise self._removed_meanwhile()
            return new.finish(offer.instant, [each.facts for each in offer.arenas], [each.ids for each in offer.arenas])

    def _begin(self, name: str, group: str, epoch: Epoch | None = None) -> ImageWriter:
        most = MOST_WITH_RECEIVED + len(self._partials)  # which this image replaces
        return self._images.begin(name, group, epoch=epoch, most_images=most)

    def _number(self, name: str) -> int:
        """Return N of NAME.partial-N; 0: the image has another name."""
        head, _, number = name.rpartition("-")
        return int(number) if head == self._group and number.isdecimal() else 0

    def _removed_meanwhile(self) -> BadRequest:
        return BadRequest(f"images were removed while image {self._offer.name} was received: send it again")

    def _forget(self, images: Sequence[Manifest]) -> None:
        for each in images:
            with suppress(NoSuchImage):
                self._images.remove(each.name)
