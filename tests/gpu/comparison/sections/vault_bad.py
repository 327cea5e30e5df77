"""What must be refused: foreign descriptors, sizes that are not the memory's, arenas larger than the GPU.

Requests that mpsd refuses without a look at a descriptor are tested on the simulator.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mpsd_client import MpsdError, calls, values

from tests.gpu.comparison import figures, vault
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System

GRANULE = vault.GRANULE
CAPACITY = 32 * GRANULE
ARENA = "bad"


def _is_taken(system: System, arena: values.Arena, allocations: Sequence[tuple[int, int]], fds: Sequence[int]) -> bool:
    """Put the allocations with a connection of their own, which mpsd may end."""
    try:
        with vault.connected(system) as mpsd:
            mpsd.ask(calls.arena_put(arena.id, arena.generation, allocations, fds))
    except MpsdError:
        return False
    return True


def run(stage: Stage) -> None:
    system = stage.mpsd
    system.renew()
    system.warm(10)
    with vault.lent_memory(system) as memory:
        with _writer(system) as arena:
            _foreign(stage, arena, memory)
        _sizes(stage, memory)
    _too_large(stage)


@contextmanager
def _writer(system: System) -> Iterator[values.Arena]:
    """Make this process the writer of an arena."""
    with vault.connected(system) as mpsd:
        mpsd.ask(calls.arena_create(ARENA, "0", CAPACITY))
        arena = mpsd.ask(calls.arena_open(ARENA, "write"))
    yield arena
    with vault.connected(system) as mpsd:
        mpsd.ask(calls.arena_close(arena.id))
    vault.remove(system, ARENA)


def _foreign(stage: Stage, arena: values.Arena, memory: int) -> None:
    left, right = socket.socketpair()
    reader, writer = os.pipe()
    file = os.open("/etc/hostname", os.O_RDONLY)
    null, own = os.open("/dev/null", os.O_RDWR), os.pidfd_open(os.getpid())
    fds = {"/dev/null": null, "a pipe": reader, "a socket": left.fileno(), "a pidfd": own}
    if Path("/dev/nvidiactl").exists():  # the simulator's memory is files
        fds["a file"] = file
    system, both = stage.mpsd, [(0, GRANULE), (GRANULE, GRANULE)]
    taken = [what for what, fd in fds.items() if _is_taken(system, arena, both[:1], [fd])]
    taken += [f"{what} beside memory" for what, fd in fds.items() if _is_taken(system, arena, both, [memory, fd])]
    for fd in (reader, writer, file, null, own):
        os.close(fd)
    left.close()
    right.close()
    tried = 2 * len(fds)
    stage.add(
        "foreign descriptors: refused",
        mpsd=figures.of(tried - len(taken), tried),
        goal=figures.of(tried, tried),
        met=not taken,
        remark=f"taken: {', '.join(taken)}" if taken else "",
    )


def _sizes(stage: Stage, memory: int) -> None:
    """mpsd has no CUDA: it sees neither the size of a memory, nor whether a descriptor of the driver is memory. An adopter
    notices both."""
    system, control = stage.mpsd, Path("/dev/nvidiactl")
    foreign = os.open(control, os.O_RDWR) if control.exists() else os.memfd_create("foreign")
    fates = []
    for fd, size in ((memory, 2 * GRANULE), (foreign, GRANULE)):
        with _writer(system) as arena:
            if not _is_taken(system, arena, [(0, size)], [fd]):
                fates.append("refused by mpsd")
                continue
            with vault.connected(system) as mpsd:
                mpsd.ask(calls.arena_commit(arena.id, arena.generation))
                mpsd.ask(calls.arena_close(arena.id))
                fates.append(_adopts(system))
                mpsd.ask(calls.arena_open(ARENA, "write"))
    os.close(foreign)
    stage.add(
        "a size that is not the memory's; a descriptor of the driver that is no memory",
        mpsd="; ".join(fates),
        goal="refused, and the asker lives",
        met=all(fate.startswith("refused") for fate in fates),
    )


def _adopts(system: System) -> str:
    client = vault.start(system, "adopt", "--arena", ARENA, "--read")
    client.wait(vault.EVENT_SECONDS)
    system.clients.remove(client)
    refused = client.events("refused")
    return f"refused at adoption ({refused[0]['name']})" if refused else f"adopted: {client.fate}"


def _too_large(stage: Stage) -> None:
    system = stage.mpsd
    total = int(vault.run(system, "memory", "info")["total"])
    fates = []
    for size in (total + (1 << 30) // GRANULE * GRANULE, 1 << 50):
        client = vault.start(system, "write", "--arena", "large", "--bytes", size)
        client.wait(vault.EVENT_SECONDS)
        system.clients.remove(client)
        refused = client.events("refused")
        fates.append(f"refused at {refused[0]['call']} ({refused[0]['name']})" if refused else client.fate)
        vault.remove(system, "large")
    stage.add(
        "an arena of more than the GPU has; of 1 PiB",
        mpsd="; ".join(fates),
        goal="refused",
        met=all(fate.startswith("refused") for fate in fates),
    )
