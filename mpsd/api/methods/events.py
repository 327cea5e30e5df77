"""events.subscribe and unsubscribe; faults.list."""

from functools import partial

from mpsd.api import topics
from mpsd.api.authority import Peer
from mpsd.api.call import Call, Listener, Rows
from mpsd.api.event_bus import Event, EventBus
from mpsd.wire.fields import Map
from mpsd.wire.messages import Nothing, Page, Subscribe

_NOBODY = -1  # the uid of no user


async def subscribe(call: Call[Subscribe]) -> Map:
    """Replace the connection's subscription; events still queued for the old one are dropped."""
    patterns = topics.parse_patterns(call.ask.topics)
    _drop(call.state.events, call.listener)
    most = call.state.max_queued_events()
    call.listener.subscription = call.state.events.subscribe(call.peer, most, patterns)
    return {"topics": sorted(set(call.ask.topics)), "queue": most}


async def unsubscribe(call: Call[Nothing]) -> Map:
    return {"lost": _drop(call.state.events, call.listener)}


def list_faults(call: Call[Page]) -> Rows[tuple[int, Event]]:
    """List the fault events.  Every user sees that a fault happened; facts that the topic table keeps back are left out."""
    entries = ((number, _owner(call.peer, event), (number, event)) for number, event in call.state.faults.all())
    return Rows(entries, partial(_show, call.peer))


def _owner(peer: Peer, event: Event) -> int | None:
    return None if topics.may_see(peer, event.topic, event.facts) else _NOBODY


def _show(peer: Peer, numbered: tuple[int, Event]) -> Map:
    number, event = numbered
    facts = event.facts if peer.is_operator else topics.public_facts(event.topic, event.facts)
    return {"id": number, "topic": event.topic, "time": event.time, "facts": dict(facts)}


def _drop(events: EventBus, listener: Listener) -> int:
    """End the subscription; return how many events it has lost, 0 without a subscription."""
    subscription, listener.subscription = listener.subscription, None
    if subscription is None:
        return 0
    events.unsubscribe(subscription)
    return subscription.lost
