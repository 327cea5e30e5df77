"""What the sections do where things go wrong: no time is wasted on what cannot be, and the reason is in the table."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.gpu.comparison import failover, failover_trials
from tests.gpu.comparison.clients import Client, end_all, gist
from tests.gpu.comparison.failover import Crew, Failover
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed
from tests.gpu.comparison.table import Table

PYTORCH = """\
Traceback (most recent call last):
  File "member.py", line 184, in <module>
    main()
torch.AcceleratorError: CUDA error: unspecified launch failure
Search for `cudaErrorLaunchFailure' in https://docs.nvidia.com/cuda for more information.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

""".splitlines()


class Place:
    """A stage and a system in one, as far as they are needed.  seconds: that are left, one less for each time it is asked."""

    def __init__(self, pipe: Path, seconds: float = 1e9) -> None:
        self.pipe, self.seconds = pipe, seconds
        self.clients: list[Client] = []
        self.table = Table()
        self.section = "failover"

    def left(self) -> float:
        self.seconds -= 1
        return self.seconds

    def say(self, text: str) -> None:
        pass

    def keep(self, key: str, figures: object) -> None:
        pass

    def add(self, what: str, **cells: Any) -> None:
        self.table.add(self.section, what, **cells)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (PYTORCH, "torch.AcceleratorError: CUDA error: unspecified launch failure"),
        ([*PYTORCH, "Traceback (most recent call last):", "  x", "OSError: b"], f"{PYTORCH[3]}; OSError: b"),
        (["a", "b", "c", "d"], "b c d"),
        ([], ""),
    ],
    ids=["behind a traceback", "two", "none", "nothing"],
)
def test_what_matters_of_what_a_program_printed(lines: list[str], expected: str) -> None:
    assert gist(lines) == expected


def test_members_that_die_as_they_come_are_not_waited_for(tmp_path: Path) -> None:
    place = Place(tmp_path)
    argv = [sys.executable, "-S", "-c", "import no_such_thing"]
    crew = Crew(cast(Stage, place), cast(System, place), "llm", lambda: Client(argv, {}))
    with pytest.raises(SystemFailed, match="ModuleNotFoundError: No module named 'no_such_thing'"):
        crew.settle()
    assert crew.starts < failover.MOST_STARTS


def test_of_a_program_that_hangs_it_is_told_where(tmp_path: Path) -> None:
    program = tmp_path / "hanging.py"
    program.write_text("import time\ndef hang():\n    print('hangs', flush=True)\n    time.sleep(60)\nhang()\n")
    client = Client([sys.executable, "-S", str(failover.FAULTING), str(program)], {})
    try:
        assert client.wait_for_line("hangs", 10.0)
        assert re.match(r"running: hanging.py:[34] hang < hanging.py:5 <module> < ", client.trouble)  # 3: it has just printed
    finally:
        end_all([client])


def tried(monkeypatch: pytest.MonkeyPatch, place: Place, outcome: Callable[[str], Failover]) -> list[str]:
    ways: list[str] = []

    def attempt(crew: Crew, way: str, *_: object) -> Failover:
        ways.append(way)
        return outcome(way)

    monkeypatch.setattr(failover_trials, "attempt", attempt)
    crew = Crew(cast(Stage, place), cast(System, place), "llm", lambda: Client([], {}))
    failover_trials.run_ways(cast(Stage, place), crew, ("a", "b"), 3, lambda *_: failover.Outcome(0, 0, True))
    return ways


def test_a_way_that_fails_twice_is_given_up_and_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    ways = tried(monkeypatch, place, lambda way: Failover(way, why="it did not" if way == "a" else "", total=1.0, is_same=True))
    assert ways == ["a", "b", "a", "b", "b"]
    a, b, _ = place.table.rows
    assert (a.met, b.met) == (False, True)
    assert "3 were wanted; it did not" in a.remark


def test_where_time_is_short_every_way_is_tried_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, seconds=4)
    assert tried(monkeypatch, place, lambda way: Failover(way, total=1.0, is_same=True)) == ["a", "b", "a"]
    assert [(row.mpsd, row.met) for row in place.table.rows[::2]] == [("2 of 2", True), ("1 of 1", True)]
