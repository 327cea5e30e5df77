"""client.stop."""

from collections.abc import Mapping
from typing import Any

from mpsd.api.call import Call
from mpsd.errors import BadRequest
from mpsd.model.stop import Asker, Manner, Stopped, Target, TargetKind
from mpsd.wire.fields import Map
from mpsd.wire.messages import StopClient
from mpsd.wire.plain import process_facts

_MOST_TOLD = 20  # processes that the audit names
_MOST_SHOWN = 150  # they fit into a datagram; processes that were not ended come first
_MOST_CHARACTERS = 200


async def stop(call: Call[StopClient]) -> Map:
    """End a process, or the clients in a cgroup or container, without harm to their co-runners."""
    ask, peer = call.ask, call.peer
    manner = Manner(ask.way, ask.grace_seconds, ask.drain_seconds, ask.force)
    asker = Asker(None if peer.is_operator else peer.uid, peer.pid, peer.bound)
    report = await call.services.stopper.stop(_target(ask), manner, asker)
    stopped = sorted(report.stopped, key=lambda each: each.has_ended)
    return {"count": len(stopped), "others": report.others, "processes": [_show(each) for each in stopped[:_MOST_SHOWN]]}


def told(result: Mapping[str, Any]) -> str:
    """Describe the result for the audit, process by process."""
    words = [f"{each['pid']} {'ended' if each['has_ended'] else 'left: ' + each['why']}" for each in result["processes"]]
    rest = [f"and {result['count'] - _MOST_TOLD} more"] if len(words) > _MOST_TOLD else []
    others = [f"{result['others']} of other users left"] if result["others"] else []
    return "; ".join([*words[:_MOST_TOLD], *rest, *others]) or "no process was found"


def _target(ask: StopClient) -> Target:
    """Return the target of the request.  Raises BadRequest."""
    given = {TargetKind.PID: ask.pid, TargetKind.CGROUP: ask.cgroup, TargetKind.CONTAINER: ask.container}
    targets = [Target(kind, str(value), ask.start_time) for kind, value in given.items() if value is not None]
    if len(targets) != 1:
        raise BadRequest(f"one of pid, cgroup and container is required; {len(targets)} were given")
    return targets[0]


def _show(of: Stopped) -> Map:
    return {
        **process_facts(of.process),
        "domain": of.domain,
        "steps": [step.value for step in of.steps],
        "has_ended": of.has_ended,
        "why": of.why[:_MOST_CHARACTERS] or None,
    }
