"""A member of a service that rehearses, on the simulator.

    rehearsal_member.py WHAT --service NAME --report FILE [--gate FILE]

The arena has the tensors `kept` and `written`, each in a separate block with a count. The active adds 1 to both in every step.
WHAT selects the rehearsal of a standby:

    all         its step adds to both
    some        writes=["written"]: its step adds to that one
    stray       writes=["written"]: its step adds to the other one too
    raises      its step adds to both, and raises
    twice       its step calls rehearse
    held        rehearses when the active has committed again; its first run waits for FILE
"""

import argparse
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients/python/examples"))

from count_service import Gpu, Report
from mpsd_client import Arena, CudaError, Layout, Service, TensorSpec, Term
from mpsd_client._following import STANDBY

NAMES = ("kept", "written")
CELLS = 4
HOLD_SECONDS = 60.0


class Member:
    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked, self.report, self.runs = asked, Report(asked.report), 0
        self.service = Service(asked.service, capacity=4 << 30, schema={"step": "uint64"})
        self.gpu = Gpu()
        self.seen: list[int] = []  # what the first run began with
        self.read_only: list[bool] = []  # what the library says of the tensors while it runs

    def counts(self) -> list[int]:
        return [self.gpu.read(self.arena[name].address) for name in NAMES]

    def step(self, names: tuple[str, ...] = NAMES) -> None:
        for name in names:
            address = self.arena[name].address
            self.gpu.write(address, self.gpu.read(address) + 1)

    def rehearsed(self) -> None:
        """What is run in place of a step of the term."""
        self.runs += 1
        self.seen = self.seen or self.counts()
        self.read_only = [self.arena[name].is_read_only for name in NAMES]
        random.random()
        if self.asked.what == "some":
            self.step(("written",))
        elif self.asked.what == "stray":
            self.step()
            self.report("strayed")
        else:
            self.step()
        if self.asked.what == "raises":
            raise ValueError("as it was told to")
        if self.asked.what == "twice":
            self.service.rehearse(self.step)
        if self.asked.what == "held":
            self.report("held", counts=self.counts())
            deadline = time.monotonic() + HOLD_SECONDS
            while not (self.asked.gate.exists() and self.is_promoted()):  # else the other runs can come before the order
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def is_promoted(self) -> bool:
        """Return whether mpsd's order to serve has come to this process."""
        following = self.service._following
        return following is not None and following.told.what.order != STANDBY

    def rehearse(self) -> None:
        before, generator = self.counts(), random.getstate()
        writes = ["written"] if self.asked.what in ("some", "stray") else None
        try:
            done, why = self.service.rehearse(self.rehearsed, writes=writes), ""
        except (ValueError, BufferError) as exc:
            done, why = None, str(exc)
        self.report(
            "rehearsed", done=done, why=why, runs=self.runs, seen=self.seen, before=before, counts=self.counts(),
            is_generator_kept=random.getstate() == generator, is_writable=self.may_write(),
            read_only=[self.read_only, [self.arena[name].is_read_only for name in NAMES]],
        )  # fmt: skip

    def may_write(self) -> bool:
        """Whether the GPU lets this process write to the arena."""
        flags = self.access(self.arena["kept"].address)
        assert flags == self.access(self.arena["written"].address)
        return flags == 3

    def access(self, address: int) -> int:
        from ctypes import byref, c_int, c_uint64

        flags, location = c_uint64(), (c_int * 2)(1, 0)
        self.gpu.call("cuMemGetAccess", byref(flags), location, c_uint64(address))
        return flags.value

    def run(self) -> None:
        self.arena = self.service.open()
        if self.asked.what == "held":
            self.service.on_commit(lambda arena: self.rehearse())
        elif self.arena.layout is not None:
            self.rehearse()
        self.report("standby")
        with self.service.active() as term:
            self.report("promoted", counts=self.counts() if self.arena.layout else [0, 0])
            self.serve(term)

    def serve(self, term: Term) -> None:
        if term.arena.layout is None:
            self.build(term.arena)
        step: Any = term.record["step"] if term.record else 0
        while not term.is_over:
            self.step()
            step += 1
            term.publish(step=step)
            if step % 10 == 0:
                self.report("step", n=step, counts=self.counts())
            if self.asked.commit and Path(self.asked.commit).exists():
                Path(self.asked.commit).unlink()
                self.build(term.arena)
            time.sleep(0.005)

    def build(self, arena: Arena) -> None:
        """Commit the two blocks; a later time with one more block."""
        arena.allocate(self.asked.more)
        if arena.layout is None:
            places = [arena.allocate(2 << 20).offset for _ in NAMES]
            for place in places:
                self.gpu.write(arena.base + place, 0)
        else:
            places = [arena.tensors[name].offset for name in NAMES]
        named = zip(NAMES, places, strict=True)
        arena.commit(Layout({name: TensorSpec(place, "uint32", (CELLS,), (1,)) for name, place in named}))


def main() -> None:
    known = argparse.ArgumentParser()
    known.add_argument("what", choices=("all", "some", "stray", "raises", "twice", "held"))
    known.add_argument("--service", required=True)
    known.add_argument("--report", required=True)
    known.add_argument("--gate", type=Path)
    known.add_argument("--commit", help="while it serves, it commits again when this file is there")
    known.add_argument("--more", type=int, default=2 << 20, help="bytes of the arena without a name, in each commit")
    asked = known.parse_args()
    member = Member(asked)
    try:
        member.run()
    except (RuntimeError, CudaError) as exc:
        member.report("failed", why=str(exc))
        os._exit(4)


if __name__ == "__main__":
    main()
