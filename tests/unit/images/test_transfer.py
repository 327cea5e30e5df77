"""An image goes to another directory, with another key, through the pipes of a command."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from mpsd.errors import BadRequest, NoRoom
from mpsd.images import sending
from mpsd.images.receiving import receive
from mpsd.images.rules.manifest import BLOCK_BYTES, MOST_ALLOCATIONS, MOST_ARENAS, Manifest
from mpsd.images.rules.refusals import ImageDamaged
from mpsd.images.rules.retention import Limits
from mpsd.images.rules.transfer import VERSION, Done, NotTaken, Offer, OfferedArena, Want, checksum
from mpsd.images.sending import ImageRejected, send, send_by
from mpsd.images.store import Images
from mpsd.images.stream import Stream, StreamBroken
from tests.unit.images.making import FIRST, block, contents_of, expected, facts, flip, stored_blocks, take

MANY = {place: 100 + place for place in range(12)}


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Images]:
    """Return the directory of the other machine."""
    with Images.open(tmp_path / "there") as made:
        yield made


class Pipes:
    """Two pipes between a sender and a receiver in a thread."""

    def __init__(self) -> None:
        self.from_receiver, self._to_sender = os.pipe()
        self._from_sender, self.to_receiver = os.pipe()

    def run(self, images: Images, through: Callable[[int], int] | None = None, **more: int) -> "Receiving":
        incoming = through(self._from_sender) if through else self._from_sender
        return Receiving(images, Stream(incoming, self._to_sender, 20), {incoming, self._to_sender}, more)

    @property
    def sender(self) -> Stream:
        return Stream(self.from_receiver, self.to_receiver, 20)


class Receiving(threading.Thread):
    """Receives one image; `outcome` is the image or the exception."""

    def __init__(self, images: Images, stream: Stream, owned: set[int], more: dict[str, int]) -> None:
        super().__init__()
        self._images, self._stream, self._owned, self._more = images, stream, owned, more
        self.outcome: Manifest | Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = receive(self._images, self._stream, **self._more)
        except Exception as exc:
            self.outcome = exc
        finally:
            for each in self._owned:
                os.close(each)


def transfer(
    here: Images, there: Images, name: str, new_name: str = "", through: Callable[[int], int] | None = None, **more: int
) -> tuple[int | Exception, Manifest | Exception | None]:
    """Send an image; return the number of blocks that travelled or the sender's exception, and the receiver's outcome."""
    pipes = Pipes()
    receiving = pipes.run(there, through, **more)
    sent: int | Exception
    try:
        with here.reader(name) as image:
            sent = send(image, new_name or name, pipes.sender, lambda size, total: None) // BLOCK_BYTES
    except Exception as exc:
        sent = exc
    finally:
        os.close(pipes.to_receiver)
        receiving.join(60)
        os.close(pipes.from_receiver)
    return sent, receiving.outcome


WHOLE = """
import os
def whole(count):
    while count and (piece := os.read(0, min(count, 1 << 16))):
        count -= len(piece)
        os.write(1, piece)
