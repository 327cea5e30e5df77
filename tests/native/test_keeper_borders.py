"""Nothing that is sent to the keeper makes it lose what it holds, leak, block the others or give up."""

import os
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.native import keeper_client as kc
from tests.native.keeper_client import KeeperClient, Message, RunningKeeper
from tests.seeds import seeds

WAIT_SECONDS = 10.0

Eventually = Callable[[Callable[[], bool]], None]


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "status"),
    [
        pytest.param(Message(0), kc.BAD_OP, id="op 0"),
        pytest.param(Message(8), kc.BAD_OP, id="op 8"),
        pytest.param(Message(0xFFFF), kc.BAD_OP, id="op 65535"),
        pytest.param(Message(kc.GET, b"a", reserved=(1, 0)), kc.BAD_FIELD, id="reserved 0"),
        pytest.param(Message(kc.GET, b"a", reserved=(0, 1)), kc.BAD_FIELD, id="reserved 1"),
        pytest.param(Message(kc.GET, b"a", status=1), kc.BAD_FIELD, id="status"),
        pytest.param(Message(kc.GET, b"a", count=1), kc.BAD_FIELD, id="count"),
        pytest.param(Message(kc.GET, b"a", flags=2), kc.BAD_FIELD, id="unknown flag"),
        pytest.param(Message(kc.GET, b"a", flags=kc.REPLY), kc.BAD_FIELD, id="a reply's flag"),
        pytest.param(Message(kc.GET, b"a", flags=kc.QUIET), kc.BAD_FIELD, id="quiet get"),
        pytest.param(Message(kc.LIST, flags=kc.QUIET), kc.BAD_FIELD, id="quiet list"),
        pytest.param(Message(kc.GET, b"a", size=1), kc.BAD_FIELD, id="size of get"),
        pytest.param(Message(kc.DROP, b"a", item_flags=1), kc.BAD_FIELD, id="item flags of drop"),
        pytest.param(Message(kc.LIST, generation=1), kc.BAD_FIELD, id="generation of list"),
        pytest.param(Message(kc.STAT, b"a"), kc.BAD_FIELD, id="id of stat"),
        pytest.param(Message(kc.STOP, b"a"), kc.BAD_FIELD, id="id of stop"),
        pytest.param(Message(kc.GET), kc.BAD_ID, id="no id"),
        pytest.param(Message(kc.GET, b"A"), kc.BAD_ID, id="capital"),
        pytest.param(Message(kc.GET, b"a/b"), kc.BAD_ID, id="slash"),
        pytest.param(Message(kc.GET, b"\xff"), kc.BAD_ID, id="high byte"),
        pytest.param(Message(kc.GET, b"a\0b"), kc.BAD_ID, id="after the padding"),
        pytest.param(Message(kc.LIST, b"\0b"), kc.BAD_ID, id="list from padding"),
        pytest.param(Message(kc.PUT, b"a", 1), kc.BAD_DESCRIPTORS, id="put without"),
        pytest.param(Message(kc.GET, b"a"), kc.NOT_FOUND, id="get what is not"),
        pytest.param(Message(kc.DROP, b"a", 1), kc.NOT_FOUND, id="drop what is not"),
    ],
)
def test_a_refusal_has_its_code_and_the_conversation_goes_on(client: KeeperClient, message: Message, status: int) -> None:
    reply = client.ask(message)
    assert reply.status == status
    assert (reply.id, reply.generation, reply.size, reply.count, reply.payload) == (b"", 0, 0, 0, b"")
    assert client.stats().refusals == 1


@pytest.mark.parametrize("op", [kc.GET, kc.DROP, kc.LIST, kc.STAT, kc.STOP])
def test_only_put_takes_a_descriptor(keeper: RunningKeeper, client: KeeperClient, pipe: tuple[int, int], op: int) -> None:
    before = keeper.open_fds()
    named = b"a" if op in (kc.GET, kc.DROP) else b""
    assert client.ask(Message(op, named), (pipe[0],)).status == kc.BAD_DESCRIPTORS
    assert keeper.open_fds() == before


