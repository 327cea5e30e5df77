"""The assignment of requests to slots, and their progress: continuous batching without preemption.  Pure: no GPU, no clock.

    submit -> queue -> admit: FREE -> PREFILL -> DECODE -> DONE -> FREE

The scheduler admits a request once a slot and all the pages that the request can ever need are free, so it never preempts one.
A request is DONE when its last token is made, and keeps its slot until the front end confirms all tokens: if the process dies
between the two, the next one finds in the slot the tokens still to be sent.
"""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from asked import Request
from pages import Pages

# The columns of a slot's row on the GPU, 64 bits each; the slot's pages follow them.
TOKEN, POSITION, ACTIVE, SEED, TOP_K, TEMPERATURE, COLUMNS = range(7)


class Phase(IntEnum):
    FREE = 0
    PREFILL = 1  # keys and values of the prompt are being computed, some tokens at a time
    DECODE = 2  # each step makes one token
    DONE = 3


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of the cache.  slots: requests computed at once.  length: most tokens of a request, its prompt included.
    page: tokens per page of keys and values.  pages: all pages, page 0 included."""

    slots: int
    length: int
    page: int
    pages: int

    @classmethod
    def of(cls, slots: int, length: int, page: int, pages: int = 0) -> "Size":
        """Check the sizes.  pages 0: enough pages for all slots at full length.  Raises ValueError."""
        if not (0 < slots <= 1024 and 0 < page <= length <= 1 << 20):
            raise ValueError(f"{slots} slots of {length} tokens in pages of {page}: 1 to 1024, and no page is longer")
        per_slot = -(-length // page)
        made = cls(slots, length, page, pages or slots * per_slot + 1)
        if made.pages <= per_slot:
            raise ValueError(f"{made.pages} pages: one request may need {per_slot}, and page 0 is nobody's")
        return made

    @property
    def per_slot(self) -> int:
        """The most pages that a slot can have."""
        return -(-self.length // self.page)

    @property
    def width(self) -> int:
        return COLUMNS + self.per_slot


@dataclass(slots=True)
class Slot:
    """The place of one request in the batch.  prompt: tokens of the client's prompt.  fill: tokens that must be in the cache
    before the first step of DECODE; filled: tokens in it now.  position: the position of `token`, the input of the next step.
    end: the first position beyond the request's tokens."""

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
        """The number of tokens made so far, the prompt excluded."""
        return max(0, self.position + 1 - self.prompt)

    def row(self, width: int) -> "array[int]":
        """Return the slot's row for the GPU."""
        found = array("q", bytes(8 * width))
        active = self.phase is Phase.DECODE
        found[:COLUMNS] = array("q", [self.token, self.position, active, self.seed, self.top_k, _bits(self.temperature)])
        found[COLUMNS : COLUMNS + len(self.pages)] = array("q", self.pages)
        return found


def _bits(value: float) -> int:
    return int.from_bytes(array("f", [value]).tobytes(), "little")


class Scheduler:
    """Assigns requests to slots: one request per slot, and each page to one slot only."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.slots = [Slot(number) for number in range(size.slots)]
        self.queue: deque[Request] = deque()
        self._pages = Pages(size.pages)
        self._by_request: dict[int, Slot] = {}

    def restore(self, slots: Sequence[Slot]) -> None:
        """Take over the slots of a record.  Raises ValueError if they are inconsistent."""
        if [slot.number for slot in slots] != list(range(self.size.slots)):
            raise ValueError(f"the record has {len(slots)} slots, not {self.size.slots}")
        self._pages.take_these(page for slot in slots for page in slot.pages)
        self._by_request = {slot.request: slot for slot in slots if slot.phase is not Phase.FREE}
        self.slots = list(slots)

    def find(self, request: int) -> Slot | None:
        return self._by_request.get(request)

    @property
    def requests(self) -> list[int]:
        """The requests that have a slot."""
        return list(self._by_request)

    def why_never(self, request: Request) -> str:
        """Return why the request can never be admitted; empty if it can."""
        total = len(request.prompt) + request.max_tokens
        if total > self.size.length:
            return f"{len(request.prompt)} tokens of prompt and {request.max_tokens} more are over {self.size.length}"
        return ""

    def submit(self, request: Request) -> None:
        self.queue.append(request)

    def forget(self, request: int) -> None:
        """Remove the request from the queue."""
        self.queue = deque(each for each in self.queue if each.id != request)

    def admit(self) -> Iterator[tuple[Slot, Request]]:
        """Admit queued requests while slots and pages suffice, first come first served, so that small requests cannot starve a
        large one."""
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
            # Prefill leaves out the last token of the text: it is the input of the first step of DECODE, so that all tokens
            # are drawn in one place.
            slot.fill, slot.filled, slot.position, slot.token = len(text) - 1, 0, len(text) - 1, text[-1]
            slot.phase = Phase.PREFILL if slot.fill else Phase.DECODE
            self._by_request[request.id] = slot
            yield slot, request

    def release(self, slot: Slot) -> None:
        """Free the slot and its pages after the request is done or cancelled."""
        self._pages.give_back(slot.pages)
        del self._by_request[slot.request]
        slot.phase, slot.request, slot.pages = Phase.FREE, 0, ()

    def filling(self) -> Slot | None:
        """Return the slot to prefill next: one slot at a time, the oldest request first; None if no slot needs prefill."""
        return min((slot for slot in self.slots if slot.phase is Phase.PREFILL), key=lambda slot: slot.request, default=None)

    def filled(self, slot: Slot, count: int) -> None:
        slot.filled += count
        if slot.filled >= slot.fill:
            slot.phase = Phase.DECODE

    def decoding(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.phase is Phase.DECODE]

    def advance(self, slots: Sequence[Slot], drawn: Sequence[int]) -> list[Slot]:
        """Store the tokens of a finished step.  drawn: one token per slot, indexed by slot number.  Return the slots that are
        now DONE."""
        done = []
        for slot in slots:
            slot.position += 1
            slot.token = drawn[slot.number]
            if slot.position + 1 >= slot.end or slot.token == slot.stop:
                slot.phase = Phase.DONE
                done.append(slot)
        return done
