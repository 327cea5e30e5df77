"""The thread that asks mpsd for the frames of `top`: at once after an event, else each second, and anew after a restart.

A second thread waits for events on another connection, so that neither waits for the other.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from mpsd_client import Client, Disconnected, Event, Lease, Lost, ProtocolError, Refused, calls

from mpsctl.session import NoMpsd, Session
from mpsctl.top import frame as frames
from mpsctl.top.frame import Frame, History
from mpsctl.top.usage import UsageReader
from mpsctl.top.views import VIEWS, Listed, TopSession, View, prepare
from mpsctl.top.watch import MOST_CLIENTS, Watch

REFRESH_SECONDS = 1.0
PAUSE_SECONDS = 0.06  # least time between the beginnings of two refreshes: events come in groups
SHARE = 3  # of the time, mpsd has at most a third's work by one `top`: a busy mpsd is asked less often
_LOOKUPS = 40  # details of clients and leases that one frame may wait for
_MOST_EVENTS = 10_000
LOST = (NoMpsd, Disconnected, TimeoutError, ProtocolError)

Show = Callable[[Frame | Exception], None]


class Feed:
    """Guards that the screen never waits for mpsd: both threads only hand over what has arrived."""

    def __init__(self, session: Session, show: Show, usage: UsageReader) -> None:
        self._session, self._show, self._usage = session, show, usage
        self._view = VIEWS[0]
        self._wake = threading.Event()
        self._closed = False
        self._events: deque[Event | Lost] = deque(maxlen=_MOST_EVENTS)
        self._history = History()

    def start(self) -> None:
        threading.Thread(target=self._run, name="feed", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    def turn_to(self, view: View) -> None:
        self._view = view
        self._wake.set()

    def refresh(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            try:
                self._follow()
            except LOST as exc:
                self._show(exc)
                self._wait(REFRESH_SECONDS)

    def _follow(self) -> None:
        with TopSession(self._session.asked, self._session.out, self._session.connect) as session:
            events = session.new_connection()
            try:
                events.subscribe("*")
            except BaseException:
                events.close()
                raise
            threading.Thread(target=self._listen, args=(events,), name="events", daemon=True).start()
            try:
                self._refresh(_Gatherer(session, self._history, self._usage))
            finally:
                events.interrupt()

    def _refresh(self, gatherer: "_Gatherer") -> None:
        while not self._closed:
            began = time.monotonic()
            self._wake.clear()
            while self._events:
                gatherer.take(self._events.popleft())
            self._show(gatherer.gather(self._view))
            took = time.monotonic() - began
            if not gatherer.is_behind:
                self._wait(max(REFRESH_SECONDS, took * SHARE))
            self._pause(began + max(PAUSE_SECONDS, took * SHARE) - time.monotonic())

    def _wait(self, seconds: float) -> None:
        self._wake.wait(seconds)

    def _pause(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)

    def _listen(self, mpsd: Client) -> None:
        """Wake the other thread after each event, until the connection ends."""
        try:
            for event in mpsd.events():
                self._events.append(event)
                self._wake.set()
        except (*LOST, OSError):
            self._wake.set()
        finally:
            mpsd.close()


class _Gatherer:
    """Asks for one frame at a time, on one connection."""

    def __init__(self, session: TopSession, history: History, usage: UsageReader) -> None:
        self._session, self._history, self._usage = session, history, usage
        self._watch = Watch(session.mpsd, session)
        self._devices = tuple(session.all(calls.device_list()))
        self._leases: tuple[Lease, ...] | None = None
        usage.uuids = tuple(each.uuid for each in self._devices)

    @property
    def is_behind(self) -> bool:
        """Whether the last frame left out details, which the next one will have."""
        return self._watch.lookups < 0

    def take(self, event: Event | Lost) -> None:
        self._watch.take(event)
        if isinstance(event, Lost) or event.topic.startswith("lease."):
            self._leases = None

    def gather(self, view: View) -> Frame:
        session, use = self._session, self._usage.latest()
        if self._leases is None:
            self._leases = tuple(session.all(calls.lease_list(limit=1000)))
        now = session.out.surroundings.now()
        self._history.keep(now, use)
        gpus = frames.gpus(self._devices, self._leases, use, self._history)
        listed = Listed(session.out.surroundings, is_json=False)
        if view.name == "clients":
            self._watch.lookups = _LOOKUPS
            total = max((each.total_bytes for each in self._devices), default=0)
            listed.table(frames.client_columns(use, total), self._watch.look(MOST_CLIENTS).clients, "no clients")
        elif view.name == "GPUs":
            listed.table(frames.gpu_columns(), gpus, "no GPUs")
        else:
            _list(view, session, listed)
        return Frame(
            view=view.name, at=now, hello=session.mpsd.hello, status=session.ask(calls.status()),
            health=session.ask(calls.health()), use=use, gpus=gpus, columns=tuple(listed.columns),
            lines=frames.lines(listed.columns, listed.rows, view.key), empty=listed.empty,
        )  # fmt: skip


def _list(view: View, session: TopSession, listed: Listed) -> None:
    """Run the command of a view on this connection; a refusal is the text of the empty table."""
    command, asked = prepare(view.verb, view.asked)
    before = session.asked, session.out
    session.asked, session.out = asked, listed
    try:
        command.run(session)
    except Refused as exc:
        listed.table((), (), exc.message)
    finally:
        session.asked, session.out = before
