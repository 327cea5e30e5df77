"""A member's instructions from mpsd, and the thread that polls for them.

The thread asks mpsd for the current instruction, not for a history of events, so that a member misses nothing by a lost
connection.  For the same reason the thread repeats the member's reports (ready, serving, yielded) on each new connection;
they are idempotent.
"""

import gc
import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
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
FOLLOW_SECONDS = 20.0  # length of a long poll for a new instruction
ANSWER_SECONDS = 10.0  # time for the answer beyond that
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 1.0  # seconds between two attempts to connect to mpsd
HAND_SECONDS = 0.5  # how long a promotion waits for the thread in standby() to begin its term, before the next poll
STOP_SECONDS = 2.0  # how long the thread may take to end
MOST_REASONS = 8  # reasons logged for one loss
ADOPT_SECONDS = 3600.0  # the heartbeat before the term: mpsd takes no longer one
RESTORE_SECONDS = 1.0  # between two attempts to give mpsd again what its keeper has lost
PASSING = (  # refusals after which the thread connects, joins and asks again
    ErrorCode.STOPPING,
    ErrorCode.KEEPER_FAILED,
    ErrorCode.VENDOR_FAILED,
    ErrorCode.TOO_MANY,
    ErrorCode.UNUSABLE_PATH,  # mpsd's disk is full
    ErrorCode.STALE_GENERATION,  # the term is over: mpsd's next instruction says what follows
)
OVER = (ErrorCode.STALE_GENERATION, ErrorCode.NO_SUCH_ARENA, ErrorCode.ARENA_SEALED)  # this process cannot be the writer

_log = logging.getLogger("mpsd_client")


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """An instruction from mpsd.  at_ns: when it arrived, CLOCK_MONOTONIC."""

    what: Instruction
    at_ns: int


