"""The parameters of the methods of services; messages.py has all others."""

from dataclasses import dataclass

from mpsd.model.service import MOST_RANK
from mpsd.wire.messages import ID, PATIENCE, PID
from mpsd.wire.params import boolean, maybe, number, or_zero, owned_word, param, text, whole

MOST_STANDBYS = 8
_NAME = owned_word(128)
_GENERATION = whole(0, 2**63 - 1)
_SERIAL = whole(0, 2**63 - 1)
_HEARTBEAT = or_zero(number(0.1, 3600))  # with a shorter one, a member that makes progress would be silent now and again


@dataclass(frozen=True, slots=True)
class ServiceName:
    name: str = param(_NAME)


@dataclass(frozen=True, slots=True)
class JoinService:
    id: int = param(ID)
    rank: int = param(whole(0, MOST_RANK), 0)
    heartbeat_seconds: float = param(_HEARTBEAT, 0.0)


@dataclass(frozen=True, slots=True)
class ServiceId:
    id: int = param(ID)


@dataclass(frozen=True, slots=True)
class FollowService:
    id: int = param(ID)
    after: int | None = param(maybe(_SERIAL), None)
    wait_seconds: float = param(PATIENCE, 0.0)


@dataclass(frozen=True, slots=True)
class ServiceTerm:
    id: int = param(ID)
    generation: int = param(_GENERATION)


@dataclass(frozen=True, slots=True)
class FailedMember:
    id: int = param(ID)
    why: str = param(text(1, 400))


@dataclass(frozen=True, slots=True)
class GetService:
    name: str = param(_NAME)
    after: int | None = param(maybe(_SERIAL), None)
    wait_seconds: float = param(PATIENCE, 0.0)


@dataclass(frozen=True, slots=True)
class Handover:
    name: str = param(_NAME)
    to_pid: int | None = param(maybe(PID), None)
    wait_seconds: float = param(PATIENCE, 30.0)


@dataclass(frozen=True, slots=True)
class ChangeService:
    """nil keeps a value; 0 removes a reservation."""

    name: str = param(_NAME)
    standbys: int | None = param(maybe(whole(0, MOST_STANDBYS)), None)
    sm_percent: float | None = param(maybe(number(0, 100)), None)
    memory_bytes: int | None = param(maybe(whole(0, 2**50)), None)
    heartbeat_seconds: float | None = param(maybe(_HEARTBEAT), None)
    until_done: bool | None = param(maybe(boolean()), None)


@dataclass(frozen=True, slots=True)
class KeepState:
    """Needs the descriptor of a forward state."""

    id: int = param(ID)
    generation: int = param(_GENERATION)
