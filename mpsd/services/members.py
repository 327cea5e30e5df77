"""One service while mpsd runs: its processes, their last instructions, and the long polls on it."""

import time
from collections.abc import Callable

from msgspec import Struct, field
from msgspec.structs import replace

from mpsd.model.arena import Arena
from mpsd.model.process import ProcessId
from mpsd.model.service import (
    Dealt,
    Instruction,
    Loss,
    MemberState,
    MoveState,
    Order,
    Phase,
    Promotion,
    ServiceSettings,
    ServiceView,
    Share,
)
from mpsd.notify import Changed
from mpsd.services.handover import HandoverRecord
from mpsd.services.move_record import MoveRecord
from mpsd.services.rules.promotion_types import Service

MOVE_ASKED = "a move to another GPU was asked for"
CONTAINED = "an SM exception was contained in domain {}, which will end"


class Instance(Struct, eq=False):
    """A process that has joined, until it leaves or ends; also while it is fenced, and after it was dismissed.

    domain: empty: not known yet. since_ns: when it joined, of CLOCK_MONOTONIC; placed_ns: when its domain was known.
    is_ready: it reported so, in any state.
    is_orphan: its MPS server has ended. asking: its pending long polls, each called with a new answer. heard_at: the time of
    the last answered poll (trio time). told: its last instruction. dismissed: why it has to end.
    """

    process: ProcessId
    domain: str
    since_ns: int
    since_at: float
    heartbeat_seconds: float
    heard_at: float
    told: Instruction
    is_ready: bool = False
    is_gone: bool = False
    is_orphan: bool = False
    placed_ns: int = 0
    asking: list[Callable[[Instruction], None]] = field(default_factory=list)
    dismissed: str = ""


class ServiceRecord(Struct, eq=False):
    """A service. Guards the serials of instructions: they grow with each change, also across restarts of mpsd.

    cleared: the last writer, which a fault keeps from writing, though the arena still has it as its writer. unserved: the last
    published reason for having no writer; empty: it has one. is_loss_told: the loss of the arena's contents has been counted.
    """

    arena: Arena
    settings: ServiceSettings
    is_stored: bool = False  # its settings are stored
    service: Service = field(default_factory=Service)
    instances: dict[ProcessId, Instance] = field(default_factory=dict)
    cleared: ProcessId | None = None
    handover: HandoverRecord | None = None
    promotions: int = 0
    last: Promotion | None = None
    losses: int = 0
    lost: Loss | None = None
    is_loss_told: bool = False
    share: Share | None = None  # of an elastic service
    dealt: Dealt | None = None  # None: its share has not changed
    move: MoveRecord | None = None  # the last one
    is_removed: bool = False
    is_promoting: bool = False  # the vault is being called
    stopping: ProcessId | None = None  # its writer, which is being ended
    protection: str = ""
    unserved: str = ""
    shown: ServiceView | None = None
    revision: int = field(default_factory=lambda: time.monotonic_ns() // 1000)
    _serial: int = field(default_factory=lambda: time.monotonic_ns() // 1000)
    changed: Changed = field(default_factory=Changed)

    def add(self, instance: Instance) -> None:
        self.instances[instance.process] = instance
        self._serial += 1
        instance.told = replace(instance.told, serial=self._serial)

    def instruct(self) -> None:
        """Update the instructions of all members.  One that is to serve is answered before this returns.

        The pending polls of the other members are woken, and run after the present work.
        """
        for instance in self.instances.values():
            told = self._instruction(instance)
            if told != instance.told:
                self._serial += 1
                instance.told = replace(told, serial=self._serial)
                if told.order is Order.SERVE:
                    for answer in instance.asking:
                        answer(instance.told)
        self.changed.notify()

    def _instruction(self, instance: Instance) -> Instruction:
        arena = self.arena
        order, why = self._order(instance)
        serial = instance.told.serial
        return Instruction(
            serial, order, arena.generation, arena.layout_hash, arena.state_serial, arena.writer, why, arena.commit,
            self._is_moving(instance),
        )  # fmt: skip

    def _is_moving(self, instance: Instance) -> bool:
        """Return whether the process has to take images for a move."""
        if instance.process != self.service.writer:
            return False
        if self.service.phase is Phase.YIELDING:
            return bool(self.service.move)
        is_copying = self.move is not None and self.move.state is MoveState.COPYING
        return is_copying and self.service.phase is Phase.SERVING

    def _order(self, instance: Instance) -> tuple[Order, str]:
        service, member = self.service, self.service.member(instance.process)
        if instance.dismissed:
            return Order.LEAVE, instance.dismissed
        if member is not None and member.standing is MemberState.FAULTED:
            return Order.LEAVE, f"a fault in domain {member.domain} has cost it its context"
        if service.writer != instance.process:
            return Order.STANDBY, ""
        if service.phase is Phase.FENCING:
            return Order.LEAVE, "it is being fenced"
        if service.phase is Phase.YIELDING:
            if self.service.move:
                return Order.YIELD, MOVE_ASKED
            is_moved = member is not None and member.is_closing
            return Order.YIELD, CONTAINED.format(instance.domain) if is_moved else "a handover was asked for"
        return (Order.SERVE, "") if self.arena.writer == instance.process else (Order.STANDBY, "")

    @property
    def heartbeat_seconds(self) -> float:
        """Return the longest time between its writer's heartbeats; 0: mpsd expects none."""
        instance = self.instances.get(self.service.writer) if self.service.writer else None
        return (instance.heartbeat_seconds if instance else 0.0) or self.settings.heartbeat_seconds
