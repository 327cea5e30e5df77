"""A term of a member: it runs decode steps, and handles the front end's messages between them.

A takeover at any moment is safe because of this order:

    launch a step -> (while it runs: send the tokens of the step before, read the front end's messages) -> the GPU is done ->
    publish the step -> admit and release requests, publish that -> launch the next step

- A token is sent only after its step was published, so the member that takes over knows the token.
- A step reads published memory, and writes behind it (the position of its input token).  The next active repeats an
  interrupted step with the same result; at most one step is repeated.
- The record changes before the memory: a page of a new request is written only after the page's new owner was published.
- A slot is released only after the front end has confirmed all its tokens or cancelled the request.
"""

from collections.abc import Callable

from asked import Request, of_facts
from engine import Chunk, Engine
from link import Link
from record import Journal
from report import Report
from scheduler import Scheduler, Slot

IDLE_SECONDS = 0.02  # how often an idle member checks whether its term is over
FINISH_SECONDS = 2.0  # limit for sending the last tokens of a term


class Serving:
    """Serves requests for one term.  scheduler: holds the requests in flight.  step: the number of steps done in all terms."""

    def __init__(
        self, engine: Engine, scheduler: Scheduler, journal: Journal, link: Link, report: Report, *, step: int = 0
    ) -> None:
        self._engine, self._scheduler, self._journal, self._link, self._report = engine, scheduler, journal, link, report
        self._step = step
        self._news: list[tuple[int, int, int]] = []  # request, index, token: published, not sent yet
        self._texts: dict[int, tuple[int, ...]] = {}  # by request: the tokens being prefilled
        self._connection = 0
        self._is_told_all = False  # the front end of this connection has listed all open requests
        self._wanted: set[int] = set()  # the requests that it has listed so far
        self._over: set[int] = set()  # requests to be released

    def run(self, is_over: Callable[[], bool]) -> None:
        """Serve until `is_over()` is true.  Exceptions of the engine propagate: its GPU is lost."""
        engine, scheduler = self._engine, self._scheduler
        engine.arrange(scheduler.slots)
        is_first = True
        while not is_over():
            slots, chunk = scheduler.decoding(), self._next_chunk()
            is_busy = bool(slots or chunk)
            if is_busy:
                engine.launch(chunk, bool(slots))
            self._pass_on()
            self._hear()
            if is_busy:
                drawn = engine.wait()
                if is_first:
                    self._report.say("first_step", step=self._step + bool(slots))
                    is_first = False
                self._complete(slots, chunk, drawn)
            if not self._change() and not is_busy:
                self._journal.publish(self._step, scheduler.slots)  # a heartbeat
                self._link.wait(IDLE_SECONDS)
        self._report.say("over", step=self._step)
        self._pass_on()
        self._link.finish(FINISH_SECONDS)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _next_chunk(self) -> Chunk | None:
        slot = self._scheduler.filling()
        if slot is None:
            return None
        text = self._texts.get(slot.request)
        if text is None:  # the request began in an earlier term: its prompt is in the history
            text = self._texts[slot.request] = tuple(self._engine.kept(slot.number, 0, slot.fill + 1))
        count = self._engine.chunk(slot.fill - slot.filled)
        return Chunk(slot.number, slot.filled, text[slot.filled : min(slot.fill, slot.filled + count)])

    def _complete(self, slots: list[Slot], chunk: Chunk | None, drawn: list[int]) -> None:
        """Record and publish the results of a finished step."""
        changed = []
        if slots:
            self._step += 1
            changed = self._scheduler.advance(slots, drawn)
        if chunk:
            slot = self._scheduler.slots[chunk.slot]
            self._scheduler.filled(slot, len(chunk.tokens))
            changed.append(slot)
        for slot in changed:
            self._journal.write(slot, self._step)
        self._journal.publish(self._step, self._scheduler.slots)
        self._news += [(slot.request, slot.made - 1, slot.token) for slot in slots]
        if changed:
            self._engine.arrange(self._scheduler.slots)
        self._report.step(self._step)

    # -- the front end -------------------------------------------------------------------------------------------------

    def _pass_on(self) -> None:
        """Send the new tokens.  Until the front end has listed all open requests, send only those of requests it has listed:
        it names the tokens it has of the others when it lists them."""
        news, self._news = self._news, []
        if not self._is_told_all:
            news = [each for each in news if each[0] in self._wanted]
        if news:
            self._link.say("tokens", news)

    def _hear(self) -> None:
        said = self._link.hear()
        if self._connection != self._link.connections:
            self._connection, self._is_told_all, self._wanted = self._link.connections, False, set()
            self._scheduler.queue.clear()  # the front end sends the queued requests again
        for key, value in said:
            if key == "request":
                self._take(of_facts(value))
            elif key == "all":
                self._over |= set(self._scheduler.requests) - self._wanted
                self._is_told_all, self._wanted = True, set()
            elif key == "again":
                self._repeat(*value)
            elif key in ("cancel", "got"):
                self._over.add(value)
                self._scheduler.forget(value)

    def _take(self, request: Request) -> None:
        """Submit a new request.  If a slot already serves the request, send its missing tokens instead."""
        if not self._is_told_all:
            self._wanted.add(request.id)
        slot = self._scheduler.find(request.id)
        if slot is not None and (slot.prompt != len(request.prompt) or slot.made < len(request.have)):
            # Never seen: the front end has tokens that were not published.  Its list counts, and the report names the loss.
            self._report.say("lost", request=request.id, made=slot.made, have=len(request.have))
            self._over.add(request.id)
            slot = None
        if slot is not None:
            self._repeat(request.id, len(request.have))
        elif why := self._scheduler.why_never(request) or self._why_no_prompt(request):
            self._link.say("refused", (request.id, why))
        else:
            self._scheduler.submit(request)

    def _why_no_prompt(self, request: Request) -> str:
        unknown = next((token for token in request.prompt if token >= self._engine.vocab), None)
        return "" if unknown is None else f"token {unknown}: there are {self._engine.vocab}"

    def _repeat(self, request: int, index: int) -> None:
        """Send the published tokens of the request again, from this index on."""
        slot = self._scheduler.find(request)
        if slot is not None and index < slot.made:
            tokens = self._engine.kept(slot.number, slot.prompt + index, slot.prompt + slot.made)
            self._link.say("tokens", [(request, place, token) for place, token in enumerate(tokens, index)])

    # -- between steps -------------------------------------------------------------------------------------------------

    def _change(self) -> bool:
        """Release finished requests and admit queued ones, and publish the record.  Return whether any slot changed."""
        scheduler, changed = self._scheduler, {}
        for number in self._over:
            if slot := scheduler.find(number):
                scheduler.release(slot)
                changed[slot.number] = slot
            self._texts.pop(number, None)
        self._over.clear()
        for slot, request in scheduler.admit():
            text = (*request.prompt, *request.have)
            self._engine.keep(slot.number, text)
            self._texts[request.id] = text
            changed[slot.number] = slot
        if changed:
            for slot in changed.values():
                self._journal.write(slot, self._step)
            self._journal.publish(self._step, scheduler.slots)
            self._engine.arrange(scheduler.slots)
        return bool(changed)

