"""The simulator's stand-in: its page as the driver would answer, and two real descriptors of another process."""

import os
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.host import processes
from mpsd.uvm import abi, simulator
from mpsd.uvm.sim_page import MOST_RANGES, PAGE_BYTES, SpacePage
from mpsd.uvm.simulator import SimulatedDevices
from mpsd.uvm.space import Outcome, Space, Unavailable
from tests.descriptors import descriptors
from tests.inspecting import INSPECTOR, is_same
from tests.unit.uvm.fake_clients import GPU, FakeClient, a_client

INVALID_ADDRESS, NO_MEMORY = 0x1E, 0x51
K64 = 0x10000


def a_page(**words: int) -> tuple[bytearray, SpacePage]:
    memory = bytearray(PAGE_BYTES)
    struct.pack_into("<II", memory, 0, 0x534D5655, 1)
    struct.pack_into("<I", memory, 12, words.get("registered", 1))
    struct.pack_into("<I", memory, 24, words.get("count", 0))
    return memory, SpacePage(memoryview(memory))


def test_what_is_reserved_and_laid_is_written_where_the_driver_reads_it() -> None:
    memory, page = a_page(registered=0)
    assert page.reserve(K64, K64) == abi.DONE
    assert page.lay_sparse(K64, K64) == abi.INVALID_DEVICE
    struct.pack_into("<I", memory, 12, 1)
    assert page.lay_sparse(K64, K64) == abi.DONE
    assert struct.unpack_from("<I", memory, 24) == (1,)
    assert struct.unpack_from("<QQQ", memory, 32) == (K64, K64, 1)
    assert page.free(K64, K64) == abi.DONE
    assert struct.unpack_from("<QQQ", memory, 32) == (0, 0, 0)
    assert page.reserve(2 * K64, K64) == abi.DONE
    assert struct.unpack_from("<I", memory, 24) == (1,)  # the free place is used again


@pytest.mark.parametrize(
    ("base", "length", "status"),
    [
        pytest.param(K64, K64, abi.ADDRESS_IN_USE, id="the same"),
        pytest.param(0x8000, 0x9000, abi.ADDRESS_IN_USE, id="one that reaches in"),
        pytest.param(0, K64, INVALID_ADDRESS, id="address 0"),
        pytest.param(K64 * 4, 0, INVALID_ADDRESS, id="nothing"),
        pytest.param(K64 * 4 + 1, K64, INVALID_ADDRESS, id="not aligned"),
        pytest.param(0x1000, 0x1000, abi.DONE, id="pages of 4 KiB may be reserved"),
        pytest.param(K64 * 2, K64, abi.DONE, id="next to it"),
    ],
)
def test_reservations(base: int, length: int, status: int) -> None:
    _, page = a_page()
    assert page.reserve(K64, K64) == abi.DONE
    assert page.reserve(base, length) == status


def test_sparse_only_over_what_was_reserved_in_pages_of_64_kib() -> None:
    _, page = a_page()
    page.reserve(0x1000, 0x1000)
    assert page.lay_sparse(0x1000, 0x1000) == INVALID_ADDRESS
    assert page.lay_sparse(K64, K64) == INVALID_ADDRESS
    assert page.free(K64, K64) == INVALID_ADDRESS


def test_the_page_is_full_at_some_time() -> None:
    _, page = a_page()
    assert {page.reserve((each + 1) * K64, K64) for each in range(MOST_RANGES)} == {abi.DONE}
    assert page.reserve(1000 * K64, K64) == NO_MEMORY


WORDS = st.sampled_from([0, 1, K64, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(st.integers(0, 511), WORDS)), WORDS, WORDS)
def test_whatever_the_client_wrote_is_bounded(written: list[tuple[int, int]], base: int, length: int) -> None:
    memory = bytearray(PAGE_BYTES)
    struct.pack_into("<Q", memory, 24, 2**64 - 1)  # more ranges than exist
    for place, value in written:
        struct.pack_into("<Q", memory, place * 8, value)
    page = SpacePage(memoryview(memory))
    assert len(page.ranges) <= MOST_RANGES
    for status in (page.lay_sparse(base, length), page.free(base, length)):
        assert status in abi.STATUS_NAMES


@pytest.mark.parametrize("size", [0, PAGE_BYTES - 8, PAGE_BYTES + 8])
def test_a_page_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="a page of"):
        SpacePage(memoryview(bytearray(size)))


@pytest.fixture
def client(tmp_path: Path) -> Iterator[FakeClient]:
    with a_client(tmp_path) as client:
        yield client


