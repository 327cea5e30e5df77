"""mpsd as a member of a service sees it: a socket that answers, with one instruction that a test can change; and an arena."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgpack
from mpsd_client import State, StateReader
from mpsd_client._session import Session
from mpsd_client._values import Instruction

FIELDS = {"step": "uint64", "name": "text[8]"}
WAIT = 10.0  # seconds that a test waits for what must come
HELLO = {
    "version": 1, "minor": 0, "program": "", "uid": 0, "pid": 1, "is_operator": False, "idle_seconds": 60.0,
    "datagram_bytes": 65536, "page": 100, "methods": [],
}  # fmt: skip


class FakeMpsd:
    """Answers in threads. Guarantees that every follower gets each change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changed = threading.Condition()
        self.now = Instruction(1, "standby", 0, "", 0, 0, None, "", is_moving=False)
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.kept: StateReader | None = None
        self.kept_fd = -1
        self.refusals: dict[str, tuple[int, str]] = {}
        self.may_keep = threading.Event()
        self.may_keep.set()
        self._peers: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self.start()

    def start(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.path))
        self._listener.listen(16)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        """End as if killed."""
        assert self._listener is not None
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink()
        with self.changed:
            peers, self._peers = self._peers, []
        for peer in peers:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.stop()
        if self.kept is not None:
            self.kept.close()
            os.close(self.kept_fd)

    # -- the test's side -------------------------------------------------------------------------------------

    def tell(self, order: str = "", **facts: Any) -> None:
        with self.changed:
            facts |= {"order": order} if order else {}
            self.now = replace(self.now, serial=self.now.serial + 1, **facts)
            self.changed.notify_all()

    def count(self, method: str) -> int:
        with self.changed:
            return [name for name, _ in self.said].count(method)

    def wait_for(self, method: str, count: int = 1) -> dict[str, Any]:
        """The parameters of this one, when it has come."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.count(method) >= count, WAIT), f"{method} was not said: {self.said}"
            return [params for name, params in self.said if name == method][count - 1]

    def wait_until_known(self) -> None:
        """How things are now is known: it was asked for what comes after that."""
        with self.changed:
            asked = "service.follow", self.now.serial
            found = self.changed.wait_for(lambda: asked in [(name, params.get("after")) for name, params in self.said], WAIT)
            assert found, f"nobody knows {self.now}: {self.said}"

    def keep(self, state: State) -> None:
        """Store a state as if another process had given it."""
        self._keep(os.dup(state.fd))

    def lose(self) -> None:
        """Lose the stored state."""
        assert self.kept is not None
        with self.changed:
            self.kept.close()
            os.close(self.kept_fd)
            self.kept = None
            self.tell(state_serial=0)

    # -- threads -------------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                peer, _ = listener.accept()
                with self.changed:
                    self._peers.append(peer)
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with suppress(OSError), peer:
            while True:
                data, fds, _, _ = socket.recv_fds(peer, 65536, 4)
                if not data:
                    return
                _, number, method, params = msgpack.unpackb(data)
                facts = params[0] if params else {}
                if method in self.refusals:
                    code, name = self.refusals[method]
                    packed = msgpack.packb([1, number, {"code": code, "name": name, "message": method}, None])
                    socket.send_fds(peer, [packed], [])
                    continue
                result, given = self._answer(method, facts, fds)
                try:
                    socket.send_fds(peer, [msgpack.packb([1, number, None, result])], given)
                finally:
                    for each in given:
                        os.close(each)

    def _answer(self, method: str, facts: dict[str, Any], fds: list[int]) -> tuple[Any, list[int]]:
        if method == "hello":
            return HELLO, []
        if method == "arena.keep_state":
            assert self.may_keep.wait(WAIT)
            self._keep(*fds)
        with self.changed:
            self.said.append((method, facts))
            self.changed.notify_all()
            if method == "service.follow":
                self.changed.wait_for(lambda: self.now.serial != facts["after"], facts["wait_seconds"])
            if method == "arena.keep_state":
                return {"state_serial": self.now.state_serial}, []
            if method == "arena.state":
                has = self.kept is not None
                found = {"state_serial": self.now.state_serial, "generation": self.now.generation}
                return found, [os.dup(self.kept_fd)] if has else []  # the next state closes kept_fd, in another thread
            if method == "service.enlist":
                return {"environment": {"MPSD_TEST_ENLISTED": facts["name"]}}, []
            instruction = {name: getattr(self.now, name) for name in Instruction.__slots__}
            return {} if method in ("service.serving", "service.failed", "service.leave") else instruction, []

    def _keep(self, fd: int) -> None:
        with self.changed:
            if self.kept is not None:
                self.kept.close()
                os.close(self.kept_fd)
            self.kept, self.kept_fd = StateReader.open(fd), fd
            self.now = replace(self.now, serial=self.now.serial + 1, state_serial=self.now.state_serial + 1)
            self.changed.notify_all()


@dataclass
class FakeArena:
    """Records what a service does with an arena, in order; its session is real."""

    name: str
    path: Path
    id: int = 7
    layout: bytes | None = b"weights"
    next_layout: bytes | None = None
    committed: int = 1
    done: list[str] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    trouble: BaseException | None = None
    refresh_trouble: BaseException | None = None
    yield_trouble: BaseException | None = None
    restore_trouble: BaseException | None = None
    restored: tuple[int, int] = (0, 0)  # generation, serial of the state
    used_bytes: int = 0
    generation: int = 0
    is_writable: bool = False
    is_unlocked: bool = False  # as a standby's memory is, that the GPU would let it write
    unlock_trouble: BaseException | None = None
    _is_rehearsing: bool = False

    def __post_init__(self) -> None:
        self._session = Session(self.path)

    def refresh(self) -> bool:
        self._do("refresh")
        if self.refresh_trouble is not None:
            raise self.refresh_trouble
        self.committed += 1
        self.is_unlocked = False
        has_changed, self.layout = self.layout != self.next_layout, self.next_layout
        return has_changed

    def _set_writable(self, is_writable: bool) -> bool:
        if self.unlock_trouble is not None:
            raise self.unlock_trouble
        before, self.is_unlocked = self.is_unlocked, is_writable
        return before

    @contextmanager
    def _rehearsal(self, writes: object) -> Iterator[None]:
        self._do(f"copies of {'all' if writes is None else writes}")
        self._is_rehearsing = True
        try:
            yield
        finally:
            self._is_rehearsing = False
            self.done.append("restored")

    def _promoted(self, generation: int) -> None:
        self._do(f"promoted {generation}")
        self.is_writable = True

    def _set_state(self, state: State) -> None:
        self.state = state

    def _restore(self) -> tuple[int, int]:
        if self.restore_trouble is not None:
            raise self.restore_trouble
        return self.restored

    def _yielded(self) -> None:
        self._do("yielded")
        if self.yield_trouble is not None:
            raise self.yield_trouble
        self.is_writable = False

    def close(self) -> None:
        self._do("close")
        self._session.close()

    def _do(self, what: str) -> None:
        self.done.append(what)
        self.threads.add(threading.current_thread().name)
        if self.trouble is not None:
            raise self.trouble


class Waiting:
    """A call in a thread of its own, and its outcome."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._call = call
        self.thread = threading.Thread(target=self._run, name="standby", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except Exception as exc:
            self.error = exc

    def get(self) -> Any:
        self.thread.join(WAIT)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.result
