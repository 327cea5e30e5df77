"""The minor version of the protocol that introduced each method and code.

What is not named here was in minor 0, or came with its method.  A change that adds something adds it here and raises
`messages.MINOR`, once for a release.  Parameters (params.py), fields of results (fields.py) and topics (api/topic_table.py)
declare theirs themselves.
"""

from collections.abc import Mapping

METHODS: Mapping[str, int] = {
    "client.stop": 1,
    "fault.list": 2,
    "fault.get": 2,
    "fault.report": 2,
    "fault.guards": 3,
    "blame.list": 2,
    "blame.pardon": 2,
    "arena.create": 3,
    "arena.get": 3,
    "arena.list": 3,
    "arena.open": 3,
    "arena.put": 3,
    "arena.drop": 3,
    "arena.commit": 3,
    "arena.take": 3,
    "arena.layout": 3,
    "arena.keep_state": 3,
    "arena.state": 3,
    "arena.close": 3,
    "arena.seal": 3,
    "arena.change": 3,
    "arena.remove": 3,
    "arena.make_room": 3,
    "service.enlist": 3,
    "service.join": 3,
    "service.ready": 3,
    "service.follow": 3,
    "service.serving": 3,
    "service.yielded": 3,
    "service.failed": 3,
    "service.leave": 3,
    "service.get": 3,
    "service.list": 3,
    "service.handover": 3,
    "service.change": 3,
    "service.replicate": 4,
    "service.move": 4,
}

CODES: Mapping[str, int] = {
    "NO_SUCH_FAULT": 2,
    "ARENA_BUSY": 3,
    "ARENA_SEALED": 3,
    "KEEPER_FAILED": 3,
    "NO_SUCH_ARENA": 3,
    "STALE_GENERATION": 3,
    "IDLE": 4,
}