def open_spaces(client: FakeClient, have: Sequence[Space] = ()) -> list[Space]:
    pidfd = processes.open_pidfd(client.process)
    assert pidfd is not None
    try:
        return SimulatedDevices(client.space.parent.parent, INSPECTOR).open_spaces(client.process, pidfd, have)
    finally:
        os.close(pidfd)


def test_a_client_before_cuinit_has_none(client: FakeClient) -> None:
    assert open_spaces(client) == []


def test_faults_come_in_order_and_only_from_then_on(client: FakeClient) -> None:
    client.begin()
    client.ask("fault 6 0x1000 2 1 3")  # no process listens yet
    (space,) = open_spaces(client)
    assert (client.ask("attached"), open_spaces(client, [space])) == ("0", [])
    queue = space.attach()
    assert queue is not None
    assert (client.ask("attached"), queue.take().events) == ("1", ())
    client.ask("fault 3 0x2000 3 0 1")
    client.ask("fault 6 0x2000 3 1 1")
    assert [(event.kind, event.address, event.access) for event in queue.take().events] == [
        (abi.EventKind.GPU_FAULT, 0x2000, "atomic"),
        (abi.EventKind.FATAL, 0x2000, "atomic"),
    ]
    queue.close()
    queue.close()
    assert client.ask("attached") == "0"
    space.close()


def test_what_did_not_fit_is_counted(client: FakeClient) -> None:
    client.begin()
    (space,) = open_spaces(client)
    queue = space.attach()
    assert queue is not None
    client.ask("fault 6 0x2000 1 1 1100")
    taken = queue.take()
    assert (len(taken.events), taken.lost, queue.take().lost) == (1024, 76, 0)
    queue.close()
    space.close()


def test_the_client_sees_what_is_laid(client: FakeClient) -> None:
    client.ask("open")
    (space,) = open_spaces(client)
    assert space.reserve(K64, K64).outcome is Outcome.DONE
    assert space.reserve(K64, K64).outcome is Outcome.IN_USE
    assert space.lay_sparse(K64, K64, GPU).outcome is Outcome.NOT_YET
    client.ask("register")
    assert space.lay_sparse(K64, K64, GPU).outcome is Outcome.DONE
    assert client.ask("ranges") == "10000+10000s"
    assert space.free(K64, K64).outcome is Outcome.DONE
    space.close()


def test_a_page_of_another_version_is_refused_and_nothing_is_kept(client: FakeClient) -> None:
    client.ask("open")
    client.ask("word 4 2")
    before = descriptors()
    with pytest.raises(Unavailable, match="another layout"):
        open_spaces(client)
    assert descriptors() == before


@pytest.mark.parametrize("words", ["word 0 0", "cut"])
def test_a_page_that_is_not_made_yet_is_looked_for_again(client: FakeClient, words: str) -> None:
    client.ask("open")
    client.ask(words)
    before = descriptors()
    assert open_spaces(client) == []
    assert descriptors() == before


def test_a_space_that_the_client_closed_or_replaced_is_known(client: FakeClient) -> None:
    client.ask("open")
    (space,) = open_spaces(client)
    assert is_same(space.pair)
    client.ask("close")
    assert not is_same(space.pair)
    client.ask("open")
    assert not is_same(space.pair)  # the same number, another file
    space.close()


def test_letting_go_of_the_dead_waits_for_their_server(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it took the files away; of the living it waits for nothing."""
    client.begin()
    monkeypatch.setattr(simulator, "_SERVER_SECONDS", 30.0)
    for space in open_spaces(client):
        space.close()
    (space,) = open_spaces(client)
    client.kill()
    client.wait_for_end()
    server = threading.Timer(0.05, client.space.unlink)
    server.start()
    space.close()
    assert not client.space.exists()
    server.join()


@pytest.mark.slow
def test_a_thousand_times_and_nothing_is_left(client: FakeClient) -> None:
    client.begin()
    open_spaces(client)[0].close()  # starts the process that opens descriptors for mpsd, which stays
    before = descriptors()
    for _ in range(1000):
        (space,) = open_spaces(client)
        queue = space.attach()
        assert queue is not None
        assert space.reserve(K64, K64).outcome is Outcome.DONE
        assert space.free(K64, K64).outcome is Outcome.DONE
        queue.close()
        space.close()
    assert descriptors() == before


def test_whoever_holds_it_keeps_it_alive(client: FakeClient) -> None:
    client.begin()
    (space,) = open_spaces(client)
    client.collect()
    assert client.is_held
    space.close()
    assert not client.is_held
