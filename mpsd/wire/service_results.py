"""The results about services."""

from mpsd.model.service import (
    Cause,
    Elasticity,
    Instruction,
    MemberState,
    MemberView,
    MoveState,
    Phase,
    ReplicaOrder,
    ServiceView,
)
from mpsd.wire.fields import BOOLEAN, NUMBER, TEXT, TIME, UUID, WHOLE, Field, Kind, Map, Result, array, choice, maybe, record
from mpsd.wire.plain import process_facts

ENLISTED = Result(
    "Enlisted", "A process that was enlisted.",
    Field("environment", Kind("map of text", {"type": "object"}, "Mapping[str, str]"),
          "variables that have to be set before CUDA begins; empty where mpsd places clients itself"),
)  # fmt: skip

INSTRUCTION = Result(
    "Instruction", "The current order to a member.",
    Field("serial", WHOLE, "of the member's task; grows with each change, also across restarts of mpsd"),
    Field("order", TEXT, '"standby": keep warm; "serve": you are the writer of `generation`; "yield": stop writing and report '
          'it; "leave": you have to end'),
    Field("generation", WHOLE, "of the member's term with serve and yield, else the arena's"),
    Field("layout_hash", TEXT, "the arena's"),
    Field("commit", WHOLE, "the number of the arena's last commit: take what is new (`arena.open` with `takes` and `known`) "
          "before you serve"),
    Field("state_serial", WHOLE, "of the forward state that is kept with the arena; 0: none is"),
    Field("writer_pid", maybe(WHOLE), "the writer of the arena"),
    Field("why", TEXT, "of the order, for people"),
    Field("is_moving", BOOLEAN, "the service moves to another GPU: take images without a pause; with yield take a last one, "
          "and report its record"),
)  # fmt: skip

SETTINGS = Result(
    "ServiceSettings", "The settings of a service.",
    Field("standbys", WHOLE, "their number, without the active"),
    Field("sm_percent", maybe(NUMBER), "the starter's reservation for each member; nil: none"),
    Field("memory_bytes", maybe(WHOLE), "likewise"),
    Field("heartbeat_seconds", NUMBER, "mpsd treats an active as silent after this time without a publish; 0: never"),
    Field("until_done", BOOLEAN, "mpsd promotes no standby after an active that stops unasked: it has done the work"),
    Field("elastic", choice(Elasticity), "whether its share moves by need, and its level at first"),
)  # fmt: skip

MEMBER = Result(
    "Member", "A process of a service.",
    Field("pid", WHOLE),
    Field("start_time", WHOLE),
    Field("domain", TEXT, "empty: not known"),
    Field("rank", WHOLE),
    Field("standing", choice(MemberState)),
    Field("is_writer", BOOLEAN),
    Field("is_apart", BOOLEAN, "no other member is in its domain"),
    Field("since_at", TIME, "when it joined"),
)  # fmt: skip

PROMOTION = Result(
    "Promotion", "A promotion.",
    Field("at", TIME),
    Field("cause", choice(Cause)),
    Field("from_pid", maybe(WHOLE)),
    Field("to_pid", WHOLE),
    Field("generation", WHOLE),
    Field("detect_ms", maybe(NUMBER), "from the cause to mpsd's decision; nil: not known"),
    Field("fence_ms", maybe(NUMBER), "until the previous active was fenced; nil: not known, or not needed"),
    Field("promote_ms", maybe(NUMBER), "until the new active reported that it serves; nil: likewise"),
)  # fmt: skip

LOSS = Result(
    "Loss", "A loss of a service's memory and forward state.",
    Field("at", TIME),
    Field("generation", WHOLE),
    Field("pid", WHOLE, "of the member that began anew"),
    Field("why", TEXT),
)  # fmt: skip

SHARE = Result(
    "ServiceShare", "The share of an elastic service.",
    Field("sm_percent", NUMBER, "dealt now: the starter's reservation for each member, in place of that of `settings`"),
    Field("busy", maybe(NUMBER), "the fraction of its time in which the active worked lately; nil: not known"),
    Field("level", TEXT, '"interactive" or "batch": the present one'),
    Field("why", TEXT, "the last decision, for people"),
    Field("moved_at", TIME, "when the share was last changed; 0: not since mpsd was started"),
    Field("moves", WHOLE, "since mpsd was started"),
)  # fmt: skip

