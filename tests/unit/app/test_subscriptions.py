"""How the parts are joined."""

from types import SimpleNamespace

from mpsd.app.subscriptions import _watch
from mpsd.model.process import ProcessId


def test_the_watch_of_a_client_has_the_user_who_connected() -> None:
    watched: list[tuple[object, ...]] = []
    book = SimpleNamespace(grant_of=lambda process: None, uid_of=lambda process: 1000)
    attachments = SimpleNamespace(watch=lambda *words: watched.append(words))
    domain = SimpleNamespace(name="default", gpus=("GPU",))
    _watch(attachments, book, ProcessId(7, 7), domain, True)  # type: ignore[arg-type]
    [(process, name, gpus, _, is_roomy, uid)] = watched
    assert (process, name, gpus, is_roomy, uid) == (ProcessId(7, 7), "default", ("GPU",), True, 1000)