"""


def cut_after(size: int) -> Callable[[int], int]:
    """Return a way that lets only so many bytes through."""
    return lambda incoming: _filtered(incoming, f"{WHOLE}\nwhole({size})")


def changed_at(size: int) -> Callable[[int], int]:
    """Return a way that flips a bit of the byte at this place."""
    program = f"{WHOLE}\nwhole({size})\nos.write(1, bytes([os.read(0, 1)[0] ^ 1]))\nwhole(1 << 40)"
    return lambda incoming: _filtered(incoming, program)


def _filtered(incoming: int, program: str) -> int:
    one = subprocess.Popen([sys.executable, "-c", program], stdin=incoming, stdout=subprocess.PIPE)
    os.close(incoming)
    assert one.stdout is not None
    with one.stdout:
        outgoing = os.dup(one.stdout.fileno())
    threading.Thread(target=one.wait).start()
    return outgoing


def names(images: Images) -> list[str]:
    return [each.name for each in images.listing().images]


def test_everything_of_the_image_arrives(images: Images, there: Images) -> None:
    with images.begin("first", "llm") as new:
        for name in ("weights", "kv"):
            for place in range(20):
                new.add(name, place * BLOCK_BYTES, block(place % 7 + len(name)))
        made = new.finish(5.0, [facts(*range(20), name=name, layout=b"x", state=b"y") for name in ("weights", "kv")])
    sent, got = transfer(images, there, "first", "second")
    assert isinstance(got, Manifest)
    assert (sent, got.name, got.group, got.instant) == (12, "second", "llm", 5.0), "equal blocks travel once"
    assert [each.facts for each in got.arenas] == [each.facts for each in made.arenas]
    assert contents_of(there, "second") == contents_of(images, "first")
    assert (list(there.verify()), names(there)) == ([], ["second"])


def test_only_what_changed_travels_and_is_read(images: Images, there: Images, path: Path) -> None:
    take(images, "first", MANY)
    assert transfer(images, there, "first")[0] == 12
    take(images, "second", {**MANY, 3: 7}, instant=2.0)
    flip(path / "packs/1", 5 * BLOCK_BYTES)
    sent, got = transfer(images, there, "second")
    assert (sent, isinstance(got, Manifest), stored_blocks(there)) == (1, True, 13)
    assert contents_of(there, "second") == expected({**MANY, 3: 7})


def test_an_image_that_comes_back_does_not_travel_again(images: Images, there: Images) -> None:
    take(images, "first", MANY)
    transfer(images, there, "first")
    assert transfer(there, images, "first", "again")[0] == 0
    assert contents_of(images, "again") == expected(MANY)


@pytest.mark.parametrize("blocks", [0, 1, 5, 11])
def test_a_transfer_that_was_cut_off_goes_on(images: Images, there: Images, blocks: int) -> None:
    """The image is absent until all blocks have arrived; a partial image keeps those that did."""
    take(images, "first", MANY)
    sent, got = transfer(images, there, "first", through=cut_after(2000 + blocks * (BLOCK_BYTES + 16)), kept_blocks=3)
    assert isinstance(sent, StreamBroken)
    assert isinstance(got, StreamBroken)
    assert [each.rpartition("-")[0] for each in names(there)] == ["first.partial"] * bool(blocks)
    assert transfer(images, there, "first", kept_blocks=3)[0] == 12 - blocks
    assert (contents_of(there, "first"), names(there)) == (expected(MANY), ["first"])
    there.collect()
    assert stored_blocks(there) == 12


def test_blocks_of_an_interrupted_transfer_serve_another_content(images: Images, there: Images) -> None:
    take(images, "first", MANY)
    transfer(images, there, "first", through=cut_after(2000 + 6 * (BLOCK_BYTES + 16)))
    images.remove("first")
    take(images, "first", {**MANY, 0: 1, 1: 2})
    assert transfer(images, there, "first")[0] == 8
    assert (contents_of(there, "first"), names(there)) == (expected({**MANY, 0: 1, 1: 2}), ["first"])


def test_a_block_that_changed_on_its_way(images: Images, there: Images) -> None:
    take(images, "first", FIRST)
    sent, got = transfer(images, there, "first", through=changed_at(2 * BLOCK_BYTES))
    assert isinstance(sent, ImageRejected)
    assert "changed on its way" in str(sent)
    assert isinstance(got, BadRequest)
    assert names(there) == []


def test_the_sender_says_why_the_receiver_refuses(images: Images, there: Images) -> None:
    take(images, "first", MANY)
    take(there, "first", FIRST)
    assert "an image has the name first already" in str(transfer(images, there, "first")[0])
    there.set_limits(Limits(quota_bytes=6 * BLOCK_BYTES))
    sent, got = transfer(images, there, "first", "second")
    assert "the quota of" in str(sent)
    assert isinstance(got, NoRoom)
    assert (isinstance(sent, ImageRejected), names(there)) == (True, ["first"])
    assert "100 characters" in str(transfer(images, there, "first", "n" * 101)[0])


def test_damage_at_the_sender(images: Images, there: Images, path: Path) -> None:
    take(images, "first", MANY)
    flip(path / "packs/1", 5 * BLOCK_BYTES)
    sent, got = transfer(images, there, "first")
    assert isinstance(sent, ImageDamaged)
    assert isinstance(got, StreamBroken)
    assert "first" not in names(there)


@pytest.mark.parametrize("sent", [
    pytest.param(b"", id="nothing"),
    pytest.param(b"\x05\x00", id="half a length"),
    pytest.param(b"\xff\xff\xff\xff", id="a length over the limit"),
    pytest.param(b"\x04\x00\x00\x00abcd", id="no MessagePack"),
    pytest.param(b"\x01\x00\x00\x00\x80", id="an empty map"),
])  # fmt: skip
def test_a_receiver_survives_any_bytes(there: Images, sent: bytes) -> None:
    pipes = Pipes()
    receiving = pipes.run(there)
    os.write(pipes.to_receiver, sent)
    os.close(pipes.to_receiver)
    receiving.join(60)
    os.close(pipes.from_receiver)
    assert isinstance(receiving.outcome, BadRequest | StreamBroken)
    assert names(there) == []


def offered(there: Images, offer: Offer, blocks: Sequence[int] = ()) -> object:
    """Return the receiver's last answer to an offer, after these blocks."""
    pipes = Pipes()
    receiving = pipes.run(there)
    pipes.sender.send_message(offer)
    answer = pipes.sender.receive_message(Want | NotTaken)  # type: ignore[arg-type]
    if isinstance(answer, Want):
        for each in blocks:
            pipes.sender.send(checksum(block(each)))
            pipes.sender.send(block(each))
        answer = pipes.sender.receive_message(Done | NotTaken)  # type: ignore[arg-type]
    receiving.join(60)
    os.close(pipes.to_receiver)
    os.close(pipes.from_receiver)
    return answer


