"""The parameters of the methods of services; messages.py has all others."""


from typing import Annotated

from msgspec import Struct

from mpsd.model.service import MOST_RANK, Elasticity
from mpsd.wire.messages import GPU, ID, PATIENCE, PID
from mpsd.wire.params import boolean, choice, maybe, number, or_zero, owned_word, text, whole

MOST_STANDBYS = 8
_NAME = owned_word(128)
_GENERATION = whole(0, 2**63 - 1)
_SERIAL = whole(0, 2**63 - 1)
_HEARTBEAT = or_zero(number(0.1, 3600))  # with a shorter one, a member that makes progress would be silent now and again


class ServiceName(Struct, frozen=True):
    name: Annotated[str, _NAME, "the name of the service and of its arena"]


class JoinService(Struct, frozen=True):
    id: Annotated[int, ID, "of the arena"]
    rank: Annotated[int, whole(0, MOST_RANK), "mpsd prefers the lowest"] = 0
    heartbeat_seconds: Annotated[
        float, _HEARTBEAT,
        "while you serve: you are taken for silent when the forward state that is kept for you stands still for so long; "
        "0: the owner's setting",
    ] = 0.0


class ServiceId(Struct, frozen=True):
    id: Annotated[int, ID, "of the arena"]


class FollowService(Struct, frozen=True):
    id: Annotated[int, ID, "of the arena"]
    after: Annotated[int | None, maybe(_SERIAL), "answer once `serial` is larger than that; nil: at once"] = None
    wait_seconds: Annotated[float, PATIENCE, "or when so much time has passed"] = 0.0


class ServiceTerm(Struct, frozen=True):
    id: Annotated[int, ID, "of the arena"]
    generation: Annotated[int, _GENERATION, "of the term that the call is about"]


class YieldedTerm(Struct, frozen=True):
    id: Annotated[int, ID, "of the arena"]
    generation: Annotated[int, _GENERATION, "of the term that the call is about"]
    state_generation: Annotated[
        int | None, maybe(_GENERATION), "of the record at your last barrier, if `is_moving` was told; nil: no move"
    ] = None
    sequence: Annotated[int, _SERIAL, "likewise"] = 0
    why_no_image: Annotated[
        str, text(0, 400), "of that barrier, which cancels the move; empty: there is one, or will be"
    ] = ""


class FailedMember(Struct, frozen=True):
    id: Annotated[int, ID, "of the arena"]
    why: Annotated[str, text(1, 400), "for people"]


class GetService(Struct, frozen=True):
    name: Annotated[str, _NAME, "of the service"]
    after: Annotated[int | None, maybe(_SERIAL), "answer once `revision` is larger than that; nil: at once"] = None
    wait_seconds: Annotated[float, PATIENCE, "or when so much time has passed"] = 0.0


class Handover(Struct, frozen=True):
    name: Annotated[str, _NAME, "of the service"]
    to_pid: Annotated[int | None, maybe(PID), "the member that is to serve; nil: the next"] = None
    wait_seconds: Annotated[float, PATIENCE, "how long you wait until it serves"] = 30.0
    from_pid: Annotated[
        int | None, maybe(PID), "the active, if it is to leave, whether or not a standby is ready; nil: it stays as a standby"
    ] = None


class MoveService(Struct, frozen=True):
    name: Annotated[str, _NAME, "of the service"]
    gpu: Annotated[str, GPU, "ordinal or UUID: where a member keeps a replica"]
    wait_seconds: Annotated[float, PATIENCE, "how long the replica may take to copy what the active changes"] = 600.0


class ChangeService(Struct, frozen=True):
    """nil keeps a value; 0 removes a reservation."""

    name: Annotated[str, _NAME, "of the service; its arena has to be there"]
    standbys: Annotated[int | None, maybe(whole(0, MOST_STANDBYS)), "how many members in addition to the active"] = None
    sm_percent: Annotated[float | None, maybe(number(0, 100)), "the share reserved for each; 0: none"] = None
    memory_bytes: Annotated[int | None, maybe(whole(0, 2**50)), "likewise; no more than the arena's GPU has"] = None
    heartbeat_seconds: Annotated[
        float | None, maybe(_HEARTBEAT),
        "one that serves is silent when its forward state stands still for so long; 0: never",
    ] = None
    until_done: Annotated[
        bool | None, maybe(boolean()),
        "one that serves and stops unasked (`service.yielded`, `service.leave`) has done the work: mpsd promotes no "
        "member then, until one joins, or this is changed. It ends with this mpsd",
    ] = None
    elastic: Annotated[
        Elasticity | None, maybe(choice(Elasticity)),
        "the share moves by need, among the owner's elastic services on the GPU; `sm_percent` is what it may claim then",
    ] = None


class KeepState(Struct, frozen=True):
    """Needs the descriptor of a forward state."""

    id: Annotated[int, ID, "of the arena"]
    generation: Annotated[int, _GENERATION, "yours, and the state's"]


class ReplicateService(Struct, frozen=True):
    id: Annotated[int, ID, "of the replica: an arena on another GPU, which you write"]
    generation: Annotated[int, _GENERATION, "yours"]
    of: Annotated[str, _NAME, "the name of the service"]
    at: Annotated[float | None, maybe(number(0, 1e12)), "the moment of the image that the replica has; nil: none yet"] = None
    state_generation: Annotated[int, _GENERATION, "of the record in that image; 0: it has none"] = 0
    sequence: Annotated[int, _SERIAL, "likewise"] = 0
    behind_bytes: Annotated[int, whole(0, 2**50), "what is still to be copied of a newer image"] = 0
    bound_seconds: Annotated[
        float, number(0.1, 86400), "mpsd publishes `service.behind` when the replica is older, and lacks publishes"
    ] = 60.0
    has_gpu_failed: Annotated[bool, boolean(), "as mpsd, perhaps an earlier one, answered last"] = False
    wait_seconds: Annotated[float, PATIENCE, "answer when the order changes, or when so much time has passed"] = 0.0
