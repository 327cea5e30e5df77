"""Answers that mpsd would never give: the C client reports the error, and leaves nothing half done behind.

The real mpsd answers, and a relay changes its answers. In the slow tests the client is built with AddressSanitizer and UBSan:
it must also end without a leak.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from mpsd_client import calls

from tests.integration.machine import Machine
from tests.native.c_client_drive import GRANULE, MIB, Drive, Frame, Relay, build, open_relay

CAPACITY = 64 * MIB
OPEN = "open kept write 0"


@pytest.fixture(scope="module")
def machine(vault_machine: Machine) -> Machine:
    return vault_machine


@pytest.fixture(
    scope="module", params=["", pytest.param("address,undefined", marks=pytest.mark.slow)], ids=["plain", "sanitized"]
)
def program(request: pytest.FixtureRequest) -> Path:
    return build("drive", request.param)


@pytest.fixture(scope="module")
def relay(machine: Machine) -> Iterator[Relay]:
    with open_relay(machine.place / "forged.sock", machine.pipe / "mpsd.sock") as made:
        yield made


@pytest.fixture(scope="module")
def kept(machine: Machine, relay: Relay, program: Path) -> Iterator[Drive]:
    """One process for all of these: what a failure left behind would spoil the next one.  The arena has three allocations."""
    drive = Drive(program, machine.variables)
    drive.do(f"session {relay.path}")
    drive.do(f"create kept {CAPACITY}")
    drive.do(OPEN)
    for seed in (1, 2, 3):
        drive.alloc(2, seed)
    drive.do("commit words")
    drive.do("close")
    try:
        yield drive
        drive.do("remove kept")
        drive.end()
    finally:
        drive.clear()


def only(method: str, change: Callable[[Frame], None]) -> Callable[[Frame], None]:
    def applied(frame: Frame) -> None:
        if frame.method == method:
            change(frame)

    return applied


def with_raw(raw: bytes) -> Callable[[Frame], None]:
    def change(frame: Frame) -> None:
        frame.raw = raw

    return change


def with_result(**fields: Any) -> Callable[[Frame], None]:
    def change(frame: Frame) -> None:
        frame.value[3] = {**frame.value[3], **fields}

    return change


def without(field: str) -> Callable[[Frame], None]:
    def change(frame: Frame) -> None:
        del frame.value[3][field]

    return change


def with_frame(index: int, value: Any) -> Callable[[Frame], None]:
    def change(frame: Frame) -> None:
        frame.value[index] = value

    return change


def with_error(error: Any) -> Callable[[Frame], None]:
    def change(frame: Frame) -> None:
        frame.value[2:] = [error, None]

    return change


def cut(frame: Frame) -> None:
    frame.raw = msgpack.packb(frame.value)[:-1]


def longer(frame: Frame) -> None:
    frame.raw = msgpack.packb(frame.value) + b"\0"


def fewer_descriptors(frame: Frame) -> None:
    os.close(frame.fds.pop())


def more_descriptors(frame: Frame) -> None:
    frame.fds.append(os.dup(frame.fds[0]))


def other_memory(frame: Frame) -> None:
    """A descriptor, but of no memory of the GPU's."""
    os.close(frame.fds[1])
    frame.fds[1] = os.memfd_create("no GPU memory")


def without_descriptors(frame: Frame) -> None:
    while frame.fds:
        fewer_descriptors(frame)


def two_pages(frame: Frame) -> None:
    """The second is of the commit that there really is, and so of another."""
    fewer_descriptors(frame)
    result = frame.value[3]
    frame.value[3] = {**result, "items": result["items"][:2], "next": G, "commit": result["commit"] + 1}


def empty_pages(frame: Frame) -> None:
    """After the first one, all with the same next: a client that follows them never ends."""
    result = frame.value[3]
    if frame.method == "arena.open":
        fewer_descriptors(frame)
        frame.value[3] = {**result, "items": result["items"][:2], "next": G}
    elif frame.method == "arena.take":
        without_descriptors(frame)
        frame.value[3] = {**result, "items": [], "next": G}


def at_offsets(*pairs: tuple[int, int]) -> Callable[[Frame], None]:
    return with_result(items=[[*pair, 1] for pair in pairs])