@pytest.mark.parametrize("instant", [float("nan"), float("inf"), -1.0, 1e300])
def test_an_image_of_no_time_is_refused(there: Images, instant: float) -> None:
    """Nobody could read it, and so the blocks of no image could be freed."""
    answer = offered(there, Offer(VERSION, "first", "", instant, (OfferedArena(facts(), b""),)))
    assert isinstance(answer, NotTaken)
    assert "has a time that is none" in answer.why
    assert (there.listing().damaged, there.collect()) == ({}, 0)


def test_no_sender_fills_the_receivers_memory(there: Images) -> None:
    """A pair of small numbers takes three bytes in a message, and a hundred in memory."""
    many = replace(facts(), allocations=((0, 0),) * (MOST_ALLOCATIONS + 1))
    answer = offered(there, Offer(VERSION, "first", "", 1.0, (OfferedArena(many, b""),)))
    assert isinstance(answer, NotTaken)
    assert f"length <= {MOST_ALLOCATIONS}" in answer.why


@pytest.mark.parametrize(("offer", "why"), [
    (Offer(VERSION, "first", "g" * 257, 1.0, (OfferedArena(facts(), b""),)), "has 257 characters: use 256 at most"),
    (Offer(VERSION, "first", "", 1.0, (OfferedArena(facts(name="a" * 257), b""),)), "have 256 characters at most"),
    (Offer(VERSION, "first", "", 1.0, (OfferedArena(replace(facts(), gpu="G" * 257), b""),)), "have 256 characters at most"),
    (Offer(VERSION, "first", "", 1.0, (OfferedArena(facts(), b""),) * (MOST_ARENAS + 1)), f"length <= {MOST_ARENAS}"),
], ids=["group", "name", "GPU", "arenas"])  # fmt: skip
def test_no_sender_makes_a_manifest_of_long_texts(there: Images, offer: Offer, why: str) -> None:
    """One of half a gigabyte lies beside the quota, and each look at the directory reads it."""
    answer = offered(there, offer)
    assert isinstance(answer, NotTaken)
    assert why in answer.why
    assert names(there) == []