@pytest.mark.parametrize("count", [2, 3, 16, 253])
def test_a_flood_of_descriptors_is_refused_and_closed(
    keeper: RunningKeeper, client: KeeperClient, pipe: tuple[int, int], count: int
) -> None:
    """The kernel lets one message carry 253; more than one does not fit into the keeper's buffer, and the kernel reports
    that."""
    before = keeper.open_fds()
    for _ in range(20):
        assert client.ask(Message(kc.PUT, b"a", 1), (pipe[0],) * count).status == kc.BAD_DESCRIPTORS
    assert keeper.open_fds() == before
    assert client.list() == []


@pytest.mark.parametrize("length", [1, 2, 11, 12, 64, 127, 129, 4096, 100_000])
def test_a_datagram_of_another_length_is_refused(
    keeper: RunningKeeper, client: KeeperClient, pipe: tuple[int, int], length: int
) -> None:
    before = keeper.open_fds()
    data = (Message(kc.PUT, b"a", 1, sequence=77 << 24).pack() + bytes(length))[:length]
    client.send_raw(data, (pipe[0],))
    reply = client.receive()
    assert reply.status == kc.BAD_SIZE
    assert reply.sequence == (77 << 24 if length >= 12 else 0)
    assert keeper.open_fds() == before
    assert client.list() == []


def test_an_empty_datagram_ends_the_connection_and_its_descriptor_is_closed(
    keeper: RunningKeeper, pipe: tuple[int, int]
) -> None:
    with keeper.client() as client:
        before = keeper.open_fds()
        client.send_raw(b"", (pipe[0],))
        with pytest.raises(EOFError):
            client.receive()
        assert keeper.open_fds() == before - 1


@pytest.mark.parametrize("major", [0, 2, 0xFFFF])
def test_another_major_version_is_told_and_parted_from(keeper: RunningKeeper, major: int) -> None:
    with keeper.client(greet=False) as client:
        reply = client.ask(Message(kc.HELLO, major=major))
        assert (reply.status, reply.major, reply.minor) == (kc.BAD_VERSION, kc.MAJOR, kc.MINOR)
        with pytest.raises(EOFError):
            client.receive()


def test_another_minor_version_is_talked_to(keeper: RunningKeeper) -> None:
    with keeper.client(greet=False) as client:
        assert client.ask(Message(kc.HELLO, minor=9)).status == kc.OK
        assert client.list() == []


def test_hello_comes_first(keeper: RunningKeeper) -> None:
    with keeper.client(greet=False) as client:
        assert client.ask(Message(kc.STOP)).status == kc.NOT_GREETED
        with pytest.raises(EOFError):
            client.receive()
    with keeper.client() as client:
        assert client.ask(Message(kc.HELLO)).status == kc.NOT_GREETED
    with keeper.client() as client:
        assert client.greeting is not None
        assert client.greeting.count == 0


