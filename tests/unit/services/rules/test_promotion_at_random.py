"""Services at random: processes die, fault, fall silent, lie and are slow; and never do two of them write."""

import random
from dataclasses import dataclass, field

import pytest

from mpsd.model.process import ProcessId
from mpsd.model.service import Phase
from mpsd.services.rules.promotion import decide
from mpsd.services.rules.promotion_types import (
    Asked,
    Closing,
    Decision,
    Elapsed,
    Emptied,
    Ended,
    Event,
    Failed,
    Faulted,
    Fence,
    Fenced,
    Filled,
    Joined,
    Keep,
    Postponed,
    Promote,
    Promoted,
    PromotionLimits,
    Ready,
    Refuse,
    Service,
    Silent,
    Unserved,
    Yield,
)
from tests.seeds import seeds

LIMITS = PromotionLimits(most_promotions=3, window_seconds=60.0, yield_seconds=4.0, promote_seconds=4.0, fence_seconds=2.0)
DOMAINS = ("a", "b", "c")
STEPS = 400


@dataclass
class Process:
    """The true state of a process, whatever the service assumes."""

    domain: str
    is_alive: bool = True
    may_write: bool = False  # from its promotion until it is fenced, dead or not


@dataclass
class World:
    """Carries out what is decided, after a while, and checks every step."""

    chance: random.Random
    service: Service = field(default_factory=Service)
    at: float = 0.0
    processes: dict[ProcessId, Process] = field(default_factory=dict)
    coming: list[tuple[float, Event]] = field(default_factory=list)
    is_lost: bool = False  # the writer before was
    promoted_at: list[float] = field(default_factory=list)  # after such a loss
    served: int = 0
    seen: set[Phase] = field(default_factory=set)

    def tell(self, event: Event) -> None:
        if isinstance(event, Fenced):
            self.processes[event.process].may_write = False
        before = self.service
        self.service, decisions = decide(before, event, self.at, LIMITS)
        if isinstance(event, Fenced):
            self.is_lost = before.phase is not Phase.YIELDING
        self.seen.add(self.service.phase)
        if any(isinstance(each, Refuse) for each in decisions):
            assert (self.service, len(decisions)) == (before, 1)
        for decision in decisions:
            self.carry_out(decision)
        self.check()

    def carry_out(self, decision: Decision) -> None:
        soon = self.at + self.chance.choice([0.01, 0.5, 3.0, 6.0])
        match decision:
            case Promote(process) if self.chance.random() < 0.1:
                self.tell(Postponed(process))
            case Promote(process):
                self.processes[process].may_write = True
                if self.is_lost:
                    self.promoted_at.append(self.at)
                self.coming.append((soon, self.chance.choice([Promoted, Promoted, Promoted, Failed])(process)))
            case Fence(process):
                self.processes[process].is_alive = False
                self.coming.append((soon, Fenced(process)))
            case Yield(process):
                if self.chance.random() < 0.7:
                    self.coming.append((soon, Fenced(process)))
            case Keep(_) | Unserved(_) | Refuse(_):
                pass

    def check(self) -> None:
        writers = [process for process, each in self.processes.items() if each.may_write]
        assert len(writers) <= 1, "two write"
        assert writers == [self.service.writer] or (not writers and self.service.writer is None)
        assert (self.service.writer is None) == (self.service.phase is Phase.IDLE)
        for first, fourth in zip(self.promoted_at, self.promoted_at[LIMITS.most_promotions :], strict=False):
            assert fourth - first > LIMITS.window_seconds - 1e-6, "too many promotions"
        self.served += self.service.phase is Phase.SERVING

    def pass_time(self, seconds: float) -> None:
        """Let due events happen, in order; a timer is set to the service's deadline."""
        until = self.at + seconds
        while True:
            due = [when for when, _ in self.coming if when <= until]
            deadline = self.service.deadline
            if deadline is not None and max(deadline, self.at) <= min([until, *due]):
                self.at = max(self.at, deadline)
                self.tell(Elapsed())
                assert self.service.deadline != deadline, "a deadline that has passed is a new one, or none"
            elif due:
                self.coming.sort(key=lambda each: each[0])
                when, event = self.coming.pop(0)
                self.at = max(self.at, when)
                if not isinstance(event, Fenced) or self.processes[event.process].may_write:
                    self.tell(event)
            else:
                break
        self.at = until

    def join(self) -> None:
        process = ProcessId(len(self.processes) + 1, 1)
        self.processes[process] = Process(self.chance.choice(DOMAINS))
        self.tell(Joined(process, self.processes[process].domain, self.chance.randrange(3)))
        if self.chance.random() < 0.8:
            self.coming.append((self.at + self.chance.random() * 5, Ready(process)))

    def anything(self) -> None:
        process = self.chance.choice(list(self.processes))
        whats = ["die", "fault", "silent", "ready", "ask", "ask him", "lie", "early", "lose", "give", "close"]
        what = self.chance.choice(whats)
        if what == "die":
            self.processes[process].is_alive = False
            self.tell(Ended(process))
        elif what == "fault":
            self.tell(Faulted(self.chance.choice(DOMAINS), self.chance.choice([None, None, process])))
        elif what == "silent":
            self.tell(Silent(process))
        elif what == "ready" and self.processes[process].is_alive:
            self.tell(Ready(process))
        elif what == "lie":  # a process's report may be late, or wrong about itself
            self.tell(self.chance.choice([Promoted, Failed])(process))
        elif what == "early":
            self.tell(Elapsed())
        elif what == "close":
            self.tell(Closing(self.chance.choice(DOMAINS)))
        elif what in ("lose", "give"):
            self.tell(Emptied() if what == "lose" else Filled())
        else:
            self.tell(Asked(process if what == "ask him" else None))


@pytest.mark.parametrize("seed", seeds(10, 30))
def test_never_do_two_processes_write(seed: int) -> None:
    world = World(random.Random(seed))
    for _ in range(STEPS):
        if not world.processes or world.chance.random() < 0.3:
            world.join()
        else:
            world.anything()
        world.pass_time(world.chance.choice([0.0, 0.0, 0.1, 1.0, 10.0, 30.0]))
    assert world.served > 10
    assert world.seen >= {Phase.IDLE, Phase.PROMOTING, Phase.SERVING, Phase.FENCING}


@pytest.mark.parametrize("seed", seeds(10, 30))
def test_when_all_is_quiet_somebody_serves(seed: int) -> None:
    """After any history: with standbys that stay healthy, a member serves within the time that the limits allow."""
    world = World(random.Random(1000 + seed))
    for _ in range(60):
        if not world.processes or world.chance.random() < 0.3:
            world.join()
        else:
            world.anything()
        world.pass_time(world.chance.random())
    for _ in range(12):  # each promotion may fail, and is counted
        if world.service.phase is Phase.SERVING:
            break
        world.join()
        [*_, process] = world.processes
        world.tell(Ready(process))
        world.pass_time(2 * LIMITS.window_seconds)
    assert world.service.phase is Phase.SERVING
    writer = world.service.writer
    assert writer is not None
    assert world.processes[writer].may_write
