"""The live page: one HTML file for people, and the facts that it shows, as JSON.

    /            live.html
    /state       mpsd, GPUs, domains, faults; with the token also clients, leases, queue, services, arenas, blame
    /fault?N     one fault with its evidence

The facts are answers of mpsd.sock's methods, so that its table decides who may read which fact: a reader without the token
counts as a user who owns nothing, a reader with the token as an operator.  The page calls only methods that change nothing.
docs/monitoring.md, "The page".
"""

import hmac
import ipaddress
import json
import os
import re
import stat
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import trio

from mpsd.api.authority import Peer
from mpsd.api.event_bus import Event, EventBus
from mpsd.config.value_checks import UNIX, parse_address
from mpsd.errors import MpsdError
from mpsd.metrics.http import HttpAnswer, Page, Visit
from mpsd.wire.plain import plain

Ask = Callable[[Peer, str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]

LEAST_TOKEN = 16  # characters
_MOST_TOKEN = 256
_MOST_EXACT = 2**53  # a larger number is another one in JavaScript
_ENTRIES = {"limit": 200}
_MOST_FAULTS = 50
ANYONE: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "status": ("status", {}),
    "health": ("health", {}),
    "devices": ("device.list", {}),
    "domains": ("domain.list", _ENTRIES),
}
OPERATORS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "clients": ("client.list", _ENTRIES),
    "leases": ("lease.list", _ENTRIES),
    "queue": ("queue.list", _ENTRIES),
    "services": ("service.list", _ENTRIES),
    "arenas": ("arena.list", _ENTRIES),
    "blame": ("blame.list", _ENTRIES),
}
_READER = Peer(0, -2, is_operator=False)  # no user has this uid; rows for no user have -1 (api/methods)
_OPERATOR = Peer(0, 0, is_operator=True)
_FILE = Path(__file__).with_name("live.html")
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


