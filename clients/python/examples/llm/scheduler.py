"""Which request is in which slot, and how far it is: continuous batching without preemption.  Pure: no GPU, no clock.

    submit -> queue -> admit: FREE -> PREFILL -> DECODE -> DONE -> FREE

A request is admitted as soon as there are a slot and all the pages that it can ever need, so it never has to be put aside.  It
is DONE when its last token is made, and gives up its slot when the front end says that it has them all: a process may die
between the two, and the next one finds in the slot what is still to be said.
"""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from asked import Request
from pages import Pages

# The columns of what the GPU is given of each slot, 64 bits each; behind them are the slot's pages.
TOKEN, POSITION, ACTIVE, SEED, TOP_K, TEMPERATURE, COLUMNS = range(7)


class Phase(IntEnum):
    FREE = 0
    PREFILL = 1  # keys and values of its prompt are being computed, some tokens at a time
    DECODE = 2  # each step makes one token of it
    DONE = 3


@dataclass(frozen=True, slots=True)
class Size:
    """slots: how many requests are computed at once.  length: tokens that a request has at most, its prompt included.  page:
    tokens whose keys and values lie in one page.  pages: of all; with page 0."""

    slots: int
    length: int
    page: int
    pages: int

    @classmethod
    def of(cls, slots: int, length: int, page: int, pages: int = 0) -> "Size":
        """pages 0: enough for every slot to be as long as can be.  Raises ValueError."""
        if not (0 < slots <= 1024 and 0 < page <= length <= 1 << 20):
            raise ValueError(f"{slots} slots of {length} tokens in pages of {page}: 1 to 1024, and no page is longer")
        per_slot = -(-length // page)
        made = cls(slots, length, page, pages or slots * per_slot + 1)
        if made.pages <= per_slot:
            raise ValueError(f"{made.pages} pages: one request may need {per_slot}, and page 0 is nobody's")
        return made

    @property
    def per_slot(self) -> int:
        """Pages, at most."""
        return -(-self.length // self.page)

    @property
    def width(self) -> int:
        return COLUMNS + self.per_slot


@dataclass(slots=True)
class Slot:
    """prompt: how many tokens its client sent.  fill: how many have to be in the cache before the first step of DECODE, and
    filled: how many are.  position: of `token`, which the next step takes in.  end: where the token would be that is one too
    many."""

    number: int
    phase: Phase = Phase.FREE
    request: int = 0
    prompt: int = 0
    fill: int = 0
    filled: int = 0
    position: int = 0
    token: int = 0
    end: int = 0
    seed: int = 0
    temperature: float = 0.0
    top_k: int = 1
    stop: int = -1
    pages: tuple[int, ...] = ()

    @property
    def made(self) -> int:
        """Tokens, beyond its prompt, that there are."""
        return max(0, self.position + 1 - self.prompt)

    def row(self, width: int) -> "array[int]":
        """What the GPU is given of it."""
        found = array("q", bytes(8 * width))
        active = self.phase is Phase.DECODE
        found[:COLUMNS] = array("q", [self.token, self.position, active, self.seed, self.top_k, _bits(self.temperature)])
        found[COLUMNS : COLUMNS + len(self.pages)] = array("q", self.pages)
        return found


def _bits(value: float) -> int:
    return int.from_bytes(array("f", [value]).tobytes(), "little")


class Scheduler:
    """Guards that a slot has one request at most, and that its pages are no other's."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.slots = [Slot(number) for number in range(size.slots)]
        self.queue: deque[Request] = deque()
        self._pages = Pages(size.pages)
        self._by_request: dict[int, Slot] = {}

    def restore(self, slots: Sequence[Slot]) -> None:
        """Those of a record.  Raises ValueError: they cannot be so."""
        if [slot.number for slot in slots] != list(range(self.size.slots)):
            raise ValueError(f"the record has {len(slots)} slots, not {self.size.slots}")
        self._pages.take_these(page for slot in slots for page in slot.pages)
        self._by_request = {slot.request: slot for slot in slots if slot.phase is not Phase.FREE}
        self.slots = list(slots)

    def find(self, request: int) -> Slot | None:
        return self._by_request.get(request)

    @property
    def requests(self) -> list[int]:
        """Those that have a slot."""
        return list(self._by_request)

    def why_never(self, request: Request) -> str:
        """Why it can never be admitted; empty: it can."""
        total = len(request.prompt) + request.max_tokens
        if total > self.size.length:
            return f"{len(request.prompt)} tokens of prompt and {request.max_tokens} more are over {self.size.length}"
        return ""

    def submit(self, request: Request) -> None:
        self.queue.append(request)

    def forget(self, request: int) -> None:
        """It does not wait any more."""
        self.queue = deque(each for each in self.queue if each.id != request)

    def admit(self) -> Iterator[tuple[Slot, Request]]:
        """As many as there is room for, in their order: a large one is not overtaken for ever by small ones."""
        while self.queue and (slot := next((each for each in self.slots if each.phase is Phase.FREE), None)):
            request = self.queue[0]
            end = len(request.prompt) + request.max_tokens
            pages = self._pages.take(-(-end // self.size.page))
            if pages is None:
                return
            self.queue.popleft()
            text = (*request.prompt, *request.have)
            slot.request, slot.prompt, slot.end, slot.pages = request.id, len(request.prompt), end, pages
            slot.seed, slot.temperature, slot.top_k, slot.stop = (
                request.seed, request.temperature, request.top_k, request.stop,
            )  # fmt: skip
            # The last token of the text is not filled in: it is what the first step of DECODE takes, so that all tokens are
            # drawn in one place.
            slot.fill, slot.filled, slot.position, slot.token = len(text) - 1, 0, len(text) - 1, text[-1]
            slot.phase = Phase.PREFILL if slot.fill else Phase.DECODE
            self._by_request[request.id] = slot
            yield slot, request

    def release(self, slot: Slot) -> None:
        """Its request is over, one way or another."""
        self._pages.give_back(slot.pages)
        del self._by_request[slot.request]
        slot.phase, slot.request, slot.pages = Phase.FREE, 0, ()

    def filling(self) -> Slot | None:
        """The one whose prompt is to be computed next: one at a time, in the order in which they came."""
        return min((slot for slot in self.slots if slot.phase is Phase.PREFILL), key=lambda slot: slot.request, default=None)

    def filled(self, slot: Slot, count: int) -> None:
        slot.filled += count
        if slot.filled >= slot.fill:
            slot.phase = Phase.DECODE

    def decoding(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.phase is Phase.DECODE]

    def advance(self, slots: Sequence[Slot], drawn: Sequence[int]) -> list[Slot]:
        """A step is over, and drew these tokens, one for each slot there is.  Those that are DONE by it."""
        done = []
        for slot in slots:
            slot.position += 1
            slot.token = drawn[slot.number]
            if slot.position + 1 >= slot.end or slot.token == slot.stop:
                slot.phase = Phase.DONE
                done.append(slot)
        return done
