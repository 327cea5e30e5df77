"""What a call is: a request that was not sent yet.  Which there are is in _calls.py."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from mpsd_client._reading import read
from mpsd_client._values import Page

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request that was not sent yet, and how its result is read.

    fds: descriptors that go with it; they stay the caller's.  read_with: how a result is read that descriptors come with, which
    belong to whoever gets it from then on; None: such as come are closed.
    """

    method: str
    params: Mapping[str, Any]
    read: Callable[[Any], T]
    fds: tuple[int, ...] = ()
    read_with: Callable[[Any, tuple[int, ...]], T] | None = None


def make_call(method: str, kind: type[T], **params: Any) -> Call[T]:
    """What is None is not said: mpsd then takes its default."""
    return Call(method, {name: value for name, value in params.items() if value is not None}, partial(read, kind))


def make_page(method: str, kind: type[T], **params: Any) -> Call[Page[T]]:
    call = make_call(method, kind, **params)
    return Call(method, call.params, partial(_read_page, kind))


def _read_page(kind: type[T], found: Any) -> Page[T]:
    rest = read(_Rest, found)
    return Page(tuple(read(kind, each) for each in rest.items), rest.next)


@dataclass(frozen=True, slots=True)
class _Rest:
    items: list[Any]
    next: int | None


def after(call: Call[Page[T]], page: Page[T]) -> Call[Page[T]] | None:
    """The call for what comes behind a page; None at the end."""
    return None if page.next is None else replace(call, params={**call.params, "after": page.next})
