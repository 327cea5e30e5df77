"""The type of a call, which is a request not sent yet.  _calls.py has the calls themselves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from mpsd_client._reading import read
from mpsd_client._values import Page, Selector

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request not sent yet, and the function that decodes its result.

    fds: descriptors to send with it; the caller still owns them.  read_with: decodes a result that comes with descriptors,
    which the caller then owns; None: received descriptors are closed.
    """

    method: str
    params: Mapping[str, Any]
    read: Callable[[Any], T]
    fds: tuple[int, ...] = ()
    read_with: Callable[[Any, tuple[int, ...]], T] | None = None


def make_call(method: str, kind: type[T], **params: Any) -> Call[T]:
    """Return a call whose result is one value of this kind.  Parameters that are None are left out: mpsd uses its default."""
    return Call(method, _sent(params), partial(read, kind))


def make_report(method: str, **params: Any) -> Call[None]:
    return Call(method, _sent(params), lambda found: None)


def _sent(params: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: _plain(value) for name, value in params.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Selector):
        return asdict(value)
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


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
    """Return the call for the page after this one; None at the end."""
    return None if page.next is None else replace(call, params={**call.params, "after": page.next})
