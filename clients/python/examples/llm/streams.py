"""The open requests and the tokens received for each.  Pure: no sockets, no clock.

Each client receives each token once, in order, and without gaps.  Members come and go; two members must produce the same
token for the same index.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace

from asked import Request

MOST_TOKENS = 1 << 21  # of all open requests: a member that connects is sent them all at once

@dataclass(slots=True)
class Counts:
    """Counters since the start of the front end.  busy: requests refused because too many were open.  unfinished: requests
    that ended before all their tokens arrived.  again: tokens received twice; differing: those of them with another value,
    which is an error.  gaps: how often the front end asked a member to repeat tokens.  members: connections of members."""

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
    """An open request.  wake: called after a new token or a refusal.  why: the reason of a refusal, else empty."""

    request: Request
    wake: Callable[[], None]
    tokens: list[int] = field(default_factory=list)
    why: str = ""
    asked: int = -1  # the index from which the member was last asked to repeat, so that each gap is asked for once

    @property
    def is_complete(self) -> bool:
        return self.request.is_complete(len(self.tokens), self.tokens[-1] if self.tokens else -1)


class Streams:
    """The open requests.  most: the limit of open requests.  tell: sends a message to the serving member.  note: called for
    each new token with its request and index.  complain: called with the text of a protocol violation."""

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
        """Return the number for the next request."""
        self._next += 1
        return self._next - 1

    def begin(self, request: Request, wake: Callable[[], None]) -> Stream | None:
        """Open a stream for the request and send the request to the member.  Return None if `most` requests are open, or if
        they could come to more than MOST_TOKENS."""
        tokens = request.most_tokens + sum(each.request.most_tokens for each in self._open.values())
        if len(self._open) >= self._most or tokens > MOST_TOKENS:
            self.counts.busy += 1
            return None
        made = self._open[request.id] = Stream(request, wake)
        self._tell("request", request.facts())
        return made

    def open(self) -> list[Request]:
        """Return the unfinished requests with the tokens received so far, for a member that has just connected."""
        for each in self._open.values():
            each.asked = -1
        return [replace(each.request, have=tuple(each.tokens)) for each in self._open.values()]

    def end(self, stream: Stream) -> None:
        """Cancel the request because its client has left.  A finished request is left as it is."""
        if self._open.pop(stream.request.id, None):
            self.counts.unfinished += 1
            self._tell("cancel", stream.request.id)

    def take(self, found: Iterable[tuple[int, int, int]]) -> None:
        """Store tokens from the serving member: (request, index, token).  Tokens of closed requests are ignored."""
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
        """Close a request that the member refused; no other member could serve it either."""
        if stream := self._open.pop(number, None):
            self.counts.refused += 1
            stream.why = why
            stream.wake()
