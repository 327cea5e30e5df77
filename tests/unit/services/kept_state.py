"""A forward state, of which the vault in memory gives descriptors."""

import os
import struct

from msgspec.structs import replace

from mpsd.wire.forward_state import CONTROL_AT, HEAD, MAGIC


class Kept:
    """A forward state as the vault gives it; closed with the test."""

    def __init__(self, machine, generation: int, arena_id: int = 1) -> None:
        self.machine, self.descriptor, self.n, self.generation = machine, os.memfd_create("state"), 0, generation
        self.arena_id = arena_id
        os.pwrite(self.descriptor, HEAD.pack(1, 0, MAGIC, generation, 0, 8, 0), 0)
        self.publish()
        self.keep()

    def keep(self) -> None:
        arena = self.machine.vault.made[self.arena_id]
        self.machine.vault.descriptors[self.arena_id] = self.descriptor
        facts = {"state_serial": arena.state_serial + 1, "state_generation": self.generation}
        self.machine.vault.become("state", replace(arena, **facts))

    def publish(self) -> None:
        self.n += 1
        os.pwrite(self.descriptor, struct.pack("=QQ48x", 2 * self.n, 2 * self.n - 2), CONTROL_AT)
