"""The parameters of the methods of services; messages.py has all others."""


from typing import Annotated

from msgspec import Struct

from mpsd.model.service import MOST_RANK
from mpsd.wire.messages import ID, PATIENCE, PID
from mpsd.wire.params import boolean, maybe, number, or_zero, owned_word, text, whole

MOST_STANDBYS = 8
_NAME = owned_word(128)
_GENERATION = whole(0, 2**63 - 1)
_SERIAL = whole(0, 2**63 - 1)
_HEARTBEAT = or_zero(number(0.1, 3600))  # with a shorter one, a member that makes progress would be silent now and again


class ServiceName(Struct, frozen=True):
    name: Annotated[str, _NAME]


class JoinService(Struct, frozen=True):
    id: Annotated[int, ID]
    rank: Annotated[int, whole(0, MOST_RANK)] = 0
    heartbeat_seconds: Annotated[float, _HEARTBEAT] = 0.0


class ServiceId(Struct, frozen=True):
    id: Annotated[int, ID]


class FollowService(Struct, frozen=True):
    id: Annotated[int, ID]
    after: Annotated[int | None, maybe(_SERIAL)] = None
    wait_seconds: Annotated[float, PATIENCE] = 0.0


class ServiceTerm(Struct, frozen=True):
    id: Annotated[int, ID]
    generation: Annotated[int, _GENERATION]


class FailedMember(Struct, frozen=True):
    id: Annotated[int, ID]
    why: Annotated[str, text(1, 400)]


class GetService(Struct, frozen=True):
    name: Annotated[str, _NAME]
    after: Annotated[int | None, maybe(_SERIAL)] = None
    wait_seconds: Annotated[float, PATIENCE] = 0.0


class Handover(Struct, frozen=True):
    name: Annotated[str, _NAME]
    to_pid: Annotated[int | None, maybe(PID)] = None
    wait_seconds: Annotated[float, PATIENCE] = 30.0


class ChangeService(Struct, frozen=True):
    """nil keeps a value; 0 removes a reservation."""

    name: Annotated[str, _NAME]
    standbys: Annotated[int | None, maybe(whole(0, MOST_STANDBYS))] = None
    sm_percent: Annotated[float | None, maybe(number(0, 100))] = None
    memory_bytes: Annotated[int | None, maybe(whole(0, 2**50))] = None
    heartbeat_seconds: Annotated[float | None, maybe(_HEARTBEAT)] = None
    until_done: Annotated[bool | None, maybe(boolean())] = None


class KeepState(Struct, frozen=True):
    """Needs the descriptor of a forward state."""

    id: Annotated[int, ID]
    generation: Annotated[int, _GENERATION]