REPLICA = Result(
    "Replica", "A copy of a service's arena on another GPU.",
    Field("arena", TEXT, "its name"),
    Field("gpu", UUID),
    Field("pid", WHOLE, "the process that keeps it, and that would serve"),
    Field("at", maybe(TIME), "the moment of the image that it has; nil: none yet"),
    Field("steps", maybe(WHOLE), "how often the active has published since; nil: not known"),
    Field("behind_bytes", WHOLE, "what it has still to copy of a newer image"),
    Field("bound_seconds", NUMBER, "the age from which on it is too far behind"),
    Field("is_behind", BOOLEAN, "it is"),
)  # fmt: skip

REPLICA_ORDER = Result(
    "ReplicaOrder", "The current order to the process that keeps a replica.",
    Field("order", TEXT, '"standby": follow; "serve": your arena has the name of the service now; complete it, and join'),
    Field("generation", WHOLE, "yours; with serve a later one than before"),
    Field("why", TEXT, "for people"),
    Field("steps", maybe(WHOLE), "how often the active has published after the record of the replica; nil: not known"),
    Field("has_gpu_failed", BOOLEAN, "the GPU of the service has: say so in your next call, as a later mpsd does not know"),
    Field("is_moving", BOOLEAN, "the service moves to you: look for images often; with `serve`: you have its last barrier"),
)  # fmt: skip

MOVE = Result(
    "Move", "A move of a service to another GPU.",
    Field("state", choice(MoveState), "copying: the active serves, and images follow each other; yielding: it was asked for "
          "its last barrier; handing: it has stopped, and the replica takes that barrier over, and serves"),
    Field("from_gpu", UUID),
    Field("to_gpu", UUID),
    Field("from_pid", WHOLE, "the active that stops"),
    Field("to_pid", WHOLE, "the process that keeps the replica"),
    Field("began_at", TIME),
    Field("rounds", WHOLE, "images that the replica has copied since"),
    Field("steps", maybe(WHOLE), "how often the active has published after the record of the replica; nil: not known"),
    Field("behind_bytes", WHOLE, "what the replica has still to copy of an image"),
    Field("seconds", NUMBER, "since it began, or until it was over"),
    Field("pause_ms", maybe(NUMBER), "from the last barrier until the new active reported that it serves; nil: not so far"),
    Field("why", TEXT, "it was cancelled"),
)  # fmt: skip

SERVICE = Result(
    "Service", "An arena with processes that can serve it.",
    Field("id", WHOLE, "the arena's"),
    Field("name", TEXT, "likewise"),
    Field("owner_uid", WHOLE, "likewise"),
    Field("gpu", UUID, "likewise"),
    Field("phase", choice(Phase), "idle: no member serves; promoting: a member is to begin; yielding: the writer was asked to "
          "yield; fencing: mpsd ends it; moving: it has stopped, and the replica on another GPU is to serve"),
    Field("generation", WHOLE, "of the arena"),
    Field("writer_pid", maybe(WHOLE), "the writer, also while mpsd fences it"),
    Field("revision", WHOLE, "grows with each change of what is here"),
    Field("settings", record(SETTINGS), "`service.change`"),
    Field("members", array(MEMBER)),
    Field("promotions", WHOLE, "since mpsd was started"),
    Field("last", maybe(record(PROMOTION)), "the last of them"),
    Field("protection", TEXT, 'empty, or why a fault would interrupt the service for longer; "no member serves: " and why, if '
          "no member serves"),
    Field("losses", WHOLE, "how often a member had to begin anew since mpsd was started, with neither memory nor a forward "
          "state"),
    Field("lost", maybe(record(LOSS)), "the last of them"),
    Field("share", maybe(record(SHARE)), "nil: it is not elastic"),
    Field("replica", maybe(record(REPLICA)), "the one that is behind least; its changes change no `revision`"),
    Field("move", maybe(record(MOVE)), "the last one since mpsd was started; `steps`, `behind_bytes` and `seconds` change no "
          "`revision`"),
)  # fmt: skip

HANDED_OVER = Result(
    "HandedOver", "A handover.",
    Field("from_pid", WHOLE, "the previous active"),
    Field("to_pid", maybe(WHOLE), "the new active; nil: the active has left, and no standby was ready"),
    Field("seconds", NUMBER, "how long it took"),
)  # fmt: skip


def instruction(of: Instruction) -> Map:
    return INSTRUCTION.of(of, writer_pid=of.writer.pid if of.writer else None)


def service(of: ServiceView) -> Map:
    members = [_member(each) for each in of.members]
    replica = None if of.replica is None else REPLICA.of(of.replica, pid=of.replica.process.pid)
    return SERVICE.of(of, writer_pid=of.writer.pid if of.writer else None, members=members, replica=replica)


def replica_order(of: ReplicaOrder) -> Map:
    return REPLICA_ORDER.of(of)


def _member(of: MemberView) -> Map:
    return MEMBER.of(of, **process_facts(of.process))
