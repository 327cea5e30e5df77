"""A service: an arena with processes that can serve it, of which one does, and the others stand by with everything in place.

    service = Service("llm", capacity=8 << 30, schema={"step": "uint64"})      # before CUDA begins in this process
    arena = service.open()                                                     # mapped to read
    ...                                                                        # build or adopt; warm up
    with service.active() as term:                                             # waits until it is this process's turn
        while not term.is_over:
            ...                                                                # a step, and the GPU has finished it
            term.publish(step=step)

Prose: mpsd's docs/services.md, "In Python".
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TypeVar

from mpsd_client import _calls as calls
from mpsd_client import _cuda
from mpsd_client._arena import Arena, Path
from mpsd_client._client import Client
from mpsd_client._enlisting import enlist
from mpsd_client._errors import Dismissed, ErrorCode, MpsdError, Refused
from mpsd_client._following import LEAVE, STANDBY, Following, Told, dismissed
from mpsd_client._place import socket_path
from mpsd_client._record import Schema
from mpsd_client._state import State
from mpsd_client._term import Term
from mpsd_client._values import Instruction

AGAIN_SECONDS = 0.5  # until memory is mapped that could not be
_PASSING = (ErrorCode.STOPPING, ErrorCode.KEEPER_FAILED, ErrorCode.TOO_MANY)
OnCommit = TypeVar("OnCommit", bound=Callable[[Arena], object])
OnPromote = TypeVar("OnPromote", bound=Callable[[Term], object])
_services: "weakref.WeakSet[Service]" = weakref.WeakSet()  # of this process, that are or were open


class Service:
    """This process as a member of a service.  One for each process and service, made before CUDA begins in it: mpsd then places
    the process where no other member is, so that one fault does not hit two.

    name: the arena's.  capacity: bytes, for whoever comes first and makes the arena.  schema: of the forward state, as
    State.create takes it.  rank: who comes first, the lowest.  heartbeat: seconds after which an active that has published
    nothing is taken for lost; 0: never.  gpu: as mpsd counts, or a UUID; None: that of the current context.  window, mode, ttl,
    path: as for Arena.create.

    Any thread may use it; `standby` is one thread's at a time.  In a child after fork it refuses.

    Raises RuntimeError: CUDA has begun already; ValueError: no schema; Refused; OSError: there is no mpsd.
    """

    def __init__(
        self,
        name: str,
        *,
        capacity: int,
        schema: Schema | Mapping[str, str],
        rank: int = 0,
        heartbeat: float = 0.0,
        gpu: str | int | None = None,
        window: int = 0,
        mode: int = 0o600,
        ttl: float = 0.0,
        path: Path = None,
    ) -> None:
        self.name, self.capacity, self.rank, self.heartbeat = name, capacity, rank, heartbeat
        self.schema = schema if isinstance(schema, Schema) else Schema.of(schema)
        self._gpu, self._window, self._mode, self._ttl = gpu, window, mode, ttl
        self._path = socket_path(path)  # now: to enlist may change the directory that CUDA looks into
        self._pid = os.getpid()
        self._lock = threading.RLock()  # protects what is below
        self._waiting = threading.Lock()  # held by the thread within standby(); never taken with _lock held
        self._arena: Arena | None = None
        self._following: Following | None = None
        self._term: Term | None = None
        self._is_closed = False
        self._on_commit: list[Callable[[Arena], object]] = []
        self._on_promote: list[Callable[[Term], object]] = []
        enlist(name, self._path)

    def open(self) -> Arena:
        """The arena, mapped to read, made if it is not there; and this process is a member.  A context must be current.

        Then adopt what there is, warm up, and call `standby`.  `arena.layout` None: nobody has built it yet, and whoever finds
        that in its term does so.
        """
        self._check()
        with self._lock:
            if self._arena is None:
                State.create(self.schema, generation=1).close()  # what cannot be is found out now, and the next one is faster
                arena = self._open_arena()
                following = Following(self._path, arena, self.rank, self.heartbeat)
                try:
                    following.start()
                except BaseException:
                    arena.close()
                    raise
                self._arena, self._following = arena, following
                _services.add(self)
            return self._arena

    def on_commit(self, call: OnCommit) -> OnCommit:
        """Called with the arena, in the thread of `standby`, when the active has committed other memory, or another layout, and
        that is mapped: adopt again, and warm up what needs it."""
        self._on_commit.append(call)
        return call

    def on_promote(self, call: OnPromote) -> OnPromote:
        """Called with the term, in the thread of `standby`, before that returns."""
        self._on_promote.append(call)
        return call

    def standby(self, timeout: float | None = None) -> Term | None:
        """Says that this process is warm, and waits until it shall serve: then its term, in which the arena may be written.

        From here on the GPU lets this process write the arena, so that a promotion waits for no driver that clears up after a
        fault: other threads must not.

        timeout: seconds, then None; this process stays a standby, whose promotion waits until this is called again.  None: for
        ever.  It may run in a thread of its own, with a context that is current there.

        Raises Dismissed: this process was told to leave; StateError: what the one before has published is damaged; and what
        callbacks raise.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._check()
        with self._lock:
            arena, following = self._arena, self._following
            if arena is None or following is None:
                raise RuntimeError(f"service {self.name} is not open")
            if self._term is not None or not self._waiting.acquire(blocking=False):
                raise RuntimeError(f"service {self.name}: this process serves, or waits for that, already")
        try:
            return self._wait(arena, following, deadline)
        finally:
            self._waiting.release()

    def active(self, timeout: float | None = None) -> Term:
        """The same as `standby`, but at the end of the time TimeoutError: `with service.active() as term`."""
        term = self.standby(timeout)
        if term is None:
            raise TimeoutError(f"service {self.name}: it was not this process's turn within {timeout:g} seconds")
        return term

    def close(self) -> None:
        """Yields if it serves, leaves, closes the arena; twice does nothing.  The GPU must be done with the arena's memory.

        Raises BufferError: somebody still has memory of it; all else is done then, but where this process could not yield
        mpsd waits for its end.
        """
        if self._pid != os.getpid():  # after fork: nobody waits for a lock here that a thread of the parent's held
            if self._arena is not None:
                self._arena.close()
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            arena, following, term = self._arena, self._following, self._term
        if term is not None and arena is not None and not term.is_dismissed:
            with suppress(MpsdError, OSError):
                self._yield(term)
        if following is not None and arena is not None:
            following.stop(has_stopped=not arena.is_writable)  # else mpsd is told when nothing is mapped any more
        if term is not None:
            term.end("the service was closed")
        if arena is not None:
            arena.close()

    def __enter__(self) -> "Service":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it; beside an exception in flight, whose frames may hold tensors, without a word about those."""
        try:
            self.close()
        except (BufferError, MpsdError):
            if error is None:
                raise

    # -- to open -----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(f"service {self.name} is that of the process before fork: a child makes its own")
        if self._is_closed:
            raise RuntimeError(f"service {self.name} is closed")

    def _open_arena(self) -> Arena:
        """Whoever is first makes it; all, the first too, open it to read."""
        refused: Refused | None = None
        for _ in range(2):
            try:
                return Arena.read(self.name, path=self._path)
            except Refused as exc:
                if exc.code != ErrorCode.NO_SUCH_ARENA:
                    raise
                if refused is not None:
                    raise refused from None
            refused = self._create_arena()
        return Arena.read(self.name, path=self._path)

    def _create_arena(self) -> Refused | None:
        """BAD_REQUEST, which may mean that somebody was faster."""
        gpu = _cuda.current_gpu() if self._gpu is None else str(self._gpu)
        asked = calls.arena_create(
            self.name,
            gpu,
            self.capacity,
            window_bytes=self._window or None,
            mode=self._mode,
            ttl_seconds=self._ttl or None,
        )
        try:
            with Client(self._path, program="mpsd_client") as mpsd:
                mpsd.ask(asked)
        except Refused as exc:
            if exc.code != ErrorCode.BAD_REQUEST:
                raise
            return exc
        return None

    # -- to wait -----------------------------------------------------------------------------------------------------

    def _wait(self, arena: Arena, following: Following, deadline: float | None) -> Term | None:
        is_ready = False
        while True:
            told = following.told
            if self._is_closed or told.what.order == LEAVE:
                raise dismissed(told) if not self._is_closed else Dismissed(f"service {self.name} was closed")
            if told.what.commit > arena.committed and not _is_emptied(told.what):
                if not self._refresh(arena):
                    following.wait(told, time.monotonic() + AGAIN_SECONDS)
                    if deadline is not None and time.monotonic() >= deadline:
                        return None
                continue
            if following.is_to_serve(told.what) and told.what.generation >= arena.generation:  # else it was refreshed since
                return self._promote(arena, following, told)
            if arena.layout is not None or told.what.writer_pid is None:
                with self._telling_of_failure():
                    arena._set_writable(True)  # then a promotion needs nothing of the driver
                if not is_ready:
                    following.say_ready()
                    is_ready = True
            if not following.wait(told, deadline):
                return None

    def _refresh(self, arena: Arena) -> bool:
        """In this thread, since it needs the context.  Other memory may be at the same addresses, under the same layout.
        False: it is to be tried again, when mpsd is back, or its keeper answers."""
        with self._telling_of_failure():
            try:
                has_changed = arena.refresh()
            except (Refused, OSError) as exc:
                if not _may_pass(exc):
                    raise
                return False
            if has_changed and (arena.layout is not None or arena.used_bytes):
                for call in self._on_commit:
                    call(arena)
            return True

    def _promote(self, arena: Arena, following: Following, told: Told) -> Term:
        """Nothing is asked here: memory is mapped, the record is in shared memory, and mpsd hears of it by the other thread."""
        generation = told.what.generation
        with self._telling_of_failure():
            arena._promoted(generation)
            record = following.last_record()
            state = State.create(self.schema, generation=generation)
            if record is not None:
                state.fill(record)
                state.publish()
            arena._set_state(state)
            term = Term(arena, generation, record, state, told.at_ns, self._leave)
            with self._lock:
                self._term = term
            following.begin(term)
            for call in self._on_promote:
                call(term)
            return term

    @contextmanager
    def _telling_of_failure(self) -> Iterator[None]:
        """Who cannot do this cannot serve."""
        try:
            yield
        except BaseException as exc:
            if self._following is not None:
                self._following.say_failed(repr(exc))
            raise

    # -- to end a term -------------------------------------------------------------------------------------------------

    def _leave(self, term: Term, error: BaseException | None) -> None:
        """The end of a term's block."""
        following = self._following
        if self._term is not term or following is None:  # closed within
            return
        if term.is_dismissed or isinstance(error, Exception):
            if not term.is_dismissed:
                following.say_failed(repr(error))
            with self._lock:
                self._term = None
        elif error is None and term.is_over:
            self._yield(term)
        elif error is not None:
            self.__exit__(type(error), error, None)
        else:
            with suppress(BufferError):  # tensors of it are still there; then it goes with the process
                self.close()

    def _yield(self, term: Term) -> None:
        """Nothing writes any more when mpsd hears of it.  Raises OSError (EBUSY): there is memory that was not committed."""
        assert self._arena is not None
        assert self._following is not None
        with suppress(MpsdError, OSError):  # mpsd is away, perhaps
            self._following.restore(term)  # what mpsd has lost is lost when this one lets go
        term.end("its term is over")
        with self._lock:
            self._term = None
        with self._telling_of_failure():
            self._arena._yielded()
        self._following.say_yielded(term)
        term.state.close()


@contextmanager
def capturing() -> Iterator[None]:
    """Within, arenas of services can be written.  To capture a graph is not to run it, but CUDA refuses (1) to capture a copy
    into memory that is mapped read-only."""
    arenas = [service._arena for service in list(_services) if service._arena is not None and not service._is_closed]
    before = [(arena, arena._set_writable(True)) for arena in arenas]
    try:
        yield
    finally:
        for arena, was_writable in before:
            if not was_writable:
                arena._set_writable(False)


def _is_emptied(told: Instruction) -> bool:
    """mpsd's keeper has died, and who serves is about to give everything again, at the same addresses: what is mapped here is
    that memory still."""
    return told.order == STANDBY and told.writer_pid is not None and not told.layout_hash and not told.state_serial


def _may_pass(exc: Refused | OSError) -> bool:
    """That the memory could not be had: mpsd is away, its keeper is silent, or others commit all the time."""
    if isinstance(exc, Refused):
        return exc.code in _PASSING
    return isinstance(exc, ConnectionRefusedError | TimeoutError | BlockingIOError)
