"""mpsd's events about faults during a trial, received by a separate thread."""

import threading
import time
from dataclasses import dataclass

from mpsd_client import Client, Event, Lost, MpsdError, calls

from tests.gpu.comparison.system import System

_END_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Verdict:
    """mpsd's verdict on the culprit, and the time at which it was received."""

    number: int
    pid: int
    confidence: str
    heard_ns: int


class Listener:
    """Guards the list of events, which its thread fills until it is closed or mpsd goes."""

    def __init__(self, system: System, *topics: str) -> None:
        self._system = system
        self._client = Client(system.pipe / "mpsd.sock", program="compare")
        self._client.subscribe(*(topics or ("fault.*", "blame.*")))
        self._heard: list[tuple[int, Event]] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        try:
            while not self._is_closed:
                for event in self._client.events(timeout_seconds=_LOOK_SECONDS):
                    self._take(time.monotonic_ns(), event)
        except (MpsdError, OSError):
            return  # mpsd has gone, or we have closed

    def _take(self, heard_ns: int, event: Event | Lost) -> None:
        if isinstance(event, Event):
            with self._changed:
                self._heard.append((heard_ns, event))
                self._changed.notify_all()

    def events(self, topic: str, since_ns: int = 0) -> list[Event]:
        return [event for _, event in self.heard(since_ns) if event.topic == topic]

    def heard(self, since_ns: int) -> list[tuple[int, Event]]:
        """Return the events received after `since_ns`, and when."""
        with self._changed:
            return [(heard_ns, event) for heard_ns, event in self._heard if heard_ns >= since_ns]

    def first(self, topic: str, since_ns: int, seconds: float) -> tuple[int, Event] | None:
        """Return the first event of a topic received after `since_ns`, and when; None if none comes in time."""
        end = time.monotonic() + seconds
        with self._changed:
            while True:
                for heard_ns, event in self._heard:
                    if event.topic == topic and heard_ns >= since_ns:
                        return heard_ns, event
                if not self._changed.wait(max(0.0, end - time.monotonic())):
                    return None

    def verdict_on(self, number: int) -> Verdict | None:
        """Return the last culprit of an incident that was published."""
        found = None
        with self._changed:
            for heard_ns, event in self._heard:
                if event.topic == "fault.culprit" and event.facts["number"] == number:
                    found = Verdict(number, int(event.facts["culprit"]["pid"]), str(event.facts["confidence"]), heard_ns)
        return found

    def culprit_since(self, since_ns: int, seconds: float) -> Verdict | None:
        """Return the first incident with a culprit published after `since_ns`; None if none comes in time."""
        found = self.first("fault.culprit", since_ns, seconds)
        if found is None:
            return None
        heard_ns, facts = found[0], found[1].facts
        return Verdict(int(facts["number"]), int(facts["culprit"]["pid"]), str(facts["confidence"]), heard_ns)

    def wait_for_spare(self, seconds: float) -> bool:
        """True once a domain has a started server and no clients."""
        end = time.monotonic() + seconds
        with Client(self._system.pipe / "mpsd.sock", program="compare") as mpsd:
            while time.monotonic() < end:
                domains = mpsd.ask(calls.domain_list()).items
                if any(each.state == "ready" and not each.clients and each.servers for each in domains):
                    return True
                time.sleep(_POLL_SECONDS)
        return False

    def dump_variables(self) -> dict[str, str]:
        """What a client is started with to write core dumps where mpsd reads them."""
        from mpsd.faults.sources.core_dumps import environment

        return environment(self._system.pipe / "cores")

    def close(self) -> None:
        self._is_closed = True
        self._thread.join(_END_SECONDS)
        self._client.close()
