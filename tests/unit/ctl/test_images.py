"""mpsctl image: the progress that it prints, and the processes that it stops."""

import json
import os
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from mpsctl.commands import images
from mpsctl.output import Output
from mpsctl.surroundings import Surroundings

from tests.unit.ctl.console import Terminal


def said(stderr: StringIO, *, is_json: bool) -> str:
    progress = images.Progress(Output(Surroundings(StringIO(), stderr, {}, lambda: 0.0, str), is_json=is_json))
    progress(1 << 30, 4 << 30)
    progress.end()
    return stderr.getvalue()


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "EACH_SECONDS", 0.0)
    assert said(Terminal(), is_json=False) == "\r1G of 4G \n"
    assert said(StringIO(), is_json=False) == "", "no terminal"
    assert json.loads(said(StringIO(), is_json=True)) == {"done_bytes": 1 << 30, "total_bytes": 4 << 30}


def test_short_work_says_nothing() -> None:
    assert said(Terminal(), is_json=False) == said(StringIO(), is_json=True) == ""


def test_pids_of_another_namespace_name_nothing_here() -> None:
    """In a container mpsctl stopped the process with the writer's number, while the writer went on and the image was torn."""
    session: Any = SimpleNamespace(mpsd=SimpleNamespace(hello=SimpleNamespace(pid=os.getpid() + 1)), all=lambda call: [])
    with pytest.raises(images.ImageError, match="another pid namespace"):
        images._writers(session, [])
    session.mpsd.hello.pid = os.getpid()
    assert images._writers(session, []) == []
