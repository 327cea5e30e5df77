"""A term of a member: steps, and between them what the front end wants.

The order of things is what makes this safe, so here it is once:

    launch a step -> (meanwhile: pass on what the step before has made, hear the front end) -> the GPU is done ->
    publish the step -> take in what has changed, publish that -> launch the next

- A token is passed on only after the step that made it was published: who takes over knows of it.
- A step reads what was published, and writes behind it (the place of the token that is being taken in).  One that was cut off
  is done again and gives the same: at most one is.
- Memory gets another owner in the record first: a page that is given to a new request is written to after that was published.
- A slot is given up only when the front end has said that it has all tokens of it.
"""

from collections.abc import Callable

from asked import Request, of_facts
from engine import Chunk, Engine
from link import Link
from record import Journal
from report import Report
from scheduler import Scheduler, Slot

IDLE_SECONDS = 0.02  # how long nothing may happen before whether the term is over is looked at again
FINISH_SECONDS = 2.0  # for the last words of a term


class Serving:
    """A term's work.  scheduler: with what is in flight.  step: how many are over, of all terms."""

    def __init__(
        self, engine: Engine, scheduler: Scheduler, journal: Journal, link: Link, report: Report, *, step: int = 0
    ) -> None:
        self._engine, self._scheduler, self._journal, self._link, self._report = engine, scheduler, journal, link, report
        self._step = step
        self._news: list[tuple[int, int, int]] = []  # request, index, token: published, and not passed on yet
        self._texts: dict[int, tuple[int, ...]] = {}  # by request: what is being filled in
        self._connection = 0
        self._is_told_all = False  # by this connection's front end, what is open
        self._wanted: set[int] = set()  # that it named
        self._over: set[int] = set()  # requests to be released

    def run(self, is_over: Callable[[], bool]) -> None:
        """Until then.  What the engine raises comes through: its GPU is lost."""
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
                self._journal.publish(self._step, scheduler.slots)  # a sign of life
                self._link.wait(IDLE_SECONDS)
        self._pass_on()
        self._link.finish(FINISH_SECONDS)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _next_chunk(self) -> Chunk | None:
        slot = self._scheduler.filling()
        if slot is None:
            return None
        text = self._texts.get(slot.request)
        if text is None:  # of the term before: the prompt is in the history
            text = self._texts[slot.request] = tuple(self._engine.kept(slot.number, 0, slot.fill + 1))
        count = self._engine.chunk(slot.fill - slot.filled)
        return Chunk(slot.number, slot.filled, text[slot.filled : min(slot.fill, slot.filled + count)])

    def _complete(self, slots: list[Slot], chunk: Chunk | None, drawn: list[int]) -> None:
        """The GPU has done this; from the publish on it counts."""
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
        """Of those that the front end has named; it says which tokens of the others it has, when it does so."""
        news, self._news = self._news, []
        if not self._is_told_all:
            news = [each for each in news if each[0] in self._wanted]
        if news:
            self._link.say("tokens", news)

    def _hear(self) -> None:
        said = self._link.hear()
        if self._connection != self._link.connections:
            self._connection, self._is_told_all, self._wanted = self._link.connections, False, set()
            self._scheduler.queue.clear()  # it will name them again
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
        """A new request, or one that is open and of which this member, or the one before, has made something already."""
        if not self._is_told_all:
            self._wanted.add(request.id)
        slot = self._scheduler.find(request.id)
        if slot is not None and (slot.prompt != len(request.prompt) or slot.made < len(request.have)):
            # Never seen: the client was told more than was published.  The client's word counts, and it is told to people.
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
        """Tokens of it from this one on, as far as they were published."""
        slot = self._scheduler.find(request)
        if slot is not None and index < slot.made:
            tokens = self._engine.kept(slot.number, slot.prompt + index, slot.prompt + slot.made)
            self._link.say("tokens", [(request, place, token) for place, token in enumerate(tokens, index)])

    # -- between steps -------------------------------------------------------------------------------------------------

    def _change(self) -> bool:
        """Requests that are over go, others come; the record first.  Whether there were any."""
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