@pytest.mark.root
def test_another_uid_is_refused(keeper: RunningKeeper, short_dir: Path) -> None:
    short_dir.chmod(0o755)
    keeper.path.chmod(0o666)  # so that only the keeper's own check stands
    code = (
        "import socket,sys; s=socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(10);"
        "s.connect(sys.argv[1]); d=s.recv(200); print(int.from_bytes(d[12:16], sys.byteorder), len(d), s.recv(1))"
    )
    answer = subprocess.run(
        ["/usr/bin/python3", "-c", code, keeper.path], user=12345, group=12345, extra_groups=[], cwd="/",
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert answer.stdout == f"{kc.NOT_ALLOWED} {kc.MESSAGE.size} b''\n"
    with keeper.client() as client:
        assert client.stats().strangers == 1


# -- limits ----------------------------------------------------------------------------------------------------------


def test_the_maximum_is_kept(keeper_program: Path, short_dir: Path, pipe: tuple[int, int]) -> None:
    with RunningKeeper(keeper_program, short_dir / "keeper", "--max", "3") as keeper, keeper.client() as client:
        for name in (b"a", b"b", b"c"):
            assert client.put(name, pipe[0]) == kc.OK
        before = keeper.open_fds()
        assert client.put(b"d", pipe[0]) == kc.FULL
        assert keeper.open_fds() == before
        assert client.put(b"c", pipe[0], generation=2) == kc.OK, "a replacement needs no room"
        assert client.drop(b"a") == kc.OK
        assert client.put(b"d", pipe[0]) == kc.OK
        assert client.stats().held_max == 3


def test_the_limit_on_open_files_is_raised(keeper_program: Path, short_dir: Path, pipe: tuple[int, int]) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    try:
        running = RunningKeeper(keeper_program, short_dir / "keeper", "--max", "500")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    with running, running.client() as client:
        for number in range(500):
            assert client.put(b"n%d" % number, pipe[0]) == kc.OK
        assert client.put(b"more", pipe[0]) == kc.FULL
        os.close(client.get(b"n499").fds[0])


UNDER_A_HARD_LIMIT = """
import os, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import keeper_client as kc
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
with kc.RunningKeeper(Path(sys.argv[1], "mpsd-keeper"), Path(sys.argv[1], "socket")) as keeper:
    client = keeper.client()
    most = client.stats().held_max
    assert 50 < most < 100, most
    fd = os.open("/dev/null", os.O_RDONLY)
    assert all(client.put(b"n%d" % number, fd) == kc.OK for number in range(most))
    assert client.put(b"more", fd) == kc.FULL
    others = [keeper.client() for _ in range(kc.PEERS - 1)]
    assert all(len(each.get(b"n0").fds) == 1 for each in others)
    assert client.stats().peers == kc.PEERS
"""


@pytest.mark.root
def test_a_hard_limit_that_cannot_be_raised_lowers_the_maximum(keeper_program: Path, short_dir: Path) -> None:
    """It reports how many it can hold, holds exactly so many in addition to its peers, and refuses the next."""
    for source in (keeper_program, Path(kc.__file__)):
        shutil.copy(source, short_dir)
    os.chown(short_dir, 12345, 12345)
    subprocess.run(
        ["/usr/bin/python3", "-B", "-c", UNDER_A_HARD_LIMIT, short_dir],
        user=12345, group=12345, extra_groups=[], cwd="/", check=True,
    )  # fmt: skip


def test_so_many_connections_and_no_more(keeper: RunningKeeper) -> None:
    with ExitStack() as opened:
        clients = [opened.enter_context(keeper.client()) for _ in range(kc.PEERS)]
        with keeper.client(greet=False) as late:
            reply = late.receive()
            assert reply.status == kc.PEERS_FULL
            with pytest.raises(EOFError):
                late.receive()
        clients.pop().close()
        assert peers_with_one_more(keeper) == kc.PEERS


def peers_with_one_more(keeper: RunningKeeper) -> int:
    """The place of one that is gone is free as soon as the keeper has seen that; who comes at once may be earlier."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        with keeper.client(greet=False) as client:
            with suppress(BrokenPipeError):  # refused before it has sent anything
                client.send(Message(kc.HELLO))
            if client.receive().status != kc.PEERS_FULL:
                return client.stats().peers
        assert time.monotonic() < deadline, "nobody else is let in"


def test_who_says_nothing_is_disconnected(keeper: RunningKeeper) -> None:
    silent = [keeper.client(greet=False) for _ in range(kc.PEERS)]
    for each in silent:
        with pytest.raises(EOFError):
            each.receive()
        each.close()
    with keeper.client() as client:
        assert client.stats().impatience == kc.PEERS


def test_a_greeted_peer_may_be_silent_for_ever(keeper: RunningKeeper) -> None:
    with keeper.client() as client, keeper.client(greet=False) as silent:
        with pytest.raises(EOFError):  # its patience is over, and would be for the other
            silent.receive()
        assert client.list() == []


def send_for_ever(client: KeeperClient, message: Message) -> None:
    while True:
        client.send(message)


def test_who_does_not_read_is_disconnected_and_the_others_are_served(
    keeper: RunningKeeper, pipe: tuple[int, int], eventually: Eventually
) -> None:
    with keeper.client() as client, keeper.client() as deaf:
        client.put(b"a", pipe[0])
        before = keeper.open_fds()
        deaf.socket.setblocking(False)

        def is_impatient() -> bool:
            """While it receives, the queues get room again: only a peer that continues fills both."""
            with pytest.raises((BlockingIOError, ConnectionError)):
                send_for_ever(deaf, Message(kc.GET, b"a"))
            assert client.stats().held == 1  # served in the meantime
            return client.stats().impatience == 1

        eventually(is_impatient)
        assert keeper.open_fds() == before - 1


def test_who_reads_late_loses_nothing(client: KeeperClient, pipe: tuple[int, int]) -> None:
    """More replies than the socket holds: the keeper waits for the reader, and the reader gets each one."""
    client.put(b"a", pipe[0])
    client.socket.settimeout(0.1)
    sent = 0
    try:
        for _ in range(100_000):
            client.send(Message(kc.GET, b"a"))
            sent += 1
    except TimeoutError:
        pass
    client.socket.settimeout(10)
    got = []
    for _ in range(sent):
        reply = client.receive()
        got.append(reply.sequence)
        for fd in reply.fds:
            os.close(fd)
    assert sent > 200
    assert got == list(range(got[0], got[0] + sent))


def test_thousands_of_puts_and_drops_leak_nothing(
    keeper: RunningKeeper, client: KeeperClient, pipe: tuple[int, int], eventually: Eventually
) -> None:
    before = keeper.open_fds()
    for round_number in range(1, 11):
        for number in range(400):
            client.put_quietly(b"n%d" % number, pipe[0], generation=round_number)
        for number in range(400):
            client.send(Message(kc.DROP, b"n%d" % number, round_number, flags=kc.QUIET))
    stats = client.stats()
    assert (stats.held, stats.puts, stats.drops, stats.refusals) == (0, 4000, 4000, 0)
    for number in range(1000):
        with keeper.client(greet=number % 2 == 0):
            pass
    eventually(lambda: keeper.open_fds() == before)


# -- anything at all -------------------------------------------------------------------------------------------------


def random_message(rng: random.Random) -> bytes:
    """Mostly a valid message with one or two fields spoilt; sometimes bytes."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.choice([1, 64, 127, 128, 128, 129, 500, 7000]))
    name = rng.choice([b"a", b"b", b"c", b"wait:%d" % rng.randrange(40), b"", b"Z", rng.randbytes(64)])
    message = Message(
        rng.choice([1, 2, 2, 2, 3, 4, 5, 6, rng.randrange(65536)]),
        name,
        rng.choice([0, 0, 1, 1, rng.randrange(100), 2**64 - 1]),
        rng.choice([0, 0, 0, 2**63]),
        flags=rng.choice([0, 0, kc.QUIET, rng.randrange(65536)]),
        major=rng.choice([1] * 30 + [0, 2]),
        reserved=rng.choice([(0, 0)] * 10 + [(1, 0)]),
    )
    data = bytearray(message.pack())
    if rng.random() < 0.1:
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def stop_in(data: bytes) -> bool:
    return len(data) == kc.MESSAGE.size and int.from_bytes(data[4:6], sys.byteorder) == kc.STOP


@pytest.mark.parametrize("seed", seeds(2, 2))
def test_random_datagrams_and_descriptors(
    keeper: RunningKeeper, pipe: tuple[int, int], seed: int, eventually: Eventually
) -> None:
    """For any input, the keeper lives afterwards, holds what it reports, and has leaked nothing."""
    rng = random.Random(seed)
    clients: list[KeeperClient] = []
    for _ in range(3000):
        if len(clients) < 6 and rng.random() < 0.2:
            clients.append(keeper.client(greet=rng.random() < 0.9))
        if not clients:
            continue
        client = rng.choice(clients)
        data = random_message(rng)
        if stop_in(data):
            continue
        try:
            client.socket.setblocking(False)
            client.send_raw(data, (pipe[0],) * rng.choice([0, 0, 1, 1, 1, 2, 5, 253]))
            for _ in range(rng.randrange(3)):
                for fd in client.receive().fds:
                    os.close(fd)
        except BlockingIOError:
            pass
        except (EOFError, ConnectionError):
            client.close()
            clients.remove(client)
        if rng.random() < 0.02 and client in clients:
            client.close()
            clients.remove(client)
    for client in clients:
        client.close()
    with keeper.client() as last:
        eventually(lambda: last.stats().peers == 1)
        assert len(last.list()) == last.stats().held
        eventually(lambda: keeper.open_fds() == 3 + 1 + 1 + last.stats().held)
