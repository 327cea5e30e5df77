"""A client's request to continue a prompt; front end and members use the same value.  Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST_PROMPT = 1 << 16  # tokens; a member's own limit is its --length, and it refuses longer requests
MOST_CANDIDATES = 64  # the most likely tokens from which one is drawn at a temperature other than 0


@dataclass(frozen=True, slots=True)
class Request:
    """A request.  id: the front end's number.  seed: of the draws.  temperature: 0 is greedy.  stop: a token that ends the
    answer; -1: none.  have: tokens that the client has already."""

    id: int
    prompt: tuple[int, ...]
    max_tokens: int
    seed: int = 0
    temperature: float = 0.0
    top_k: int = MOST_CANDIDATES
    stop: int = -1
    have: tuple[int, ...] = ()

    @property
    def most_tokens(self) -> int:
        """The tokens that it can come to, its prompt included."""
        return len(self.prompt) + self.max_tokens

    def is_complete(self, count: int, last: int) -> bool:
        """Return whether an answer of `count` tokens that ends with `last` is complete."""
        return count >= self.max_tokens or (count > 0 and last == self.stop)

    def facts(self) -> dict[str, Any]:
        """Return the request as a JSON object, for `of_facts`."""
        return {name: getattr(self, name) for name in self.__slots__}


def of_facts(facts: Mapping[str, Any]) -> Request:
    """Return the request in a line of the front end, which is trusted: it is a process of the same user."""
    return Request(**dict(facts) | {"prompt": tuple(facts["prompt"]), "have": tuple(facts["have"])})


def of_client(number: int, found: Any) -> Request:
    """Return the request in a client's JSON, which is untrusted.  Raises ValueError with a text for the client."""
    if not isinstance(found, dict):
        raise ValueError("a JSON object is expected")
    if unknown := found.keys() - {"prompt", "max_tokens", "seed", "temperature", "top_k", "stop"}:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))[:200]}")
    return Request(
        number,
        _prompt(found.get("prompt")),
        _count(found, "max_tokens", 1, MOST_PROMPT, 16),
        _count(found, "seed", 0, (1 << 63) - 1, 0),
        _temperature(found.get("temperature", 0.0)),
        _count(found, "top_k", 1, MOST_CANDIDATES, MOST_CANDIDATES),
        _count(found, "stop", -1, (1 << 31) - 1, -1),
    )


def _prompt(found: Any) -> tuple[int, ...]:
    """Return the prompt's token ids.  The bytes of a text are its tokens: random weights have no use for a tokenizer."""
    tokens = list(found.encode()) if isinstance(found, str) else found
    if not isinstance(tokens, list) or not 0 < len(tokens) <= MOST_PROMPT:
        raise ValueError(f"prompt: 1 to {MOST_PROMPT} token ids, or a text")
    if not all(type(token) is int and 0 <= token < 1 << 31 for token in tokens):
        raise ValueError("prompt: token ids are numbers from 0")
    return tuple(tokens)


def _count(found: Mapping[str, Any], name: str, least: int, most: int, default: int) -> int:
    value = found.get(name, default)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name}: a whole number from {least} to {most}")
    return value


def _temperature(found: Any) -> float:
    if type(found) not in (int, float) or not 0.0 <= found <= 100.0:
        raise ValueError("temperature: a number from 0 to 100")
    return float(found)
