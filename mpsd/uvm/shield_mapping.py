"""Map a shield into one VA space, piece by piece, until every context of the client has it.

Blocks as its space does.  Guards that sparse is mapped only over ranges that were reserved here.
"""


from msgspec import Struct, field

from mpsd.model.client import ShieldState
from mpsd.uvm.rules.shield import ShieldPlan, Span
from mpsd.uvm.space import Outcome, Space


class ShieldMapping(Struct):
    """`gpus`: UUIDs; the client may have a context on only some of them, so `attempt` repeats the requests for the others."""

    space: Space
    plan: ShieldPlan
    gpus: tuple[str, ...]
    _waiting: dict[Span, set[str]] | None = None  # the GPUs that still lack it; None: nothing is reserved yet
    _laid: dict[Span, set[str]] = field(default_factory=dict)
    _kept: int = 0
    _refusals: list[str] = field(default_factory=list)

    def attempt(self) -> None:
        """Try again what is still missing."""
        if self._waiting is None:
            self._waiting = self._reserve()
        for span, gpus in list(self._waiting.items()):
            for gpu in sorted(gpus):
                self._lay(span, gpu)
            if not self._waiting[span]:
                del self._waiting[span]

    @property
    def is_done(self) -> bool:
        return not self.plan.spans or not self.gpus or self._waiting == {}

    @property
    def state(self) -> ShieldState:
        if not self.plan.spans or not self.gpus:
            return ShieldState.OFF
        if not self._laid:
            return ShieldState.WAITING if not self.is_done else ShieldState.KEPT if self._kept else ShieldState.REFUSED
        return ShieldState.PARTLY if self._waiting or self._refusals or self._kept else ShieldState.ON

    @property
    def laid_bytes(self) -> int:
        return sum(span.length for span in self._laid)

    @property
    def why(self) -> str:
        if self.plan.spans and not self.gpus:
            return "the GPUs of its domain are not known"
        return "; ".join([text for text in (self.plan.why,) if text] + self._refusals)

    def _reserve(self) -> dict[Span, set[str]]:
        reserved = {}
        for span in self.plan.spans if self.gpus else ():
            answer = self.space.reserve(span.base, span.length)
            if answer.outcome is Outcome.DONE:
                reserved[span] = set(self.gpus)
            elif answer.outcome is Outcome.NO_SPACE:
                self.plan = ShieldPlan(())
                break
            elif answer.outcome is Outcome.IN_USE:
                self._kept += 1
            else:
                self._refuse(span, answer.why)
        return reserved

    def _lay(self, span: Span, gpu: str) -> None:
        assert self._waiting is not None
        answer = self.space.lay_sparse(span.base, span.length, gpu)
        if answer.outcome is Outcome.NOT_YET:
            return
        self._waiting[span].discard(gpu)
        if answer.outcome is Outcome.DONE:
            self._laid.setdefault(span, set()).add(gpu)
            return
        self._refuse(span, answer.why)
        if not self._waiting[span] and span not in self._laid:
            self.space.free(span.base, span.length)

    def _refuse(self, span: Span, why: str) -> None:
        self._refusals.append(f"0x{span.base:x}: {why}")
