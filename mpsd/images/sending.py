"""Send an image to another machine: over the pipes of a command that runs `mpsd-images receive` there."""

import mmap
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from mpsd.errors import BadRequest, MpsdError
from mpsd.images.reader import ImageReader
from mpsd.images.rules.manifest import BLOCK_BYTES, block_offsets
from mpsd.images.rules.transfer import Answer, Done, NotTaken, Want, checksum, offer_of, to_numbers
from mpsd.images.stream import STALL_SECONDS, Stream, StreamBroken

Kind = TypeVar("Kind", Want, Done)
Told = Callable[[int, int], None]
END_SECONDS = 10.0  # the command has answered, or was told to end


class ImageRejected(MpsdError):
    """The receiver does not take the image."""


def send_by(command: Sequence[str], image: ImageReader, name: str, told: Told, stall_seconds: float = STALL_SECONDS) -> int:
    """Send the image through the command; return the bytes of the blocks that travelled.

    told: called with the bytes of each block, and with those of all.  Raise BadRequest (no such command), ImageRejected,
    StreamBroken or ImageDamaged; what has arrived need not travel again.
    """
    try:
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as exc:
        raise BadRequest(f"{command[0]} cannot be started: {exc.strerror}") from None
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        sent = send(image, name, Stream(other.stdout.fileno(), other.stdin.fileno(), stall_seconds), told)
        other.stdin.close()
        return sent
    except StreamBroken as exc:
        status = _end(other)
        how = f" ({command[0]} with status {status})" if status else ""
        raise StreamBroken(f"{exc}{how}: send it again to go on") from None
    finally:
        _end(other)
        other.stdout.close()


def _end(command: "subprocess.Popen[bytes]") -> int | None:
    """End the command if it does not end by itself; return its status, None if it was ended here."""
    if command.stdin is not None:
        with suppress(OSError):
            command.stdin.close()
    try:
        return command.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        command.kill()
        command.wait()
        return None


def send(image: ImageReader, name: str, stream: Stream, told: Told) -> int:
    """Offer the image and send what the receiver wants of it; see send_by."""
    try:
        return _send(image, name, stream, told)
    except StreamBroken:
        with suppress(StreamBroken, BadRequest):  # a receiver that refuses ends at once: its reason is still in the pipe
            _expect(stream, Done)
        raise


def _send(image: ImageReader, name: str, stream: Stream, told: Told) -> int:
    stream.send_message(offer_of(image.manifest, name))
    want = _expect(stream, Want)
    arenas = enumerate(each.facts for each in image.manifest.arenas)
    places = [(number, offset) for number, facts in arenas for offset in block_offsets(facts)]
    numbers = to_numbers(want, len(places))
    with mmap.mmap(-1, BLOCK_BYTES) as memory, memoryview(memory) as block:
        for each in numbers:
            image.read_into(*places[each], block)
            stream.send(checksum(block))
            stream.send(block)
            told(BLOCK_BYTES, len(numbers) * BLOCK_BYTES)
    _expect(stream, Done)
    return len(numbers) * BLOCK_BYTES


def _expect(stream: Stream, kind: type[Kind]) -> Kind:
    answer = stream.receive_message(Answer)  # type: ignore[arg-type]
    if isinstance(answer, NotTaken):
        raise ImageRejected(f"the receiver refuses: {answer.why:.500}")
    if not isinstance(answer, kind):
        raise BadRequest(f"the receiver answers {type(answer).__name__} where {kind.__name__} is due")
    return answer
