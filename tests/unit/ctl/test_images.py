"""How much of an image is taken or restored, as mpsctl says it."""

import json
from io import StringIO

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
