"""The event bus: publishes events to subscribers, each with a bounded queue.

A full queue drops further events, counts them, and reports the number at the place where they are missing; a publisher never
waits.  topics.py decides which subscriber gets which facts.  Prose: docs/protocol.md, "Events".
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import structlog
from msgspec import Struct, field

from mpsd.api import topics
from mpsd.api.authority import Peer
from mpsd.api.topic_table import TOPICS
from mpsd.errors import ProtocolError
from mpsd.notify import Changed
from mpsd.wire.plain import plain
from mpsd.wire.rpc import Notification, encode

log = structlog.get_logger()


class Event(Struct, frozen=True, dict=True):
    """One event, encoded once for all subscribers that get the same facts."""

    topic: str
    time: float
    facts: Mapping[str, Any]

    @cached_property
    def full(self) -> bytes:
        return self._encode(self.facts)

    @cached_property
    def public(self) -> bytes:
        return self._encode(topics.public_facts(self.topic, self.facts))

    def _encode(self, facts: Mapping[str, Any]) -> bytes:
        shown = {"topic": self.topic, "time": self.time, "facts": facts}
        try:
            return encode(Notification("event", shown))
        except ProtocolError as exc:
            log.error("api.event_too_large", topic=self.topic, why=str(exc))
            return encode(Notification("event", shown | {"facts": {}}))


class Subscription(Struct, eq=False):
    """Guards that at most `most` events wait, and that a count of lost events stands in their place."""

    peer: Peer
    most: int
    patterns: topics.Patterns
    lost: int = 0
    is_over: bool = False
    _queue: deque[bytes | int] = field(default_factory=deque)  # a number stands for so many lost events
    _changed: Changed = field(default_factory=Changed)

    def offer(self, event: Event) -> None:
        if not self.patterns.match(event.topic) or not topics.may_see(self.peer, event.topic, event.facts):
            return
        if len(self._queue) < self.most:
            self._queue.append(event.full if self.peer.is_operator else event.public)
            self._changed.notify()
            return
        self.lost += 1
        last = self._queue[-1]
        if isinstance(last, int):
            self._queue[-1] = last + 1
        else:
            self._queue.append(1)

    def take_now(self) -> bytes | None:
        """Return the next datagram to send, None if the queue is empty."""
        if self.is_over or not self._queue:
            return None
        first = self._queue.popleft()
        return first if isinstance(first, bytes) else encode(Notification("events.lost", {"count": first}))

    async def changed(self) -> None:
        """Wait until an event is queued, or the subscription is over."""
        while not (self._queue or self.is_over):
            await self._changed.wait()  # for ever: nothing may happen

    def end(self) -> None:
        self.is_over = True
        self._changed.notify()


class EventBus:
    """Guards that an event reaches all subscribers that asked for it and may see it.  Used only from the trio thread."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._subscriptions: set[Subscription] = set()
        self._lost_by_gone = 0
        self.listeners: list[Callable[[Event], None]] = []  # within mpsd; called at once for every event

    @property
    def subscribers(self) -> int:
        return len(self._subscriptions)

    @property
    def lost(self) -> int:
        """The number of events that slow subscribers have lost since the start."""
        return self._lost_by_gone + sum(each.lost for each in self._subscriptions)

    def publish(self, topic: str, facts: Mapping[str, Any]) -> None:
        """Queue the event for its subscribers; never wait and never raise."""
        if topic not in TOPICS:
            log.error("topics.bug", topic=topic)  # no client could subscribe to it by name
        event = Event(topic, self._clock(), plain(facts))
        for listener in self.listeners:
            listener(event)
        for subscription in self._subscriptions:
            subscription.offer(event)

    def subscribe(self, peer: Peer, most: int, patterns: topics.Patterns) -> Subscription:
        made = Subscription(peer, most, patterns)
        self._subscriptions.add(made)
        return made

    def unsubscribe(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
            self._lost_by_gone += subscription.lost
            subscription.end()