def test_an_offer_of_too_many_blocks_is_refused(there: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a gigabyte of hashes, all different, took 8 GB of the receiver's memory."""
    monkeypatch.setattr("mpsd.images.rules.transfer.MOST_BLOCKS", 3, raising=False)
    arenas = [OfferedArena(facts(1, 2, name=name), bytes(range(32))) for name in ("a", "b")]
    answer = offered(there, Offer(VERSION, "first", "", 1.0, tuple(arenas)))
    assert isinstance(answer, NotTaken)
    assert "image first has 4 blocks or more, one that is received 3 at most" in answer.why


def test_no_sender_makes_a_partial_image(images: Images, there: Images) -> None:
    """Its number would leave no name for those of the image that it says it is a part of."""
    answer = offered(there, Offer(VERSION, f"first.partial-{10 ** 70}", "first.partial", 1.0, (OfferedArena(facts(), b""),)))
    assert isinstance(answer, NotTaken)
    assert "is a part of one" in answer.why
    take(images, "first", FIRST)
    assert transfer(images, there, "first")[0] == len(FIRST)


def test_an_image_with_the_name_of_a_partial_one_stops_no_transfer(images: Images, there: Images) -> None:
    """The receiver chose that name for the blocks of the other image that had arrived, and refused the image."""
    assert offered(there, Offer(VERSION, "first.partial-1", "", 1.0, (OfferedArena(facts(), b""),))) == Done()
    take(images, "first", FIRST)
    assert transfer(images, there, "first")[0] == len(FIRST)
    assert sorted(names(there)) == ["first", "first.partial-1"]


def test_no_sender_says_what_the_receivers_own_blocks_are(images: Images, there: Images) -> None:
    """Who has had an image from here knows their hashes, and gives one to other bytes."""
    made = take(there, "first", {0: 1})
    transfer(there, images, "first")
    there.remove("first")
    ids = b"".join(each.id for each in made.places())
    assert offered(there, Offer(VERSION, "false", "", 2.0, (OfferedArena(facts(1), ids),)), [666]) == Done()
    take(there, "again", {0: 1})
    assert transfer(images, there, "first")[0] == 0
    assert contents_of(there, "first") == expected({0: 1})


def receiver(path: Path) -> list[str]:
    return [sys.executable, "-m", "mpsd.images", "receive", "--directory", str(path)]


def test_through_a_command(images: Images, tmp_path: Path) -> None:
    take(images, "first", FIRST)
    told: list[tuple[int, int]] = []
    with images.reader("first") as image:
        sent = send_by(receiver(tmp_path / "new"), image, "first", lambda *each: told.append(each))
    assert (sent, told) == (3 * BLOCK_BYTES, [(BLOCK_BYTES, 3 * BLOCK_BYTES)] * 3)
    with Images.open(tmp_path / "new") as there:
        assert contents_of(there, "first") == expected(FIRST)


def test_commands_that_fail(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "END_SECONDS", 1.0)  # the last command does not end by itself
    take(images, "first", MANY)
    with images.reader("first") as image:
        with pytest.raises(BadRequest, match="/nowhere/ssh cannot be started: No such file"):
            send_by(["/nowhere/ssh"], image, "first", lambda *each: None)
        with pytest.raises(StreamBroken, match=r"ended \(sh with status 255\): send it again"):
            send_by(["sh", "-c", "exit 255"], image, "first", lambda *each: None)
        with pytest.raises(StreamBroken, match=r"less than 2 MiB in 0.1 s"):
            send_by(["sh", "-c", "exec sleep 600"], image, "first", lambda *each: None, 0.1)


@pytest.mark.parametrize("takes", [False, True])
def test_a_side_that_sends_or_takes_little_by_little_is_given_up(takes: bool) -> None:
    """A byte now and then began the time anew: the other side held the blocks of removed images without end."""
    reader, writer = os.pipe()
    is_over = threading.Event()
    stream = Stream(reader, writer, 0.3)

    def dribble() -> None:
        while not is_over.wait(0.02):
            if takes:
                os.read(reader, 4096)
            else:
                os.write(writer, b"x")

    other = threading.Thread(target=dribble)
    other.start()
    try:
        with pytest.raises(StreamBroken, match=r"less than 2 MiB in 0\.3 s"):
            stream.send(bytes(BLOCK_BYTES)) if takes else stream.receive(64)
    finally:
        is_over.set()
        other.join()
        os.close(reader)
        os.close(writer)


DEADLY = """
import os, sys
from mpsd.images.receiving import receive
from mpsd.images.store import Images
from mpsd.images.stream import Stream
from pathlib import Path
Path(sys.argv[2]).write_text(str(os.getpid()))
receive(Images.open(Path(sys.argv[1])), Stream(0, 1), 2)
"""


def test_a_receiver_that_is_killed_keeps_what_it_had(images: Images, tmp_path: Path) -> None:
    take(images, "first", MANY)
    told: list[int] = []

    def kill_at_seven(size: int, total: int) -> None:
        told.append(size)
        if len(told) == 7:
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    command = [sys.executable, "-c", DEADLY, str(tmp_path / "new"), str(tmp_path / "pid")]
    with images.reader("first") as image, pytest.raises(StreamBroken, match="status -9"):
        send_by(command, image, "first", kill_at_seven)
    with Images.open(tmp_path / "new") as there:
        (partial,) = there.listing().images
        kept = partial.content_bytes // BLOCK_BYTES
        assert (partial.group, kept >= 4) == ("first.partial", True), "six blocks had gone through the pipe"
        assert transfer(images, there, "first")[0] == 12 - kept
        assert (contents_of(there, "first"), names(there)) == (expected(MANY), ["first"])