G = GRANULE
WRONG_ANSWERS = [
    # any answer
    pytest.param("arena.open", with_raw(b""), "", id="the end instead of an answer"),
    pytest.param("arena.open", with_raw(b"\xc1"), "EPROTO", id="no MessagePack"),
    pytest.param("arena.open", with_raw(b"\xdd\xff\xff\xff\xff"), "EPROTO", id="an array of four billion"),
    pytest.param("arena.open", with_raw(b"\x91" * 60000), "EPROTO", id="deep nesting"),
    pytest.param("arena.open", with_raw(bytes(70000)), "EMSGSIZE", id="a datagram that is too long"),
    pytest.param("arena.open", cut, "EPROTO", id="cut off"),
    pytest.param("arena.open", longer, "EPROTO", id="more behind it"),
    pytest.param("arena.open", with_frame(0, 0), "EPROTO", id="a request"),
    pytest.param("arena.open", with_frame(0, 7), "EPROTO", id="another kind"),
    pytest.param("arena.open", with_frame(1, 4_000_000_000), "EPROTO", id="an answer to another request"),
    pytest.param("arena.open", with_frame(1, -1), "EPROTO", id="a negative id"),
    pytest.param("arena.open", with_frame(3, None), "EPROTO", id="no result"),
    pytest.param("arena.open", with_frame(3, [1, 2]), "EPROTO", id="a result that is no map"),
    pytest.param("arena.open", with_error("no"), "EPROTO", id="an error that is no map"),
    pytest.param("arena.open", with_error({}), "EPROTO", id="an error without a code"),
    pytest.param("arena.open", with_error({"code": 0}), "EPROTO", id="an error that is none"),
    pytest.param("arena.open", with_error({"code": 2**40}), "EPROTO", id="an error whose code is no code"),
    pytest.param("arena.open", with_error({"code": 20, "message": "x" * 60000}), "ENOENT", id="very many words"),
    pytest.param("arena.open", with_error({"code": 999, "name": 7}), "EREMOTEIO", id="a code of a later version"),
    # arenas
    *(
        pytest.param("arena.open", without(field), "EPROTO", id=f"an arena without {field}")
        for field in ("id", "base", "window_bytes", "capacity_bytes", "generation", "state_serial", "is_sealed")
    ),
    pytest.param("arena.open", with_result(base="here"), "EPROTO", id="a base that is no number"),
    pytest.param("arena.open", with_result(base=-1), "EPROTO", id="a negative base"),
    pytest.param("arena.open", with_result(base=0), "EPROTO", id="base 0"),
    pytest.param("arena.open", with_result(base=4096), "EPROTO", id="a base that is not granular"),
    pytest.param("arena.open", with_result(base=2**64 - G), "EPROTO", id="a window that wraps"),
    pytest.param("arena.open", with_result(base=0x7FFF_FFE0_0000_0000), "EADDRINUSE", id="a window where no address is"),
    pytest.param("arena.open", with_result(gpu="GPU-00000000-0000-0000-0000-000000000000"), "EXDEV", id="another GPU"),
    pytest.param("arena.open", with_result(gpu=""), "EXDEV", id="no GPU"),
    pytest.param("arena.open", with_error({"code": 2, "name": "NOT_ALLOWED", "message": ""}), "EACCES", id="not allowed"),
    # what is taken
    pytest.param("arena.open", fewer_descriptors, "EPROTO", id="a descriptor missing"),
    pytest.param("arena.open", more_descriptors, "EPROTO", id="a descriptor too many"),
    pytest.param("arena.open", other_memory, "EBADMSG", id="a descriptor of no GPU memory"),
    pytest.param("arena.open", without("items"), "EPROTO", id="no items"),
    pytest.param("arena.open", with_result(items=[[0], [G, G, 1], [2 * G, G, 1]]), "EPROTO", id="an item of one number"),
    pytest.param("arena.open", at_offsets((0, G), (0, G), (2 * G, G)), "EPROTO", id="the same place twice"),
    pytest.param("arena.open", at_offsets((G, G), (0, G), (2 * G, G)), "EPROTO", id="not in order"),
    pytest.param("arena.open", at_offsets((0, G), (G, G), (3 * G, 2 * G)), "EBADMSG", id="more than the memory has"),
    pytest.param("arena.open", at_offsets((0, G), (G, G), (1 << 50, G)), "EPROTO", id="outside of the window"),
    pytest.param("arena.open", at_offsets((0, G), (G, G), (2 * G, 2**64 - G)), "EPROTO", id="a size that wraps"),
    pytest.param("arena.open", at_offsets((0, G), (G, G), (2 * G, 0)), "EPROTO", id="nothing at all"),
    pytest.param("arena.open", at_offsets((0, G), (G, G), (2 * G + 4096, G)), "EPROTO", id="not granular"),
    pytest.param("arena.open", with_result(next=0), "EPROTO", id="a next that was before"),
    pytest.param("arena.open", with_result(next="more"), "EPROTO", id="a next that is no number"),
    pytest.param("arena.open", without("commit"), "EPROTO", id="no commit"),
    pytest.param("arena.open", with_result(items=[[0, G, 0], [G, G, 1], [2 * G, G, 1]]), "EPROTO", id="one that is not new"),
    pytest.param("arena.open", two_pages, "EAGAIN", id="a page of another commit at every attempt"),
    # the layout
    pytest.param("arena.open", with_result(layout_bytes=6), "EPROTO", id="a layout of another size"),
    pytest.param("arena.open", with_result(layout_bytes=2**40), "EPROTO", id="a layout that is too large"),
    pytest.param("arena.open", with_result(layout_bytes=0), "EPROTO", id="a layout of no size"),
    pytest.param("arena.open", with_result(has_layout=False), "EPROTO", id="a layout that is said not to be there"),
    pytest.param("arena.open", without("has_layout"), "EPROTO", id="a layout, perhaps"),
    pytest.param("arena.open", without_descriptors, "EPROTO", id="a layout without a descriptor"),
]


