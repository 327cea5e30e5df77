"""Plays a recorded scene to a control program, and compares its answers."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.contract.programs import Daemon, Program, open_place, uuid_of_device
from tests.contract.transcript import Expected, Reply, Scene, Step


@dataclass(frozen=True)
class Played:
    """A step as it was sent, and what came back."""

    step: Step
    reply: Reply
    is_ours: bool
    names: Mapping[str, str]
    template: str  # the line before the names were put in

    @property
    def expected(self) -> Expected:
        return self.step.ours if self.is_ours else self.step.vendor

    @property
    def is_same(self) -> bool:
        return self.expected.accepts(self.reply)

    def by_name(self, text: str) -> str:
        """The text with this run's pids and UUIDs written as their names, the longest first."""
        for name, value in sorted(self.names.items(), key=lambda item: -len(item[1])):
            text = text.replace(value, f"{{{name}}}")
        return text

    def __str__(self) -> str:
        return f"{self.step.line!r} by uid {self.step.uid}:\n  expected {self.expected}\n  got      {self.reply}"


def play(program: Program, scene: Scene) -> Iterator[Played]:
    """Play every step of the scene, in order, with a new daemon."""
    with open_place(program) as daemon:
        names: dict[str, str] = {}
        if "no daemon" not in scene.needs:
            started = daemon.start()
            assert started == Reply(""), f"{program.control} -d: {started}"
            names["uuid"] = uuid_of_device(daemon)
            names["prefix"] = names["uuid"][:12]
        yield from (_played(daemon, step, names) for step in scene.before)
        if "server" in scene.needs:
            names["server"] = daemon.start_server(os.geteuid())
        if "server of uid 1000" in scene.needs:
            names["server"] = daemon.start_server(1000)
        if "client" in scene.needs:
            names["client"] = daemon.start_client()
        yield from (_played(daemon, step, names) for step in scene.steps)


def unplayable(scene: Scene) -> str:
    """Why this user cannot play the scene; nothing if so."""
    if os.geteuid() == 0:
        return ""
    if any(step.uid != 0 for step in scene.steps):
        return "needs uid 0 to be two users"
    return "needs uid 0 to start its server" if any("-uid 0" in step.line for step in scene.steps) else ""


def _played(daemon: Daemon, step: Step, names: Mapping[str, str]) -> Played:
    uid = step.uid if os.geteuid() == 0 else os.geteuid()
    filled = step.filled(names)
    return Played(filled, daemon.ask(filled.line, uid), daemon.program.is_ours, names, step.line)
