"""A service: an arena with processes that can serve it; one is the active, the others are standbys, ready to take over.

    service = Service("llm", capacity=8 << 30, schema={"step": "uint64"})      # before CUDA begins in this process
    arena = service.open()                                                     # mapped to read
    ...                                                                        # build or adopt
    service.rehearse(step)                                                     # on copies: the first real one is fast
    with service.active() as term:                                             # waits for the promotion of this process
        while not term.is_over:
            ...                                                                # a step, and the GPU has finished it
            term.publish(step=step)

Prose: mpsd's docs/services.md, "In Python".
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TypeVar

from mpsd_client._arena import Arena, Path
from mpsd_client._enlisting import enlist
from mpsd_client._errors import Dismissed, MpsdError, Refused
from mpsd_client._following import LEAVE, STANDBY, Following, Told, dismissed
from mpsd_client._place import socket_path
from mpsd_client._record import Record, Schema
from mpsd_client._rehearsal import TIMES, rehearse
from mpsd_client._replica import Replica, may_pass
from mpsd_client._schedule import ImageSchedule
from mpsd_client._service_arena import ServiceArena, insists
from mpsd_client._state import State
from mpsd_client._stepping import Adopt, Stepping
from mpsd_client._term import Term
from mpsd_client._values import Instruction

AGAIN_SECONDS = 0.5  # between two attempts to map new memory
LAST_IMAGE_SECONDS = 10.0  # before a move, until it is complete: mpsd waits no longer, by default
OnPromote = TypeVar("OnPromote", bound=Callable[[Term], object])
opened_services: "weakref.WeakSet[Service]" = weakref.WeakSet()  # opened by this process


class Service(Stepping):
    """This process as a member of a service.  Create one per process and service, before CUDA begins in the process: mpsd then
    places the process in a fault domain without another member, so that one fault does not hit two members.

    name: of the arena.  capacity: bytes, used by the member that creates the arena.  schema: of the forward state, as for
    State.create.  rank: mpsd prefers the ready standby with the lowest rank.  heartbeat: seconds after which mpsd treats an
    active that has published nothing as lost; 0: never.  gpu: mpsd's ordinal or a UUID; None: the GPU of the current context.
    window, mode, ttl, path: as for Arena.create.  images: when the active takes images of the arena, at a `publish` of values;
    the newest one is restored if the arena does not exist, by `open`, or was emptied, by `standby`.  replica_lag: if the arena
    is on another GPU than this process's context, keep a replica there, which serves when the other GPU is lost; mpsd warns
    when it is older, in seconds.

    Any thread may use it; only one thread at a time may call `standby`.  A forked child cannot use it.

    Raises RuntimeError if CUDA has begun already; ValueError for an invalid schema; Refused; OSError if mpsd does not listen.
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
        images: ImageSchedule | None = None,
        replica_lag: float | None = None,
    ) -> None:
        self.name, self.capacity, self.rank, self.heartbeat = name, capacity, rank, heartbeat
        self.schema = schema if isinstance(schema, Schema) else Schema.of(schema)
        self._path = socket_path(path)  # before enlisting, which may change the directory that CUDA uses
        self._place = ServiceArena(name, capacity, gpu, window, mode, ttl, self._path, images, replica_lag)
        self._replica: Replica | None = None  # until its turn to serve
        self._pid = os.getpid()
        self._lock = threading.RLock()  # protects the fields below
        self._waiting = threading.Lock()  # held by the thread inside standby() or rehearse(); never taken with _lock held
        self._waiter = 0  # that thread
        self._arena: Arena | None = None
        self._following: Following | None = None
        self._term: Term | None = None
        self._is_closed = False
        self._on_commit: list[Callable[[Arena], object]] = []
        self._on_promote: list[Callable[[Term], object]] = []
        enlist(name, self._path)
        self._early = self._place.early_imager()

    @insists
    def open(self) -> Arena:
        """Open the arena for reading, create it if necessary, and join the service.  A CUDA context must be current.

        Then adopt the arena's contents, warm up, and call `standby`.  If `arena.layout` is None, no member has built the
        contents yet: the member that finds this in its term builds them.  It waits while mpsd's disk is full.
        """
        self._check()
        with self._lock:
            if self._arena is None:
                State.create(self.schema, generation=1).close()  # find errors now, and make the next one faster
                self._place.restore(self._early)
                self._replica = self._place.replica()
                if self._replica is not None:
                    self._arena = self._replica.open()
                else:
                    self._join(self._place.open())
                opened_services.add(self)
            assert self._arena is not None
            return self._arena

    def _join(self, arena: Arena) -> Following:
        following = Following(self._path, arena, self.rank, self.heartbeat)
        try:
            following.start()
        except BaseException:
            arena.close()
            raise
        self._arena, self._following = arena, following
        return following

    def on_commit(self, call: Adopt) -> Adopt:
        """Register a function that `standby` calls with the arena, in its own thread, after it has mapped a commit of the
        active with other memory or another layout: adopt again, and warm up what needs it."""
        self._on_commit.append(call)
        return call

    def on_promote(self, call: OnPromote) -> OnPromote:
        """Register a function that `standby` calls with the term, in its own thread, before it returns."""
        self._on_promote.append(call)
        return call

    def standby(self, timeout: float | None = None) -> Term | None:
        """Report this process as ready, and wait for its promotion.  Return its term, in which it may write to the arena.

        From this call on the arena is mapped writable, so that a promotion does not wait for a driver that handles a fault:
        other threads must not write to it.

        timeout: seconds; then return None, and the process stays a standby, whose promotion waits for the next call.  None:
        wait for ever.  Any thread with a current context may call it.

        Raises Dismissed if mpsd dismissed this process; StateError if the record of the previous term is damaged; and the
        exceptions of callbacks.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._as_waiter() as (arena, following):
            if following is None and (following := self._wait_as_replica(arena, deadline)) is None:
                return None
            return self._wait(arena, following, deadline)

    def _wait_as_replica(self, arena: Arena, deadline: float | None) -> Following | None:
        """Keep the replica until this process is to serve, and join the service then.  Return None at the deadline."""
        assert self._replica is not None
        if not self._replica.wait(deadline, lambda: self._is_closed, self._adopt):
            if self._is_closed:
                raise Dismissed(f"service {self.name} was closed")
            return None
        with self._lock:
            self._replica = None
            return self._join(arena)

    def rehearse(self, step: Callable[[], object], *, writes: Iterable[str] | None = None, times: int = TIMES) -> bool:
        """Run `step` on private copies of the arena's memory, mapped at its addresses: this loads, allocates and caches what
        the first step of a term would otherwise wait for.  Call it in the thread that will serve, after adopting the contents,
        and before `standby`, or in `on_commit`.

        The copies are gone afterwards, and the default random generators are as before.  `step` must not publish or answer
        anything.  It has to leave this process's other memory as it may be in a term.

        writes: names of all tensors that `step` writes, or the parts of their names before a dot; None: copy the whole arena.
        A write to another tensor is a fault of this process, as before a promotion.  Copies take at most half of the GPU's free
        memory.

        Return whether all runs were made; False if the arena is empty, if this process serves, if the copies do not fit
        (logged), or if the promotion of this process came: then no further run begins.  Raises the exceptions of `step`;
        LayoutError; CudaError; RuntimeError if another thread waits or rehearses.
        """
        if self._term is not None:  # its memory is the real one
            return False
        with self._as_waiter(is_nested=True) as (arena, following):

            def may_go_on() -> bool:
                return not self._is_closed and (following is None or following.told.what.order == STANDBY)

            return arena.layout is not None and may_go_on() and rehearse(arena, step, writes, times, may_go_on)

    def active(self, timeout: float | None = None) -> Term:
        """Wait as `standby` does, but raise TimeoutError at the timeout: `with service.active() as term`."""
        term = self.standby(timeout)
        if term is None:
            raise TimeoutError(f"service {self.name}: it was not this process's turn within {timeout:g} seconds")
        return term

    def close(self) -> None:
        """Yield if this process serves, leave the service, close the arena; a second call does nothing.  The GPU must be done
        with the arena's memory.

        Raises BufferError if another library still uses the arena's memory; everything else is done then.  If this process
        could not yield, mpsd waits for its end.
        """
        if self._pid != os.getpid():  # a forked child must not wait for a lock that a thread of the parent held
            if self._arena is not None:
                self._arena.close()
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._early is not None:
                self._early.close()
            arena, following, term = self._arena, self._following, self._term
        if term is not None and arena is not None and not term.is_dismissed:
            with suppress(MpsdError, OSError):
                self._yield(term)
        if following is not None and arena is not None:
            following.stop(has_stopped=not arena.is_writable)  # else the arena's close tells mpsd
        if term is not None:
            term.end("the service was closed")
        if arena is not None:
            arena.close()
        if self._replica is not None:
            self._replica.close()

    def __enter__(self) -> "Service":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the service.  During an exception, whose frames may hold tensors, ignore BufferError and MpsdError."""
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

    @contextmanager
    def _as_waiter(self, is_nested: bool = False) -> Iterator[tuple[Arena, Following | None]]:
        """Make this thread the only one that waits or rehearses.  is_nested: it may be waiting, and be in a callback.  A
        replica follows no orders yet."""
        self._check()
        with self._lock:
            arena, following = self._arena, self._following
            if arena is None or (following is None and self._replica is None):
                raise RuntimeError(f"service {self.name} is not open")
            is_waiting = is_nested and self._waiter == threading.get_ident()
            if self._term is not None or not (is_waiting or self._waiting.acquire(blocking=False)):
                raise RuntimeError(f"service {self.name}: this process serves, waits for that, or rehearses already")
            before, self._waiter = self._waiter, threading.get_ident()
        try:
            yield arena, following
        finally:
            self._waiter = before
            if not is_waiting:
                self._waiting.release()

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
            if following.is_to_serve(told.what) and told.what.generation >= arena.generation:  # else stale
                return self._promote(arena, following, told)
            if arena.layout is not None or told.what.writer_pid is None:
                with self._telling_of_failure():
                    arena._set_writable(True)  # so that a promotion needs no driver call
                if not is_ready:
                    following.say_ready()
                    is_ready = True
            if not following.wait(told, deadline):
                return None

    def _refresh(self, arena: Arena) -> bool:
        """Map the last commit, and call the callbacks if it changed anything, in this thread, which has the context.  A commit
        may put other memory at the same addresses with the same layout.  Return False if mpsd or its keeper does not answer:
        try again."""
        with self._telling_of_failure():
            try:
                has_changed = arena.refresh()
            except (Refused, OSError) as exc:
                if not may_pass(exc):
                    raise
                return False
            if has_changed and (arena.layout is not None or arena.used_bytes):
                self._adopt(arena)
            return True

    def _adopt(self, arena: Arena) -> None:
        for call in self._on_commit:
            call(arena)

    def _last_record(self) -> Record | None:
        if self._following is None:
            return None if self._replica is None else self._replica.record
        return self._following.last_record()

    def _promote(self, arena: Arena, following: Following, told: Told) -> Term:
        """Begin a term without any request to mpsd: memory is mapped, the record is in shared memory, and the other thread
        reports to mpsd.  If all of that was lost, and an image exists, begin with that."""
        generation = told.what.generation
        with self._telling_of_failure():
            arena._promoted(generation)
            record = following.last_record()
            if record is None:
                is_filled, record = self._place.fill(arena, lambda: following.say_serving(generation))
                if is_filled:
                    self._adopt(arena)
            state = State.create(self.schema, generation=generation)
            if record is not None:
                state.fill(record)
                state.publish()
            arena._set_state(state)
            term = Term(arena, generation, record, state, told.at_ns, self._leave, self._place.images)
            with self._lock:
                self._term = term
            following.begin(term)
            for call in self._on_promote:
                call(term)
            return term

    @contextmanager
    def _telling_of_failure(self) -> Iterator[None]:
        """Report an exception to mpsd as a failure of this member, and let it propagate."""
        try:
            yield
        except BaseException as exc:
            if self._following is not None:
                self._following.say_failed(repr(exc))
            raise

    # -- to end a term -------------------------------------------------------------------------------------------------

    def _leave(self, term: Term, error: BaseException | None) -> None:
        """End a term when its block ends: yield, close the service, or report the exception."""
        following = self._following
        if self._term is not term or following is None:  # the block has closed the service
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
            with suppress(BufferError):  # tensors still use the arena; the end of the process then closes it
                self.close()

    def _yield(self, term: Term) -> None:
        """End the term, make the arena read-only, then report to mpsd.  Raises OSError (EBUSY) with uncommitted memory."""
        assert self._arena is not None
        assert self._following is not None
        with suppress(MpsdError, OSError):  # mpsd may be away
            self._following.restore(term)  # after the yield this process can no longer give mpsd what its keeper lost
        taking, why_no_image = term.take_last()
        term.end("its term is over")
        with self._lock:
            self._term = None
        with self._telling_of_failure():
            self._arena._yielded()
        self._following.say_yielded(term, why_no_image)
        term.state.close()
        if taking is not None:
            try:
                taking.wait(LAST_IMAGE_SECONDS)
            except (MpsdError, OSError) as exc:
                self._following.say_no_image(str(exc) or repr(exc))


def _is_emptied(told: Instruction) -> bool:
    """Return whether mpsd's keeper has died and the active is about to give mpsd the same memory again, at the same addresses:
    this process then keeps its mapping."""
    return told.order == STANDBY and told.writer_pid is not None and not told.layout_hash and not told.state_serial