@pytest.mark.parametrize(("method", "change", "error"), WRONG_ANSWERS)
def test_a_wrong_answer_fails_the_opening_and_leaves_nothing(
    kept: Drive, relay: Relay, method: str, change: Callable[[Frame], None], error: str
) -> None:
    """No window, no mapping, no descriptor, no access: the next attempt succeeds."""
    kept.do("call health")
    before = kept.do("descriptors")
    relay.change = only(method, change)
    answer = kept.ask(OPEN)
    relay.change = None
    assert (answer.error, bool(answer.words)) == (error or "ECONNREFUSED", True), answer
    kept.do("call health")
    assert kept.do("descriptors") == before
    kept.do(OPEN)
    kept.do(f"check {kept.do('list').partition(':')[0]} {2 * MIB} 1")
    kept.do("close")


@pytest.mark.parametrize("raw", [b"\xc1", bytes(70000)], ids=["garbage", "too long"])
def test_access_that_was_given_in_an_answer_that_cannot_be_read_is_given_back(
    kept: Drive, relay: Relay, machine: Machine, raw: bytes
) -> None:
    relay.change = only("arena.open", with_raw(raw))
    assert kept.ask(OPEN).result < 0
    relay.change = None
    with machine.mpsd() as mpsd:
        assert mpsd.ask(calls.arena_get("kept")).writer_pid is None


def test_pages_without_end_are_refused(kept: Drive, relay: Relay) -> None:
    before = kept.do("descriptors")
    relay.change = empty_pages
    answer = kept.ask(OPEN)
    relay.change = None
    assert (answer.error, "last offset" in answer.words) == ("EPROTO", True), answer
    kept.do("call health")
    assert kept.do("descriptors") == before


def another_memory(frame: Frame) -> None:
    """In the place of the first one, and the driver refuses it as memory."""
    with_result(items=[[0, G, 100], [G, G, 1], [2 * G, G, 1]])(frame)
    frame.fds.append(os.memfd_create("no GPU memory"))


WRONG_REFRESHES = {
    "a descriptor missing": (fewer_descriptors, "EPROTO"),
    "a descriptor too many": (more_descriptors, "EPROTO"),
    "a descriptor of no GPU memory": (another_memory, "EBADMSG"),
    "an item of one number": (with_result(items=[[0]]), "EPROTO"),
    "one that is not new and not here": (at_offsets((0, G), (5 * G, G)), "EPROTO"),
    "no commit": (without("commit"), "EPROTO"),
    "another arena of this name": (with_result(id=99), "ENOENT"),
    "a refusal": (with_error({"code": 2, "name": "NOT_ALLOWED", "message": ""}), "EACCES"),
}


@pytest.mark.parametrize("wrong", WRONG_REFRESHES)
def test_a_wrong_answer_leaves_a_reader_as_it_was(kept: Drive, relay: Relay, wrong: str) -> None:
    """What it has mapped it still has; and it follows as soon as the answers are right."""
    change, error = WRONG_REFRESHES[wrong]
    kept.do("open kept read 0")
    before = kept.do("list"), kept.do("layout"), kept.do("descriptors")
    relay.change = only("arena.open", change)
    answer = kept.ask("refresh")
    relay.change = None
    assert (answer.error, bool(answer.words)) == (error, True), answer
    assert (kept.do("list"), kept.do("layout"), kept.do("descriptors")) == before
    kept.do(f"check {before[0].partition(':')[0]} {2 * MIB} 1")
    assert kept.do("refresh") == "0"
    kept.do("close")


STALE = {"code": 22, "name": "STALE_GENERATION", "message": "forged"}


