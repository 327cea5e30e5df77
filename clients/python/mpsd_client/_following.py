"""What mpsd tells a member of a service, and the thread that asks for it.

It asks for what is so now, never for what has happened: whoever was cut off asks again and has missed nothing.  For the same
reason all that this process has to say (it is ready, it serves, it has yielded) is said again on each new connection, and mpsd
takes it as often as it comes.
"""

import gc
import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mpsd_client import _calls as calls
from mpsd_client._arena import Arena
from mpsd_client._call import Call
from mpsd_client._client import Client
from mpsd_client._errors import Dismissed, ErrorCode, MpsdError, Refused
from mpsd_client._record import Record
from mpsd_client._session import CudaError
from mpsd_client._state_reader import StateError, StateReader
from mpsd_client._term import Term
from mpsd_client._values import Instruction

STANDBY, SERVE, YIELD, LEAVE = "standby", "serve", "yield", "leave"
FOLLOW_SECONDS = 20.0  # that an answer waits for something new
ANSWER_SECONDS = 10.0  # that it may take beyond that
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 1.0  # seconds between two tries to reach mpsd
HAND_SECONDS = 0.5  # that a promotion waits for its thread, before mpsd is asked again whether it is still so
STOP_SECONDS = 2.0  # that the thread may take to end
MOST_REASONS = 8  # that are said of one loss
RESTORE_SECONDS = 1.0  # until what mpsd has lost is given to it again, where that could not be
PASSING = (  # what is asked again, after joining anew
    ErrorCode.STOPPING,
    ErrorCode.KEEPER_FAILED,
    ErrorCode.VENDOR_FAILED,
    ErrorCode.TOO_MANY,
    ErrorCode.STALE_GENERATION,  # said of a term that is over: mpsd's next word tells what is
)
OVER = (ErrorCode.STALE_GENERATION, ErrorCode.NO_SUCH_ARENA, ErrorCode.ARENA_SEALED)  # said of memory that is another's now

_log = logging.getLogger("mpsd_client")


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """at_ns: CLOCK_MONOTONIC, when it came."""

    what: Instruction
    at_ns: int