class Following:
    """Keeps mpsd's last instruction here, and the member's last report at mpsd.  One thread runs the conversation; other
    threads call the public methods."""

    def __init__(self, path: str, arena: Arena, rank: int, heartbeat: float) -> None:
        self._path, self._arena, self._session, self._id = path, arena, arena._session, arena.id
        self._rank, self._heartbeat, self._told_heartbeat = rank, heartbeat, heartbeat
        self._changed = threading.Condition()  # protects the fields below, and is notified of changes
        self._told: Told | None = None
        self._trouble: BaseException | None = None  # why the first attempt to join failed
        self._is_over = False
        self._is_joined = False
        self._is_ready = False
        self._yielded = 0  # the generation of the last term of this process that has ended
        self._yield: Call[Instruction] | None = None  # the report of that
        self._filling = 0  # the generation of the term before which this process fills the arena
        self._term: Term | None = None
        self._is_owed = False  # mpsd's keeper has lost the term's memory and state, and they are not restored yet
        self._reasons: set[str] = set()  # why not, as logged
        self._mpsd: Client | None = None
        self._before: StateReader | StateError | None = None  # the state of the previous term
        self._before_serial = 0
        self._pause = SHORTEST_PAUSE
        self._thread = threading.Thread(target=self._run, name="mpsd service", daemon=True)

    def start(self) -> None:
        """Join the service.  Raises the exception of a failed attempt."""
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._told or self._trouble)  # bounded by the timeout of Client
            if self._trouble is not None:
                raise self._trouble

    # -- for the thread of standby() ----------------------------------------------------------------------------------

    @property
    def told(self) -> Told:
        """The last instruction."""
        with self._changed:
            assert self._told is not None  # since start()
            return self._told

    def wait(self, beyond: Told, deadline: float | None) -> bool:
        """Wait for a newer instruction than `beyond`, or for the end of the membership; without a deadline, for ever.  Return
        False at the deadline."""
        if gc.isenabled() and self.told is beyond:
            gc.collect(0)  # so that the allocations of a promotion do not trigger a collection, which would delay it
        with self._changed:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            return self._changed.wait_for(lambda: self._told is not beyond or self._is_over, left)

    def is_to_serve(self, told: Instruction) -> bool:
        return told.order == SERVE and told.generation != self._yielded

    def last_record(self) -> Record | None:
        """Return the last record that the previous term published, None without one.  Raises StateError if it is damaged."""
        with self._changed:
            before = self._before
        if isinstance(before, StateError):
            raise before
        return None if before is None else before.read()

    def say_ready(self) -> None:
        """Report this member as ready, once.  Raises Refused if mpsd does not accept that."""
        with self._changed:
            if self._is_ready:
                return
            self._is_ready = True
        self._say(calls.service_ready(self._id))

    def say_serving(self, generation: int) -> None:
        """Report this process as the active before its term begins: to fill the arena takes longer than a promotion may.

        The state that comes with the contents stands still until the term: the program adopts them before."""
        self._told_heartbeat = ADOPT_SECONDS
        self._say(calls.service_join(self._id, self._rank, ADOPT_SECONDS))
        with self._changed:
            self._filling = generation  # the thread repeats it
        self._say(calls.service_serving(self._id, generation))

    def restore(self, term: Term) -> None:
        """Give mpsd the term's memory and state again after mpsd's keeper has died.

        Raises Dismissed if mpsd says that this process is not the writer; Refused, OSError or CudaError if it failed."""
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
        """Begin a term.  The thread then gives its state to mpsd and reports that it serves."""
        with self._changed:
            self._term = term
            self._hear_for(term)
            self._changed.notify_all()

    def say_yielded(self, term: Term, why_no_image: str | None) -> None:
        """Report the end of a term whose memory is read-only already; its state becomes that of the previous term.

        why_no_image: of its last barrier before a move; "": there will be one; None: no move.  Raises Refused, StateError."""
        before = StateReader.open(term.state.fd)
        generation, sequence = (None, 0) if why_no_image is None else (before.generation, before.latest)
        with self._changed:
            self._term, self._yielded, self._is_ready = None, term.kept_generation, False
            self._before, self._before_serial = before, term.kept_serial
            self._yield = calls.service_yielded(
                self._id, term.kept_generation, generation, sequence=sequence, why_no_image=_printable(why_no_image or "")
            )
        self._say(self._yield)

    def say_no_image(self, why: str) -> None:
        """Report after `say_yielded` that the last image has failed: mpsd then cancels the move at once."""
        assert self._yield is not None
        with suppress(MpsdError):
            self._say(Call(self._yield.method, {**self._yield.params, "why_no_image": _printable(why)}, self._yield.read))

    def say_failed(self, why: str) -> None:
        """Report a failure of this process, and end its membership."""
        with suppress(MpsdError):
            self._say(calls.service_failed(self._id, why[:400]))
        with self._changed:
            self._dismiss(f"it has failed: {why:.400}")
            self._changed.notify_all()

    def stop(self, *, has_stopped: bool) -> None:
        """End the thread; wait for it STOP_SECONDS at most.  has_stopped: this process can no longer write, so it leaves the
        service first."""
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
        """Send a report on the arena's connection, since the thread's is in a long poll.  If mpsd is away, or cannot take it
        now, the thread repeats it.  Raises Refused."""
        if not self._is_joined:
            return
        try:
            self._session.ask(call.method, call.params)
        except OSError:
            return
        except Refused as exc:
            if not self._is_joined or exc.code == ErrorCode.STALE_GENERATION:
                return  # the thread has reported it already, and another member serves
            if exc.code not in PASSING:
                raise
            if mpsd := self._mpsd:
                mpsd.interrupt()  # the thread then does not wait for the end of its poll

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
                if self._term is not None:
                    self._term.calm()
                self._changed.wait_for(lambda: self._is_over, self._pause)
                self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _is_last(self, exc: Exception) -> bool:
        """Return whether the thread has to give up after this exception instead of connecting again."""
        with self._changed:
            if self._told is None:
                self._trouble = exc
            elif isinstance(exc, Refused) and exc.code not in PASSING:
                self._dismiss(str(exc))
            elif isinstance(exc, MpsdError | OSError):
                return self._is_over
            else:  # a bug, which the thread in standby() must see
                self._dismiss(repr(exc))
            self._is_joined = False
            self._changed.notify_all()
            return True

    def _converse(self, mpsd: Client) -> None:
        """Join and poll on one connection until the membership is over.  Raises when the connection ends."""
        told = mpsd.ask(calls.service_join(self._id, self._rank, self._told_heartbeat))
        said: set[tuple[str, int]] = set()
        while True:
            self._take(mpsd, told)
            if self._is_over:
                return
            answer = self._answer(mpsd, told, said)
            told = answer or mpsd.ask(calls.service_follow(self._id, told.serial, self._patience(told)))
            self._pause = SHORTEST_PAUSE

    def _take(self, mpsd: Client, told: Instruction) -> None:
        """Publish an instruction to waiting threads, after fetching the state of the previous term if it has changed."""
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
        """Map the state that mpsd keeps with the arena; it is shared memory, which a promotion reads."""
        found = mpsd.ask(calls.arena_state(self._id))
        before: StateReader | StateError | None = None
        if found.fd is not None:
            try:
                before = StateReader.open(found.fd)
                with suppress(StateError):  # the active writes it now; real damage shows again at the promotion
                    before.read()  # fault its pages in before a promotion needs them
            except StateError as exc:
                before = exc
            finally:
                os.close(found.fd)
        with self._changed:  # also without a state: mpsd has then lost it together with the memory that it describes
            self._before, self._before_serial = before, found.state_serial

    def _hear_for(self, term: Term) -> None:
        """Apply the last instruction to the term.  An order to serve in a later generation than the term's means that mpsd's
        keeper has died: mpsd admits no other writer before this process has reported that it has stopped."""
        assert self._told is not None
        told = self._told.what
        is_same = told.generation == term.kept_generation
        if told.order == LEAVE or told.generation < term.kept_generation or (told.order == STANDBY and not is_same):
            term.dismiss(told.why or "another one was told to serve")
        elif told.order == STANDBY:
            term.dismiss(told.why or "it was told not to serve any more")
        else:
            term.obey(told.order == YIELD, told.is_moving)

    def _answer(self, mpsd: Client, told: Instruction, said: set[tuple[str, int]]) -> Instruction | None:
        """Send the reports that are due, once on each connection.  Return mpsd's instruction in reply, if it sends one."""
        with self._changed:
            if self.is_to_serve(told):
                self._changed.wait_for(lambda: self._term or self._is_over, HAND_SECONDS)
            term, is_ready, yielded, report = self._term, self._is_ready, self._yielded, self._yield
            filling = self._filling
        is_ours = told.order in (SERVE, YIELD)
        if term is not None and is_ours:
            self._register(mpsd, term, told, said)
        elif is_ours and told.generation == filling and ("serving", filling) not in said:
            said.add(("serving", filling))
            mpsd.ask(calls.service_serving(self._id, filling))
        elif is_ours and report is not None and told.generation == yielded and ("yielded", yielded) not in said:
            said.add(("yielded", yielded))
            return mpsd.ask(report)
        elif told.order == STANDBY and is_ready and ("ready", yielded) not in said:
            said.add(("ready", yielded))
            return mpsd.ask(calls.service_ready(self._id))
        return None

    def _register(self, mpsd: Client, term: Term, told: Instruction, said: set[tuple[str, int]]) -> None:
        """Give mpsd the term's state, then report that it serves: a standby must be able to find the state before that."""
        if told.generation > term.kept_generation:
            self._is_owed = not self._has_restored(term, told)
            if self._is_owed:
                return
        elif not term.kept_serial or told.state_serial < term.kept_serial:
            kept = mpsd.ask(calls.arena_keep_state(self._id, term.kept_generation, term.state.fd))
            term.kept(kept.state_serial, term.kept_generation)
        if self._told_heartbeat != self._heartbeat:
            mpsd.ask(calls.service_join(self._id, self._rank, self._heartbeat))
            self._told_heartbeat = self._heartbeat
        if ("serving", term.kept_generation) not in said:
            mpsd.ask(calls.service_serving(self._id, term.kept_generation))
            said.add(("serving", term.kept_generation))

    def _has_restored(self, term: Term, told: Instruction) -> bool:
        """Try to restore what mpsd's keeper has lost.  Return False if the thread has to try again; until then the term goes
        on and mpsd reports the service as unprotected."""
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
        """Log each reason once, since the thread tries again every second."""
        if why in self._reasons or len(self._reasons) >= MOST_REASONS:
            return
        self._reasons.add(why)
        words = "what mpsd's keeper has lost of arena %s cannot be given again, and nothing protects its service: %s"
        _log.warning(words, self._arena.name, why)

    def _patience(self, told: Instruction) -> float:
        """Return the length of the next long poll in seconds; 0 while a promotion waits for its term to begin."""
        with self._changed:
            if self._term is None:
                return 0.0 if self.is_to_serve(told) else FOLLOW_SECONDS
            return RESTORE_SECONDS if self._is_owed else FOLLOW_SECONDS

    def _dismiss(self, why: str) -> None:
        """End the membership as if mpsd had sent LEAVE."""
        assert self._told is not None
        gone = replace(self._told.what, order=LEAVE, writer_pid=None, why=why, is_moving=False)
        self._told, self._is_over = Told(gone, time.monotonic_ns()), True
        if self._term is not None:
            self._hear_for(self._term)


def _printable(why: str) -> str:
    return "".join(each if each.isprintable() else " " for each in why)[:400]


def dismissed(told: Told) -> Dismissed:
    return Dismissed(told.what.why or "mpsd told this process to leave its service")