def test_a_writer_that_was_replaced_is_told_so(kept: Drive, relay: Relay) -> None:
    """mpsd reports that its generation is over, and that the arena has another writer's commit: the library puts none of ours
    into it."""
    kept.do(OPEN)

    def change(frame: Frame) -> None:
        if frame.method == "arena.put":
            with_error(STALE)(frame)
        elif frame.method == "arena.open":
            with_result(generation=1000)(frame)

    kept.do(f"alloc {2 * MIB}")
    relay.change = change
    answer = kept.ask("flush")
    relay.change = None
    assert (answer.error, "another has written since" in answer.words) == ("ESTALE", True)
    kept.do("close")


def test_an_mpsd_that_contradicts_itself_is_not_asked_for_ever(kept: Drive, relay: Relay) -> None:
    kept.do(OPEN)
    relay.change = only("arena.commit", with_error(STALE))
    answer = kept.ask("commit")
    relay.change = None
    assert (answer.error, "mpsd says so, and says that it is not" in answer.words) == ("ESTALE", True)
    kept.do("commit")
    kept.do("close")


def test_a_repair_that_mpsd_cannot_make_now_is_no_end_of_the_writers_term(kept: Drive, relay: Relay) -> None:
    """mpsd's keeper dies while its disk is full: a service ended its active, although no other process could write."""
    kept.do(OPEN)

    def change(frame: Frame) -> None:
        if frame.method == "arena.commit":
            with_error(STALE)(frame)
        elif frame.method == "arena.open":
            with_error({"code": 10, "name": "UNUSABLE_PATH", "message": "forged"})(frame)

    relay.change = change
    answer = kept.ask("commit")
    relay.change = None
    assert (answer.error, "UNUSABLE_PATH" in answer.words) == ("EREMOTEIO", True)
    kept.do("commit")
    kept.do("close")


def test_a_quota_that_is_spent_is_said_and_what_waits_still_waits(kept: Drive, relay: Relay) -> None:
    kept.do(OPEN)
    address = kept.do(f"alloc {2 * MIB}")
    relay.change = only("arena.put", with_error({"code": 16, "name": "NO_ROOM", "message": "the quota is spent"}))
    answer = kept.ask("commit")
    relay.change = None
    assert (answer.error, answer.words) == ("ENOSPC", "arena.put: NO_ROOM: the quota is spent")
    kept.do(f"free {address}")
    kept.do("commit")
    kept.do("close")


def test_allocating_ends_soon_when_mpsd_takes_no_more(relay: Relay, machine: Machine, program: Path) -> None:
    """What was refused is known when the next ones are to be sent; from then on each allocation is refused."""
    drive = Drive(program, machine.variables)
    try:
        drive.do(f"session {relay.path}")
        drive.do(f"create full {1024 * MIB}")
        drive.do("open full write 0")
        relay.change = only("arena.put", with_error({"code": 16, "name": "NO_ROOM", "message": "the quota is spent"}))
        made = 0
        while (answer := drive.ask(f"alloc {2 * MIB}")).result == 0:
            made += 1
        assert (answer.error, 64 <= made <= 192) == ("ENOSPC", True), (answer, made)
        assert drive.ask(f"alloc {2 * MIB}").error == "ENOSPC"
        relay.change = None
        drive.do(f"alloc {2 * MIB}")
        drive.do("commit")
        assert len(drive.do("list").split()) == made + 1
        drive.do("close")
        drive.do("remove full")
        drive.end()
    finally:
        relay.change = None
        drive.clear()


def test_an_answer_that_never_comes_is_not_waited_for_longer_than_was_said(kept: Drive, relay: Relay) -> None:
    kept.do("patience 5 0.05")
    relay.change = only("health", with_raw(msgpack.packb([2, "some.event", [{}]])))
    answer = kept.ask("call health")
    relay.change = None
    kept.do("patience 5 30")
    assert (answer.error, answer.words) == ("ETIMEDOUT", "health: mpsd did not answer in time")
    kept.do("call health")


def test_a_goodbye_is_read_and_its_reason_said(kept: Drive, relay: Relay) -> None:
    kept.do("patience 0.05 30")
    goodbye = msgpack.packb([2, "goodbye", [{"code": 7, "name": "TOO_MANY", "message": "there are\n enough"}]])
    relay.change = only("hello", with_raw(goodbye))
    relay.lose["health"] = 1
    kept.say("call health")
    answer = kept.hear()
    relay.change = None
    kept.do("patience 10 30")
    assert (answer.error, "there are  enough" in answer.words) == ("EUSERS", True), answer
    kept.do("call health")
