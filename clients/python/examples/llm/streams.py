"""The requests that are open, and which of their tokens are there.  Pure: no sockets, no clock.

Guards what a client is promised: each token once, in order, none missing.  Members come and go; what two of them say of the
same token must agree.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace

from asked import Request


@dataclass(slots=True)
class Counts:
    """Since the front end began.  busy: were refused since too many were open.  unfinished: ended before all tokens were there.
    again: tokens that came twice; differing: and were not the same, which is an error.  gaps: how often the member was asked
    again.  members: conversations."""

    finished: int = 0
    refused: int = 0
    busy: int = 0
    unfinished: int = 0
    tokens: int = 0
    again: int = 0
    differing: int = 0
    gaps: int = 0
    members: int = 0

    def facts(self) -> dict[str, int]:
        return asdict(self)


@dataclass(slots=True)
class Stream:
    """wake: called when there is something new.  why: what became of it, where it was not tokens."""

    request: Request
    wake: Callable[[], None]
    tokens: list[int] = field(default_factory=list)
    why: str = ""
    asked: int = -1  # from which token on the member was asked again; once is enough

    @property
    def is_complete(self) -> bool:
        return self.request.is_complete(len(self.tokens), self.tokens[-1] if self.tokens else -1)


class Streams:
    """most: how many may be open.  tell: says something to the member that serves.  note: hears of each new token: its request
    and its index.  complain: hears of what must not be."""

    def __init__(
        self,
        most: int,
        tell: Callable[[str, object], None],
        note: Callable[[int, int], None],
        complain: Callable[[str], None],
        first: int = 1,
    ) -> None:
        self.counts = Counts()
        self._most, self._tell, self._note, self._complain = most, tell, note, complain
        self._open: dict[int, Stream] = {}
        self._next = first

    def __len__(self) -> int:
        return len(self._open)

    def number(self) -> int:
        """For the next request."""
        self._next += 1
        return self._next - 1

    def begin(self, request: Request, wake: Callable[[], None]) -> Stream | None:
        """None: there are as many as there may be."""
        if len(self._open) >= self._most:
            self.counts.busy += 1
            return None
        made = self._open[request.id] = Stream(request, wake)
        self._tell("request", request.facts())
        return made

    def open(self) -> list[Request]:
        """Those of which tokens are missing, with the tokens that are there, for a member that has just come."""
        for each in self._open.values():
            each.asked = -1
        return [replace(each.request, have=tuple(each.tokens)) for each in self._open.values()]

    def end(self, stream: Stream) -> None:
        """Its client wants no more of it."""
        if self._open.pop(stream.request.id, None):
            self.counts.unfinished += 1
            self._tell("cancel", stream.request.id)

    def take(self, found: Iterable[tuple[int, int, int]]) -> None:
        """Tokens of the member that serves: request, index, token; also of requests that are not open any more."""
        for number, index, token in found:
            if stream := self._open.get(number):
                self._take(stream, index, token)

    def _take(self, stream: Stream, index: int, token: int) -> None:
        number, tokens = stream.request.id, stream.tokens
        if index < len(tokens):
            self.counts.again += 1
            if tokens[index] != token:
                self.counts.differing += 1
                self._complain(f"request {number}, token {index}: it was {tokens[index]}, and comes again as {token}")
        elif index > len(tokens):
            if stream.asked != len(tokens):
                stream.asked = len(tokens)
                self.counts.gaps += 1
                self._tell("again", (number, len(tokens)))
        else:
            tokens.append(token)
            self.counts.tokens += 1
            self._note(number, index)
            if stream.is_complete:
                self.counts.finished += 1
                del self._open[number]
                self._tell("got", number)
            stream.wake()

    def refuse(self, number: int, why: str) -> None:
        """A member cannot do this, and no other one could."""
        if stream := self._open.pop(number, None):
            self.counts.refused += 1
            stream.why = why
            stream.wake()