class LivePage:
    """Guards that facts go to readers who may have them, and that mpsd collects them once in reuse_seconds for all readers."""

    def __init__(
        self, ask: Ask, events: EventBus, listen: str, token: str, reuse_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._ask, self._token, self._reuse_seconds, self._clock = ask, token, reuse_seconds, clock
        self._door = _Door(listen)
        self._turn = trio.Lock()  # one collection, or one fault, at a time, and other tasks between two
        self._made: dict[bool, tuple[float, bytes]] = {}  # by is_operator
        self._faults: dict[bool, Mapping[str, Any]] = {}  # likewise; each is read from the disk, so only after events
        self._page = _static_page()
        events.listeners.append(self._hear)

    def pages(self) -> Mapping[str, Page]:
        return {"/": self._show, "/state": self._state, "/fault": self._fault}

    def guarded(self, page: Page) -> Page:
        """Return a page that every program may read, and no site through a browser."""

        async def show(visit: Visit) -> HttpAnswer:
            return self._strange_name(visit) or await page(visit)

        return show

    def _hear(self, event: Event) -> None:
        if event.topic.startswith("fault."):
            self._faults = {}

    async def _show(self, visit: Visit) -> HttpAnswer:
        return self._page

    async def _state(self, visit: Visit) -> HttpAnswer:
        peer = self._reader(visit)
        if isinstance(peer, HttpAnswer):
            return peer
        async with self._turn:
            until, body = self._made.get(peer.is_operator, (0.0, b""))
            if not body or self._clock() >= until:
                body = _json(await self._collect(peer))
                self._made[peer.is_operator] = self._clock() + self._reuse_seconds, body
        return HttpAnswer(200, body, "application/json")

    async def _collect(self, peer: Peer) -> Mapping[str, Any]:
        wanted = {**ANYONE, **(OPERATORS if peer.is_operator else {})}
        found: dict[str, Any] = {"is_operator": peer.is_operator, "time": time.time()}
        for name, (method, params) in wanted.items():
            found[name] = await self._ask(peer, method, params)
        found["faults"] = await self._last_faults(peer)
        return found

    async def _last_faults(self, peer: Peer) -> Mapping[str, Any]:
        """Return the last faults as one page; mpsd reads a few long ones at a time."""
        known = self._faults  # until the next event, which may come before all are read
        if peer.is_operator not in known:
            known[peer.is_operator] = await self._read_faults(peer)
        return known[peer.is_operator]

    async def _read_faults(self, peer: Peer) -> Mapping[str, Any]:
        items: list[Any] = []
        after = None
        while True:
            params = {"after": after, "limit": _MOST_FAULTS - len(items), "newest_first": True}
            page = await self._ask(peer, "fault.list", params)
            items += page["items"]
            after = page["next"]
            if after is None or len(items) == _MOST_FAULTS:
                return {"items": items, "next": after}
            await trio.lowlevel.checkpoint()

    async def _fault(self, visit: Visit) -> HttpAnswer:
        peer = self._reader(visit)
        if isinstance(peer, HttpAnswer):
            return peer
        if not re.fullmatch(r"[0-9]{1,15}", visit.query):
            return HttpAnswer(400, b"as /fault?7: the number of a fault\n")
        try:
            async with self._turn:
                found = await self._ask(peer, "fault.get", {"number": int(visit.query)})
        except MpsdError as exc:
            return HttpAnswer(404, f"{exc}\n".encode())
        return HttpAnswer(200, _json(found), "application/json")

    def _reader(self, visit: Visit) -> Peer | HttpAnswer:
        """Return who reads; or the refusal."""
        given = visit.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if given:
            if self._token and hmac.compare_digest(given.encode(), self._token.encode()):
                return _OPERATOR
            return HttpAnswer(401, b"this is not the token in metrics.token_file\n")
        if not self._door.is_local:
            why = "give the token" if self._token else "set metrics.token_file"
            return HttpAnswer(401, f"other machines reach this address: {why}\n".encode())
        return self._strange_name(visit) or _READER

    def _strange_name(self, visit: Visit) -> HttpAnswer | None:
        if self._door.is_local and not self._door.is_own_name(visit.headers.get("host", "")):
            return HttpAnswer(403, b"the Host header is no name of the loopback address, as localhost or 127.0.0.1\n")
        return None


class _Door:
    """The address: whether only programs of this machine reach it, and the names by which they do.

    A browser takes another host's name for the loopback address if that host's name server says so.  The script of that host
    could then read this page, so the name that the browser sends has to be one of the loopback address.
    """

    def __init__(self, listen: str) -> None:
        address = None if listen.startswith(UNIX) else parse_address(listen)
        self._is_tcp = address is not None
        self.is_local = address is None or ipaddress.ip_address(address[0]).is_loopback

    def is_own_name(self, host: str) -> bool:
        name = re.sub(r":[0-9]+$", "", host).strip("[]")
        if not self._is_tcp or name == "localhost":
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


def read_token(path: str) -> str:
    """Return the token in the file.  Raises OSError, and ValueError if it is not one, or if others may read it."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o077:
            raise ValueError("it is not a file of mode 0600 of root or of mpsd's user")
        token = file.read(_MOST_TOKEN + 2).decode(errors="replace").strip()
    if not (LEAST_TOKEN <= len(token) <= _MOST_TOKEN and token.isascii() and token.isprintable() and " " not in token):
        raise ValueError(f"it has no token of {LEAST_TOKEN} to {_MOST_TOKEN} characters without a blank")
    return token


def _static_page() -> HttpAnswer:
    """Return the page, with a policy that runs nothing but its own script and asks no other server."""
    text = _FILE.read_text(encoding="utf-8")
    hashes = {kind: f"'sha256-{b64encode(sha256(code.encode()).digest()).decode()}'" for kind, code in _INLINE.findall(text)}
    policy = (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return HttpAnswer(200, text.encode(), "text/html; charset=utf-8", (("Content-Security-Policy", policy),))


def _json(found: Mapping[str, Any]) -> bytes:
    return json.dumps(_exact(plain(found)), allow_nan=False, separators=(",", ":")).encode()


def _exact(value: Any) -> Any:
    """Write numbers that JavaScript would round in hexadecimal: they are addresses."""
    if isinstance(value, dict):
        return {name: _exact(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(each) for each in value]
    is_large = isinstance(value, int) and not isinstance(value, bool) and abs(value) > _MOST_EXACT
    return hex(value) if is_large else value
