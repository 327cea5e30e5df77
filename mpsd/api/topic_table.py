"""Every topic of events: its meaning and its facts.

protocol_page.py generates the table of topics in docs/protocol.md from this one.  No client can subscribe to a topic that is
not here.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Topic(NamedTuple):
    """A topic, in the words of the page."""

    what: str
    facts: str


TOPICS: Mapping[str, Topic] = {
    "lease.created": Topic("a lease was made", "`lease_id`, `owner_uid`, `name`, `state`, `expires_at`, `for_all_users`"),
    "lease.queued": Topic("it does not fit yet", "the same, and `reason`"),
    "lease.activated": Topic("it was queued, and now it fits", "as of created"),
    "lease.renewed": Topic("it lasts longer", "as of created"),
    "lease.released": Topic("it was given back, or its process has ended (then `reason`)", "as of created"),
    "lease.expired": Topic("its time is over", "as of created"),
    "lease.refused": Topic("it was queued for its `wait_seconds`, and is removed", "as of created, and `reason`"),
    "client.queued": Topic("a client waits", "`pid`, `start_time`, `uid`, `lease_id`, `reason`"),
    "client.admitted": Topic(
        "a client may run",
        "`pid`, `start_time`, `uid`, `lease_id`, `sm_percent`, `memory_bytes`, `rule`",
    ),
    "client.refused": Topic("a client may not run", "`pid`, `start_time`, `uid`, `way` (wait, error or end), `why`"),
    "client.stranger": Topic("a vendor server lists a client that mpsd did not let in", "`pid`, `uid`, `domain`"),
    "client.stopped": Topic("a client is stopped, and its server waits for it: its domain stands still", "the same"),
    "client.left": Topic("a client has ended", "`pid`, `start_time`, `uid`, `lease_id`"),
    "domain.starting": Topic(
        "the domain begins in this state, or enters it",
        "`domain`, `was` (its state before, or nil), `gpus`, `clients`",
    ),
    "domain.ready": Topic("it takes clients", "the same"),
    "domain.fault": Topic("a fatal GPU error; it takes no new client until its own have ended", "the same"),
    "domain.contained": Topic("an SM exception was contained; its clients continue, and it takes no other",
                              "the same, and `ends_at`, when mpsd ends those that are left, or nil"),
    "domain.silent": Topic("its vendor daemon does not answer", "the same"),
    "domain.recycling": Topic("its servers are being replaced", "the same"),
    "domain.draining": Topic("it is being emptied", "the same"),
    "domain.stopping": Topic("mpsd ends it", "the same"),
    "domain.dead": Topic("its vendor daemon died; it is started again", "the same"),
    "domain.gone": Topic("it no longer exists", "`domain`, `was`"),
    "fault.xid": Topic(
        "the kernel log reports a GPU error",
        "`xid` (NVIDIA's number), `device`, `gpu` (its UUID, or empty), `domain` or nil; for operators `pid`, which "
        "may be an innocent client's",
    ),
    "fault.opened": Topic("the first sign of a fault", "as of an entry of `fault.list`"),
    "fault.culprit": Topic("the culprit is known: the earliest moment to act", "the same"),
    "fault.settled": Topic("nothing more is expected", "the same"),
    "gpu.drained": Topic(
        "a GPU takes no new clients, because it failed",
        "`gpu`, `number` (of the fault), `xids` (numbers)",
    ),
    "gpu.restored": Topic("a GPU that was drained takes clients again: it was pardoned", "`gpu`"),
    "blame.suspected": Topic(
        "suspects of a fault are placed apart",
        "`case` (the number of the fault), `groups` (arrays of keys)",
    ),
    "blame.convicted": Topic(
        "a key is convicted, and in quarantine",
        "`key`, `number` (of the fault), `times`, `until`",
    ),
    "blame.cleared": Topic("suspects are innocent of a fault", "`case`, `keys`, `why`"),
    "blame.released": Topic("a key's quarantine or suspicion has ended", "`key`, `why`"),
    "arena.created": Topic("an arena was made", "`id`, `name`, `owner_uid`, `owner_gid`, `mode`, `gpu`, `capacity_bytes`"),
    "arena.opened": Topic(
        "a process has opened it; or its service has made a holder its writer, or no longer its writer",
        "the first six, and `access`, `generation`, `pid`",
    ),
    "arena.committed": Topic("pending puts and drops were committed", "the first six, and `generation`, `allocations`"),
    "arena.fenced": Topic(
        "a process that had it open has ended, and so has all its work on the GPU",
        "the first six, and `pid`, `was_writer`, `seconds` (how long that took)",
    ),
    "arena.sealed": Topic("it cannot be changed any more", "the first six, and `generation`"),
    "arena.closed": Topic("a process has closed it", "the first six, and `pid`"),
    "arena.expired": Topic(
        "it was without a holder for its `ttl_seconds`, and is removed",
        "the first six, and `freed_bytes`",
    ),
    "arena.evicted": Topic("mpsd has removed it to make room for others", "the same"),
    "arena.removed": Topic("it was removed", "the same"),
    "arena.lost": Topic(
        "a keeper has ended, and its descriptors of this memory with it; a writer that lives may give it again",
        "the first six, and `lost_bytes`",
    ),
    "service.joined": Topic("a process has become a member", "`id`, `name`, `owner_uid`, `pid`, `domain`, `rank`"),
    "service.ready": Topic("a member is ready to take over", "the first three, and `pid`"),
    "service.left": Topic("a member has left, or its process has ended", "the same"),
    "service.silent": Topic(
        "a member asks mpsd no more; or it serves, and its forward state stands still",
        "the same",
    ),
    "service.failed": Topic("a member reports that it cannot take over, or continue", "the same, and `why`"),
    "service.yielding": Topic("mpsd has asked the active to yield", "the first three, and `pid`"),
    "service.kept": Topic("the active continues, since no other member is ready", "the same"),
    "service.fencing": Topic("mpsd is ending the active", "the same"),
    "service.fenced": Topic("the last active can no longer write", "the same, and `why`: by a fault, or by its own end"),
    "service.promoting": Topic("a member was promoted", "the first three, and `from_pid` (or nil), `to_pid`, `cause`"),
    "service.promoted": Topic(
        "the promoted member serves",
        "the same, and `generation`, `detect_ms`, `fence_ms`, `promote_ms`: as of `last` in `service.get`",
    ),
    "service.unserved": Topic(
        "no member serves, and mpsd promotes none now; published again when the reason changes", "the first three, and `why`"),
    "service.unprotected": Topic(
        "the active and its standbys are in one fault domain; or the vault has lost the memory, and the active "
        "has not given it again",
        "the same",
    ),
    "service.share": Topic(
        "an elastic service was dealt another share; its starter will move it",
        "the first three, and `from_percent`, `to_percent`, `busy`, `level`, `why`: as of `share` in `service.get`",
    ),
    "service.behind": Topic(
        "the replica on another GPU is older than its bound, and lacks publishes of the active",
        "the first three, and `pid` of its process, `seconds` (nil: it has no image yet), `steps` (nil: not known), `bytes`, "
        "`bound`",
    ),
    "service.unreplicated": Topic("the process that keeps the replica has ended", "the first three, and `pid`"),
    "service.moving": Topic(
        "a move to another GPU has begun", "the first three, and `from_gpu`, `to_gpu`, `from_pid`, `to_pid`"),
    "service.unmoved": Topic(
        "the move is cancelled, and a member on the first GPU serves on; if the replica had the service's name already, the "
        "next member makes the arena of the newest image",
        "the first three, and `from_gpu`, `to_gpu`, `why`",
    ),
    "service.moved": Topic(
        "the replica serves in place of the arena on another GPU: that one failed, or a move was asked for",
        "the first three, and `from_gpu`, `to_gpu`, `pid`, `at`: the moment of the image, `steps`: publishes that are lost at "
        "most (nil: not known), `bound`: of the replica's age, in seconds, `why`",
    ),
    "service.lost": Topic(
        "a member was promoted, and begins anew or with its newest image: the vault and the process that served have both "
        "ended, and with them the memory and the forward state of the arena",
        "the first three, and `pid`, `generation`, `why`, `losses`: as of `lost` and `losses` in `service.get`",
    ),
}
