"""What must be refused: foreign descriptors, wrong sizes, forged numbers, other users, arenas larger than the GPU."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.comparison import figures, vault
from tests.gpu.comparison.stage import OTHER_UID, Stage
from tests.gpu.comparison.system import System
from tests.gpu.comparison.vault_wire import Gone, Refusal, Wire

GRANULE = vault.GRANULE
CAPACITY = 32 * GRANULE
ARENA, CLOSED = "bad", "closed"
MOST_LAYOUT = 16 << 20


@dataclass(slots=True)
class Tally:
    """Guards nothing: what was tried of one kind, and what was not refused."""

    tried: int = 0
    taken: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def try_(self, what: str, wire: Wire, method: str, fds: Sequence[int] = (), **params: Any) -> bool:
        """Whether it was taken."""
        self.tried += 1
        try:
            wire.ask(method, fds, **params)
        except Refusal as refusal:
            self.names.add(refusal.name)
            return False
        except Gone:
            self.names.add("the conversation was ended")
            wire.renew()
            return False
        self.taken.append(what)
        return True


def run(stage: Stage) -> None:
    system = stage.mpsd
    system.renew()
    system.warm(10)
    with vault.lent_memory(system) as memory:
        for what, part in (
            ("foreign descriptors", _foreign),
            ("wrong places, sizes and counts", _shapes),
            ("forged numbers, and what is not held", _forged),
            ("layouts", _layouts),
            ("another user", _strangers),
        ):
            tally = Tally()
            with _writer(system) as (wire, arena):
                part(tally, system, wire, arena, memory)
            _report(stage, what, tally)
        _sizes(stage, memory)
    _too_large(stage)


@contextmanager
def _writer(system: System) -> Iterator[tuple[Wire, dict[str, Any]]]:
    """Make this process the writer of one arena; another arena exists, which no process has open."""
    with Wire(system.pipe) as wire:
        for name in (ARENA, CLOSED):
            wire.ask("arena.create", name=name, gpu="0", capacity_bytes=CAPACITY)
        arena = wire.ask("arena.open", name=ARENA, access="write")
        yield wire, arena
    with Wire(system.pipe) as wire:
        wire.ask("arena.close", id=arena["id"])
    vault.remove(system, ARENA, CLOSED)


def _foreign(tally: Tally, system: System, wire: Wire, arena: dict[str, Any], memory: int) -> None:
    left, right = socket.socketpair()
    reader, writer = os.pipe()
    file = os.open("/etc/hostname", os.O_RDONLY)
    null, own = os.open("/dev/null", os.O_RDWR), os.pidfd_open(os.getpid())
    fds = {"/dev/null": null, "a pipe": reader, "a socket": left.fileno(), "a pidfd": own}
    if Path("/dev/nvidiactl").exists():  # the simulator's memory is files
        fds["a file"] = file
    for what, fd in fds.items():
        tally.try_(what, wire, "arena.put", [fd], **vault.places(arena, (0, GRANULE)))
        tally.try_(
            f"{what} beside memory", wire, "arena.put", [memory, fd], **vault.places(arena, (0, GRANULE), (GRANULE, GRANULE))
        )
    for fd in (reader, writer, file, null, own):
        os.close(fd)
    left.close()
    right.close()


def _shapes(tally: Tally, system: System, wire: Wire, arena: dict[str, Any], memory: int) -> None:
    window = int(arena["window_bytes"])
    wire.ask("arena.put", [memory], **vault.places(arena, (8 * GRANULE, GRANULE)))
    for what, place in (
        ("an odd offset", (1, GRANULE)),
        ("an odd size", (0, GRANULE + 1)),
        ("no size", (0, 0)),
        ("a negative size", (0, -GRANULE)),
        ("a negative offset", (-GRANULE, GRANULE)),
        ("behind the window", (window, GRANULE)),
        ("over the window's end", (window - GRANULE, 2 * GRANULE)),
        ("far away", (1 << 62, GRANULE)),
        ("a sum that wraps", ((1 << 64) - GRANULE, 2 * GRANULE)),
        ("over what is there", (7 * GRANULE, 2 * GRANULE)),
        ("within what is there, larger", (8 * GRANULE, 2 * GRANULE)),
        ("more than the capacity", (0, CAPACITY + GRANULE)),
    ):
        tally.try_(what, wire, "arena.put", [memory], **vault.places(arena, place))
    tally.try_("no descriptor", wire, "arena.put", **vault.places(arena, (0, GRANULE)))
    tally.try_("two for one", wire, "arena.put", [memory, memory], **vault.places(arena, (0, GRANULE)))
    tally.try_("one for two", wire, "arena.put", [memory], **vault.places(arena, (0, GRANULE), (GRANULE, GRANULE)))
    tally.try_("two at one place", wire, "arena.put", [memory, memory], **vault.places(arena, (0, GRANULE), (0, GRANULE)))
    tally.try_("nothing", wire, "arena.put", **vault.places(arena))


def _forged(tally: Tally, system: System, wire: Wire, arena: dict[str, Any], memory: int) -> None:
    own, generation = int(arena["id"]), int(arena["generation"])
    other = int(wire.ask("arena.get", name=CLOSED)["id"])
    for what, number, writer in (
        ("an older generation", own, generation - 1),
        ("a later generation", own, generation + 1),
        ("an arena that is not open", other, 0),
        ("... of any generation", other, generation),
        ("no such arena", own + 1000, generation),
    ):
        tally.try_(
            f"put: {what}", wire, "arena.put", [memory], **vault.places({"id": number, "generation": writer}, (0, GRANULE))
        )
        for method, more in (("commit", {"has_layout": False}), ("drop", {"offsets": [0]}), ("seal", {})):
            tally.try_(f"{method}: {what}", wire, f"arena.{method}", id=number, generation=writer, **more)
    for method in ("take", "layout"):
        tally.try_(f"{method}: not open", wire, f"arena.{method}", id=other)
        tally.try_(f"{method}: no such arena", wire, f"arena.{method}", id=own + 1000)
    tally.try_("a second of the name", wire, "arena.create", name=ARENA, gpu="0", capacity_bytes=GRANULE)
    tally.try_("a name with a slash", wire, "arena.create", name="../x", gpu="0", capacity_bytes=GRANULE)
    tally.try_("no such GPU", wire, "arena.create", name="gpu", gpu="99", capacity_bytes=GRANULE)


def _layouts(tally: Tally, system: System, wire: Wire, arena: dict[str, Any], memory: int) -> None:
    at = {"id": arena["id"], "generation": arena["generation"]}
    null, large = os.open("/dev/null", os.O_RDONLY), os.memfd_create("layout")
    os.ftruncate(large, MOST_LAYOUT + 1)
    reader, writer = os.pipe()
    tally.try_("none, where one was said", wire, "arena.commit", has_layout=True, **at)
    tally.try_("one, where none was said", wire, "arena.commit", [null], has_layout=False, **at)
    tally.try_("/dev/null", wire, "arena.commit", [null], has_layout=True, **at)
    tally.try_("a pipe", wire, "arena.commit", [reader], has_layout=True, **at)
    tally.try_("too large", wire, "arena.commit", [large], has_layout=True, **at)
    tally.try_("two", wire, "arena.commit", [null, null], has_layout=True, **at)
    for fd in (null, large, reader, writer):
        os.close(fd)


def _strangers(tally: Tally, system: System, wire: Wire, arena: dict[str, Any], memory: int) -> None:
    with Wire(system.pipe, uid=OTHER_UID) as stranger:
        own, closed = arena["id"], wire.ask("arena.get", name=CLOSED)["id"]
        for name, number in ((ARENA, own), (CLOSED, closed)):
            for method, params in (
                ("get", {"name": name}),
                ("open", {"name": name, "access": "read"}),
                ("open", {"name": name, "access": "write"}),
                ("change", {"id": number, "mode": 0o666}),
                ("remove", {"name": name}),
            ):
                tally.try_(f"{method} {name}", stranger, f"arena.{method}", **params)
        shown = [each["name"] for each in stranger.ask("arena.list")["items"]]
        tally.tried += 1
        tally.taken += [f"list shows {name}" for name in shown]


def _report(stage: Stage, what: str, tally: Tally) -> None:
    stage.add(
        f"{what}: refused",
        mpsd=figures.of(tally.tried - len(tally.taken), tally.tried),
        goal=figures.of(tally.tried, tally.tried),
        met=not tally.taken,
        remark=f"taken: {', '.join(tally.taken)}" if tally.taken else ", ".join(sorted(tally.names)),
    )


def _sizes(stage: Stage, memory: int) -> None:
    """mpsd has no CUDA: it sees neither the size of a memory, nor whether a descriptor of the driver is memory. An adopter
    notices both."""
    system, control = stage.mpsd, Path("/dev/nvidiactl")
    foreign = os.open(control, os.O_RDWR) if control.exists() else os.memfd_create("foreign")
    fates = []
    for fd, size in ((memory, 2 * GRANULE), (foreign, GRANULE)):
        with _writer(system) as (wire, arena):
            tally = Tally()
            if not tally.try_("", wire, "arena.put", [fd], **vault.places(arena, (0, size))):
                fates.append("refused by mpsd")
                continue
            wire.ask("arena.commit", id=arena["id"], generation=arena["generation"], has_layout=False)
            wire.ask("arena.close", id=arena["id"])
            fates.append(_adopts(system))
            wire.ask("arena.open", name=ARENA, access="write")
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
