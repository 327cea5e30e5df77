"""How the parts are joined."""

import os
from types import SimpleNamespace

from mpsd.app.subscriptions import _adopt, _watch
from mpsd.model.process import Credentials, ProcessId


def test_the_watch_of_a_client_has_the_user_who_connected() -> None:
    watched: list[tuple[object, ...]] = []
    book = SimpleNamespace(grant_of=lambda process: None, uid_of=lambda process: 1000)
    attachments = SimpleNamespace(watch=lambda *words: watched.append(words))
    domain = SimpleNamespace(name="default", gpus=("GPU",))
    _watch(attachments, book, ProcessId(7, 7), domain, True)  # type: ignore[arg-type]
    [(process, name, gpus, _, is_roomy, uid)] = watched
    assert (process, name, gpus, is_roomy, uid) == (ProcessId(7, 7), "default", ("GPU",), True, 1000)


def test_an_adopted_client_counts_against_the_user_who_connected() -> None:
    """Its process, here our own, has another effective uid by now."""
    adopted: list[tuple[ProcessId, Credentials]] = []
    book = SimpleNamespace(adopt=lambda *words: adopted.append(words))
    process = ProcessId(os.getpid(), 7)
    _adopt(book, process, SimpleNamespace(uids={process: 12345}))  # type: ignore[arg-type]
    assert adopted == [(process, Credentials(process.pid, 12345, os.getegid()))]
