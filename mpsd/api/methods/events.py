"""events.subscribe and unsubscribe."""

from mpsd.api import topics
from mpsd.api.call import Call, Listener
from mpsd.api.event_bus import EventBus
from mpsd.wire.fields import Map
from mpsd.wire.messages import Nothing, Subscribe


async def subscribe(call: Call[Subscribe]) -> Map:
    """Replace the connection's subscription; events still queued for the old one are dropped."""
    patterns = topics.parse_patterns(call.ask.topics)
    _drop(call.state.events, call.listener)
    most = call.state.max_queued_events()
    call.listener.subscription = call.state.events.subscribe(call.peer, most, patterns)
    return {"topics": sorted(set(call.ask.topics)), "queue": most}


async def unsubscribe(call: Call[Nothing]) -> Map:
    return {"lost": _drop(call.state.events, call.listener)}


def _drop(events: EventBus, listener: Listener) -> int:
    """End the subscription; return how many events it has lost, 0 without a subscription."""
    subscription, listener.subscription = listener.subscription, None
    if subscription is None:
        return 0
    events.unsubscribe(subscription)
    return subscription.lost
