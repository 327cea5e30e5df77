"""A service and its members under test: a troupe that replaces ended members, their reports, and the checks after each
failover.

A step counts as acknowledged, that is, sent to users, when its report has come: the member writes it after publishing the step.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpsd_client import MpsdError, calls, values

from tests.integration.machine import Machine

PROGRAM = Path(__file__).with_name("failover_member.py")
SERVICE = "counted"
WAIT_SECONDS = 60.0  # for what must come, on a machine that is busy
LOOK_SECONDS = 0.02  # between two looks at mpsd
MOST_LINES = 40  # of a failure's report


@dataclass(eq=False)
class Member:
    process: "subprocess.Popen[bytes]"
    words: list[str]
    events: list[dict[str, Any]] = field(default_factory=list)
    rest: bytes = b""
    is_at_end: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["event"] == event]

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(word.encode() + b"\n")
            self.process.stdin.flush()


class Troupe:
    """Keeps a number of members running, and collects their reports."""

    def __init__(self, machine: Machine, size: int, heartbeat: float) -> None:
        self.machine, self.size, self.heartbeat = machine, size, heartbeat
        self.members: list[Member] = []  # all there ever were
        self.is_filled = True
        self._selector = selectors.DefaultSelector()

    # -- members -------------------------------------------------------------------------------------------------------

    def start(self, *words: str) -> Member:
        command = [sys.executable, str(PROGRAM), "--service", SERVICE, "--heartbeat", str(self.heartbeat), *words]
        with (self.machine.place / "members.err").open("ab") as errors:
            process = subprocess.Popen(
                command, env=self.machine.variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        member = Member(process, list(words))
        self.members.append(member)
        self._selector.register(process.stdout, selectors.EVENT_READ, member)
        return member

    @property
    def living(self) -> list[Member]:
        return [member for member in self.members if not member.is_at_end]

    def of(self, pid: int | None) -> Member | None:
        return next((member for member in self.living if member.pid == pid), None)

    def hear(self, seconds: float) -> None:
        """What comes within that time, and new members for those that have ended."""
        for key, _ in self._selector.select(seconds):
            self._read(key.data)
        while self.is_filled and len(self.living) < self.size:
            self.start(*self.next_words())

    def next_words(self) -> list[str]:
        """Of the next member that is started."""
        return []

    def _read(self, member: Member) -> None:
        assert member.process.stdout is not None
        while True:
            try:
                data = os.read(member.process.stdout.fileno(), 65536)
            except BlockingIOError:
                return
            if not data:
                self._selector.unregister(member.process.stdout)
                member.is_at_end = True
                member.process.wait(WAIT_SECONDS)
                member.process.stdout.close()
                return
            *lines, member.rest = (member.rest + data).split(b"\n")
            member.events += [json.loads(line) for line in lines]

    def wait_for(self, what: str, look: Callable[[], Any]) -> Any:
        until = time.monotonic() + WAIT_SECONDS
        while not (found := look()):
            assert time.monotonic() < until, f"waited for {what}\n{self.report()}"
            assert not self.conflicts(), self.report()
            self.listen(LOOK_SECONDS)
        return found

    def listen(self, seconds: float) -> None:
        """For all of that time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.hear(left)

    # -- the state of mpsd -------------------------------------------------------------------------------------------------

    def view(self) -> values.Service | None:
        """Return the service's state, or None while mpsd does not run or the service does not exist."""
        with suppress(OSError, MpsdError), self.machine.mpsd() as mpsd:
            return mpsd.ask(calls.service_get(SERVICE))
        return None

    def serving(self, beyond: int, is_covered: bool = True) -> values.Service | None:
        """Wait until a member serves in a later generation and has acknowledged some steps, with a standby ready."""
        view = self.view()
        if view is None or view.phase != "serving" or view.generation <= beyond:
            return None
        active = self.of(view.writer_pid)
        if active is None or sum(each["generation"] == view.generation for each in active.said("step")) < 2:
            return None
        return view if not is_covered or self.standbys(view) else None

    def standbys(self, view: values.Service) -> list[Member]:
        """That are ready."""
        ready = [each.pid for each in view.members if each.standing == "ready" and not each.is_writer]
        return [member for member in map(self.of, ready) if member is not None]

    # -- what must be so -------------------------------------------------------------------------------------------------

    def conflicts(self) -> list[dict[str, Any]]:
        return [event for member in self.members for event in member.said("conflict")]

    def check(self) -> "Sums":
        """Every term so far.  The living are still in theirs: call it when others serve, or all have ended."""
        assert not self.conflicts(), self.report()
        terms = sorted((each for member in self.members for each in terms_of(member)), key=lambda term: term.generation)
        sums, before_ns = Sums(terms=len(terms)), 0
        value, last = 0, 0
        for number, term in enumerate(terms):
            where = f"generation {term.generation}, pid {term.pid}\n{self.report()}"
            assert number == 0 or term.generation > terms[number - 1].generation, f"two terms of one generation: {where}"
            record, memory = term.record, term.memory
            assert last <= record["step"] <= last + 1, f"acknowledged {last}, found {record['step']}: {where}"
            if record["step"] > last:
                value, last = next_of(value), last + 1  # published, but its process died before the report
                sums.unsaid += 1
            assert record["value"] == value, where
            assert memory["step"] in (last, last + 1), f"more than a step beyond {last} was begun: {memory} {where}"
            sums.recomputed += memory["step"] - last
            assert before_ns < term.promoted_ns, f"published by another one after this one had begun: {where}"
            for step in term.steps:
                value, last = next_of(value), last + 1
                assert (step["n"], step["value"]) == (last, value), f"{step} is not step {last}: {where}"
                before_ns = step["published_ns"]
        sums.steps = last
        sums.windows = self.check_windows()
        return sums

    def check_windows(self) -> int:
        """Check by mpsd's log that no member was promoted before the last active was fenced. Return the number of
        promotions."""
        writer, told = None, 0
        for entry in self.machine.journal():
            what = entry.get("what") if entry["event"] in ("service.event", "arena.event") else entry["event"]
            if what == "promoting":
                assert writer is None, f"{entry} while {writer} may write\n{self.report()}"
                writer, told = entry["to_pid"], told + 1
            elif what == "daemon.ready" or (what == "fenced" and entry["pid"] == writer):
                writer = None  # what mpsd did last before it was killed it may not have written down
        return told

    def report(self) -> str:
        lines = [f"{member.pid} {member.words} {json.dumps(event)}" for member in self.members for event in member.events]
        order = sorted(lines, key=lambda line: json.loads(line[line.index("{") :])["monotonic_ns"])
        errors = (self.machine.place / "members.err").read_text(errors="replace").splitlines()
        lines = [line for line in self.machine.log("mpsd.log") if '"event":"audit"' not in line]
        journal = [line for line in lines if any(map(line.count, ("service.", "vault.", "daemon.")))]
        return "\n".join([repr(self.view()), *order[-MOST_LINES:], *journal[-MOST_LINES:], *errors[-MOST_LINES:]])

    def end(self) -> None:
        """Stop all members and collect their last reports."""
        self.is_filled = False
        for member in self.living:
            member.kill()
        while self.living:
            self.hear(1.0)
        for member in self.members:
            if member.process.stdin is not None:
                with suppress(BrokenPipeError):
                    member.process.stdin.close()
        self._selector.close()


@dataclass
class Sums:
    """terms: terms of members. windows: promotions in mpsd's log. unsaid: steps that a member published and did not report,
    since it died. recomputed: steps that were interrupted and repeated."""

    terms: int
    steps: int = 0
    unsaid: int = 0
    recomputed: int = 0
    windows: int = 0


@dataclass(frozen=True)
class Term:
    pid: int
    generation: int
    record: dict[str, int]
    memory: dict[str, int]
    promoted_ns: int
    steps: list[dict[str, Any]]


def terms_of(member: Member) -> list[Term]:
    return [
        Term(
            member.pid,
            each["generation"],
            each["record"],
            each["memory"],
            each["monotonic_ns"],
            [step for step in member.said("step") if step["generation"] == each["generation"]],
        )
        for each in member.said("promoted")
    ]


def next_of(value: int) -> int:
    return (value * 1664525 + 1013904223) % 2**32
