"""The writes of a client that was killed in mid-kernel, and their end: mpsd must wait for it before it admits the next writer.

On the device they continue until the kernel ends, or until the holder of its address space closes it; the pidfd becomes
readable long before that.
"""

import contextlib
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import Client, Machine, eventually
from tests.native.sim_space import Space
from tests.native.test_sim_driver import receive
from tests.native.test_sim_memory import MEMORY

PATTERN = 0x9E3779B97F4A7C15
SEED = 12345
WORDS, WORDS_AT = 512, 4096


class Writer:
    """A client that writes to exported memory, and the keeper's descriptor of that memory."""

    def __init__(self, machine: Machine, *arguments: str) -> None:
        self.machine = machine
        self.got: list[int] = []
        taker = receive(machine.place / "keeper", self.got)
        verb, *rest = arguments
        process = subprocess.Popen(
            [sys.executable, "-I", MEMORY, verb, str(machine.place / "keeper"), *rest],
            env=machine.library_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        machine.started.append(process)
        self.client = Client(process)
        self.client.wait_for("counting")
        taker.join()
        self.space = Space(self.client)

    def kill(self) -> None:
        """Returns when its pidfd is readable."""
        pidfd = os.pidfd_open(self.client.pid)
        os.kill(self.client.pid, signal.SIGKILL)
        assert select.select([pidfd], [], [], 10)[0]
        os.close(pidfd)
        self.client.process.wait()

    @property
    def memory(self) -> Path:
        """Its bytes, as every process on the machine can have them."""
        name = os.pread(self.got[0], 32, 0).decode().strip()
        return self.machine.place / "machine/memory" / name

    def word(self, offset: int = 0) -> int:
        with self.memory.open("rb") as file:
            (value,) = struct.unpack("<Q", os.pread(file.fileno(), 8, offset))
        return int(value)

    def is_watched(self) -> bool:
        """The server has not done with it: its files are there."""
        return (self.machine.place / f"machine/uvm/{self.client.pid}.space").exists()

    def goes_on(self) -> bool:
        before = self.word()
        eventually(lambda: self.word() > before)
        return True

    def close(self) -> None:
        self.space.close()
        with contextlib.suppress(IndexError):
            os.close(self.got.pop())


@contextlib.contextmanager
def writer(machine: Machine, *arguments: str) -> Iterator[Writer]:
    made = Writer(machine, *arguments)
    try:
        yield made
    finally:
        made.close()


def stands_still(left: Writer) -> bool:
    """Once the server has finished with it, even if the server does other work then."""
    eventually(lambda: not left.is_watched())
    before = left.word()
    for _ in range(5):
        left.machine.ask("get_server_list")
    return left.word() == before


def test_a_killed_writer_that_is_held_writes_on_until_the_holder_lets_go(mps: Machine) -> None:
    """A readable pidfd alone does not fence it."""
    with writer(mps, "count_for", "60000") as left:
        assert left.goes_on()
        left.kill()
        assert left.goes_on()
        assert left.goes_on()
        left.space.close()
        assert stands_still(left)


def test_its_files_are_there_until_the_server_has_done_with_it(mps: Machine) -> None:
    """Also those of a client that left nothing: a process that releases the dead can wait for that."""
    with writer(mps, "count_for", "1") as left:
        eventually(lambda: left.word() > 0)
        left.kill()
        assert stands_still(left)


def test_it_writes_on_no_longer_than_its_kernel_takes(mps: Machine) -> None:
    """Each tick is done once, by whom ever."""
    with writer(mps, "count_for", "1000") as left:
        assert left.goes_on()
        left.kill()
        eventually(lambda: not left.is_watched())
        assert stands_still(left)
        assert 800 < left.word() <= 2002


def test_nobody_writes_on_for_a_writer_that_is_not_held(mps: Machine) -> None:
    victim = mps.client("counter", "--seconds", "8")
    victim.wait_for("ready")
    with writer(mps, "count_for", "60000") as left:
        assert left.goes_on()
        left.space.close()
        left.kill()
        assert stands_still(left)
    assert victim.end()["code"] == 700


def test_what_was_queued_is_done_too(mps: Machine) -> None:
    """A fill that waited behind another kernel overwrites what the next writer put there, were he let in too early."""
    with writer(mps, "write_later", "2000") as left:  # a busy machine needs more than 200 to kill it
        left.kill()
        assert left.word(WORDS_AT) == 0
        with left.memory.open("r+b") as file:
            assert os.pwrite(file.fileno(), b"mine" * 2, WORDS_AT + 8) == 8
        eventually(lambda: not left.is_watched())
        found = [left.word(WORDS_AT + 8 * index) for index in range(WORDS)]
    assert found == [SEED ^ index * PATTERN & (1 << 64) - 1 for index in range(WORDS)]


@pytest.mark.parametrize("between", ["kernel", "memset"])
def test_nothing_is_done_that_comes_after_work_which_its_process_alone_could_do(mps: Machine, between: str) -> None:
    """A queue has an order: the next writer would take the last step for done, and go on from memory that lacks it."""
    with writer(mps, "write_behind", "200", between) as left:
        left.kill()
        eventually(lambda: not left.is_watched())
        is_first_done, is_second_done = left.word(128) != 0, left.word(WORDS_AT) != 0
    assert is_first_done or not is_second_done


def test_what_was_queued_is_not_done_when_the_holder_lets_go_before_its_turn(mps: Machine) -> None:
    with writer(mps, "write_later", "60000") as left:
        left.kill()
        left.space.close()
        eventually(lambda: not left.is_watched())
        assert [left.word(), left.word(WORDS_AT)] == [0, 0]


def test_what_a_stopped_writer_had_time_for_is_done(mps: Machine) -> None:
    """Its work goes on without it: who holds it finds it done."""
    with writer(mps, "write_later", "100") as left:
        os.kill(left.client.pid, signal.SIGSTOP)
        mps.run("counter", "--seconds", "0.2")  # in the meantime
        before = left.word(WORDS_AT)
        left.kill()
        eventually(lambda: not left.is_watched())
        assert (before, left.word(WORDS_AT)) in ((0, SEED), (SEED, SEED))


def test_nothing_is_written_after_the_end_of_a_writer_that_is_not_held(mps: Machine) -> None:
    """However late its server notices: the end of a process is all that the next writer can wait for then."""
    with writer(mps, "write_later", "100") as left:
        os.kill(left.client.pid, signal.SIGSTOP)
        left.space.close()
        mps.run("counter", "--seconds", "0.2")  # in the meantime
        server = int(mps.server())
        os.kill(server, signal.SIGSTOP)
        try:
            left.kill()
            at_its_end = left.word(), left.word(WORDS_AT)
        finally:
            os.kill(server, signal.SIGCONT)
        eventually(lambda: not left.is_watched())
        assert (left.word(), left.word(WORDS_AT)) == at_its_end


def test_nothing_can_be_done_to_the_dead(mps: Machine) -> None:
    """As measured: terminate_client of a dead client whose address space is held answers 201."""
    with writer(mps, "count_for", "60000") as left:
        server = mps.server()
        left.kill()
        eventually(lambda: str(left.client.pid) not in mps.ask(f"get_client_list {server}").split())
        assert mps.ask(f"terminate_client {server} {left.client.pid}") == "201\n"
        assert left.goes_on()


def test_its_memory_is_there_until_it_has_done_with_it(mps: Machine) -> None:
    """Also when the keeper lets it go: the address space keeps what it has mapped."""

    def blocks() -> int:
        mps.used_mib()  # looks for the dead
        return len(list((mps.place / "machine/memory").iterdir()))

    with writer(mps, "count_for", "60000") as left:
        left.kill()
        assert left.goes_on()
        os.close(left.got.pop())
        assert blocks() == 1
        left.space.close()
        eventually(lambda: blocks() == 0)