class Following:
    """Guards that what is known here is what mpsd said last, and that mpsd knows what was said here.  It has one thread; the
    methods are for others."""

    def __init__(self, path: str, arena: Arena, rank: int, heartbeat: float) -> None:
        self._path, self._arena, self._session, self._id = path, arena, arena._session, arena.id
        self._rank, self._heartbeat = rank, heartbeat
        self._changed = threading.Condition()  # protects what is below, and tells of a change
        self._told: Told | None = None
        self._trouble: BaseException | None = None  # of the first try
        self._is_over = False
        self._is_joined = False
        self._is_ready = False
        self._yielded = 0  # the generation of the last term that has ended here
        self._term: Term | None = None
        self._is_owed = False  # mpsd has lost what the term serves with, and could not be given it yet
        self._reasons: set[str] = set()  # why not, as it was said
        self._mpsd: Client | None = None
        self._before: StateReader | StateError | None = None  # the state of the term before
        self._before_serial = 0
        self._pause = SHORTEST_PAUSE
        self._thread = threading.Thread(target=self._run, name="mpsd service", daemon=True)

    def start(self) -> None:
        """Joins.  Raises what went wrong with that."""
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._told or self._trouble)  # bounded: by what a Client waits
            if self._trouble is not None:
                raise self._trouble

    # -- for the thread of standby() ----------------------------------------------------------------------------------

    @property
    def told(self) -> Told:
        """The last."""
        with self._changed:
            assert self._told is not None  # since start()
            return self._told

    def wait(self, beyond: Told, deadline: float | None) -> bool:
        """Until there is something else, or it is over; for ever without a deadline.  False: the time is up."""
        if gc.isenabled() and self.told is beyond:
            gc.collect(0)  # else what a promotion makes may be what brings garbage collection about, which then goes first
        with self._changed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            return self._changed.wait_for(lambda: self._told is not beyond or self._is_over, left)

    def is_to_serve(self, told: Instruction) -> bool:
        return told.order == SERVE and told.generation != self._yielded

    def last_record(self) -> Record | None:
        """What the one before published last.  Raises StateError: it is damaged."""
        with self._changed:
            before = self._before
        if isinstance(before, StateError):
            raise before
        return None if before is None else before.read()

    def say_ready(self) -> None:
        """Raises Refused: mpsd does not take it."""
        with self._changed:
            self._is_ready = True
        self._say(calls.service_ready(self._id))

    def restore(self, term: Term) -> None:
        """Where mpsd's keeper has died: its memory and its state are there again when this returns.

        Raises Dismissed: mpsd says that this process is not the writer; Refused, OSError, CudaError: it could not be."""
        try:
            generation, serial = self._arena._restore()
        except Refused as exc:
            if exc.code not in OVER:
                raise
            with self._changed:
                self._dismiss(str(exc))
                self._changed.notify_all()
            raise Dismissed(str(exc)) from None
        if serial:
            term.kept(serial, generation)

    def begin(self, term: Term) -> None:
        """The thread hands its state to mpsd."""
        with self._changed:
            self._term = term
            self._hear_for(term)
            self._changed.notify_all()

    def say_yielded(self, term: Term) -> None:
        """Its memory is read-only already, and its state is that of the term before now.  Raises Refused, StateError."""
        before = StateReader.open(term.state.fd)
        with self._changed:
            self._term, self._yielded, self._is_ready = None, term.kept_generation, False
            self._before, self._before_serial = before, term.kept_serial
        try:
            self._say(calls.service_yielded(self._id, term.kept_generation))
        except Refused as exc:
            if exc.code != ErrorCode.STALE_GENERATION:  # the thread was faster, and another one serves
                raise

    def say_failed(self, why: str) -> None:
        """This process is no member from now on."""
        with suppress(MpsdError):
            self._say(calls.service_failed(self._id, why[:400]))
        with self._changed:
            self._dismiss(f"it has failed: {why:.400}")
            self._changed.notify_all()

    def stop(self, *, has_stopped: bool) -> None:
        """Leaves where nothing can be written here any more, and ends the thread, or at least waits no longer."""
        with self._changed:
            if self._is_over and not self._is_joined:
                return
            self._is_over = True
            self._changed.notify_all()
        if has_stopped:
            with suppress(MpsdError):
                self._say(calls.service_leave(self._id))
        if mpsd := self._mpsd:
            mpsd.interrupt()
        self._thread.join(STOP_SECONDS)

    def _say(self, call: Call[Any]) -> None:
        """On the arena's connection, since the thread's is waiting.  What cannot be said now is said after the next joining."""
        if not self._is_joined:
            return
        try:
            self._session.ask(call.method, call.params)
        except OSError:
            return
        except Refused:
            if self._is_joined:
                raise

    # -- the thread -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_over:
            try:
                with Client(self._path, timeout_seconds=FOLLOW_SECONDS + ANSWER_SECONDS, program="mpsd_client") as self._mpsd:
                    self._converse(self._mpsd)
            except Exception as exc:
                if self._is_last(exc):
                    return
            with self._changed:
                self._is_joined, self._mpsd = False, None
                self._changed.wait_for(lambda: self._is_over, self._pause)
                self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _is_last(self, exc: Exception) -> bool:
        """Whether there is no use in asking again."""
        with self._changed:
            if self._told is None:
                self._trouble = exc
            elif isinstance(exc, Refused) and exc.code not in PASSING:
                self._dismiss(str(exc))
            elif isinstance(exc, MpsdError | OSError):
                return self._is_over
            else:  # a bug; whoever waits has to hear of it
                self._dismiss(repr(exc))
            self._is_joined = False
            self._changed.notify_all()
            return True

    def _converse(self, mpsd: Client) -> None:
        """One connection: until it ends, or there is nothing more to hear."""
        told = mpsd.ask(calls.service_join(self._id, self._rank, self._heartbeat))
        said: set[tuple[str, int]] = set()
        while True:
            self._take(mpsd, told)
            if self._is_over:
                return
            answer = self._answer(mpsd, told, said)
            told = answer or mpsd.ask(calls.service_follow(self._id, told.serial, self._patience(told)))
            self._pause = SHORTEST_PAUSE

    def _take(self, mpsd: Client, told: Instruction) -> None:
        """Nobody hears of a promotion before the state of the term before is here."""
        at_ns = time.monotonic_ns()
        if self._term is None and told.state_serial != self._before_serial:
            self._fetch(mpsd)
        with self._changed:
            self._is_joined = True
            self._told = Told(told, at_ns)
            if self._term is not None:
                self._hear_for(self._term)
            self._is_over = self._is_over or told.order == LEAVE
            self._changed.notify_all()

    def _fetch(self, mpsd: Client) -> None:
        """The state that is kept with the arena, to be read when it matters: it is shared memory."""
        found = mpsd.ask(calls.arena_state(self._id))
        before: StateReader | StateError | None = None
        if found.fd is not None:
            try:
                before = StateReader.open(found.fd)
                with suppress(StateError):  # it is written at this moment; what is damaged then will be so later
                    before.read()  # its pages are there when they matter
            except StateError as exc:
                before = exc
            finally:
                os.close(found.fd)
        with self._changed:  # what mpsd has lost was lost with the memory that it speaks of
            self._before, self._before_serial = before, found.state_serial

    def _hear_for(self, term: Term) -> None:
        """What the word that came last means for the term.  That this process shall serve in a later generation than it knows
        means that mpsd's keeper has died: nobody else writes before this one has said that it has stopped."""
        assert self._told is not None
        told = self._told.what
        is_same = told.generation == term.kept_generation
        if told.order == LEAVE or told.generation < term.kept_generation or (told.order == STANDBY and not is_same):
            term.dismiss(told.why or "another one was told to serve")
        elif told.order == STANDBY:
            term.dismiss(told.why or "it was told not to serve any more")
        else:
            term.is_over = told.order == YIELD

    def _answer(self, mpsd: Client, told: Instruction, said: set[tuple[str, int]]) -> Instruction | None:
        """Says what mpsd has to know, once on each connection.  Its word on that, where it has one."""
        with self._changed:
            if self.is_to_serve(told):
                self._changed.wait_for(lambda: self._term or self._is_over, HAND_SECONDS)
            term, is_ready, yielded = self._term, self._is_ready, self._yielded
        is_ours = told.order in (SERVE, YIELD)
        if term is not None and is_ours:
            self._register(mpsd, term, told, said)
        elif is_ours and told.generation == yielded and ("yielded", yielded) not in said:
            said.add(("yielded", yielded))
            return mpsd.ask(calls.service_yielded(self._id, yielded))
        elif told.order == STANDBY and is_ready and ("ready", yielded) not in said:
            said.add(("ready", yielded))
            return mpsd.ask(calls.service_ready(self._id))
        return None

    def _register(self, mpsd: Client, term: Term, told: Instruction, said: set[tuple[str, int]]) -> None:
        """Its state first: nothing counts before a further standby could find it."""
        if told.generation > term.kept_generation:
            self._is_owed = not self._has_restored(term, told)
            if self._is_owed:
                return
        elif not term.kept_serial or told.state_serial < term.kept_serial:
            kept = mpsd.ask(calls.arena_keep_state(self._id, term.kept_generation, term.state.fd))
            term.kept(kept.state_serial, term.kept_generation)
        if ("serving", term.kept_generation) not in said:
            mpsd.ask(calls.service_serving(self._id, term.kept_generation))
            said.add(("serving", term.kept_generation))

    def _has_restored(self, term: Term, told: Instruction) -> bool:
        """False: it is to be tried again; the term goes on meanwhile, and mpsd says that nothing protects it."""
        try:
            self.restore(term)
        except ValueError:  # the arena is being closed
            return False
        except (Refused, OSError, CudaError) as exc:
            self._say_why(str(exc))
            return False
        if term.kept_generation < told.generation:
            return False
        if self._reasons:
            _log.info("what mpsd's keeper has lost of arena %s is there again", self._arena.name)
            self._reasons.clear()
        return True

    def _say_why(self, why: str) -> None:
        """Each reason once: it is asked for each second."""
        if why in self._reasons or len(self._reasons) >= MOST_REASONS:
            return
        self._reasons.add(why)
        words = "what mpsd's keeper has lost of arena %s cannot be given again, and nothing protects its service: %s"
        _log.warning(words, self._arena.name, why)

    def _patience(self, told: Instruction) -> float:
        """A promotion that nobody has taken up yet is not slept on."""
        with self._changed:
            if self._term is None:
                return 0.0 if self.is_to_serve(told) else FOLLOW_SECONDS
            return RESTORE_SECONDS if self._is_owed else FOLLOW_SECONDS

    def _dismiss(self, why: str) -> None:
        """As if mpsd had said so."""
        assert self._told is not None
        last = self._told.what
        gone = Instruction(last.serial, LEAVE, last.generation, last.layout_hash, last.state_serial, None, why)
        self._told, self._is_over = Told(gone, time.monotonic_ns()), True
        if self._term is not None:
            self._hear_for(self._term)


def dismissed(told: Told) -> Dismissed:
    return Dismissed(told.what.why or "mpsd told this process to leave its service")
