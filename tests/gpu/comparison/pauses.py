"""The steps of the pause of a move, from the times in the reports of both members, the image and the events of mpsd."""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tests.gpu.comparison import figures

OVER, BARRIER, WRITTEN, GIVEN, ORDERED, BEGUN, FIRST = "over", "barrier", "written", "given", "ordered", "begun", "first"
STEPS = {  # by the moment that ends each
    OVER: "",
    BARRIER: "the last barrier: hash, copies inside the GPU",
    WRITTEN: "the last image is copied to the host, and has its manifest",
    GIVEN: "the replica finds it, copies it to its GPU and checks it; mpsd gives it the name",
    ORDERED: "it commits and joins; mpsd lets it serve",
    BEGUN: "its term begins",
    FIRST: "its first step",
}
Moments = Mapping[str, float]  # in seconds of the monotonic clock


def image_moments(python: Path, directory: Path, since: float, until: float) -> dict[str, float]:
    """Return the moments of the newest image in the directory whose barrier lies between these two, of the monotonic clock."""
    words = [str(python), "-m", "mpsd.images", "list", "--json", "--directory", str(directory)]
    listed = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    ahead = time.time() - time.monotonic()
    found = [(each["instant"] - ahead, each["written_at"] - ahead) for each in listed["images"]]
    within = [each for each in found if since <= each[0] <= until]
    return dict(zip((BARRIER, WRITTEN), max(within), strict=True)) if within else {}


def steps_of(moments: Moments) -> dict[str, float]:
    """Return the milliseconds of each step whose begin and end are known."""
    pairs = pairwise(STEPS)
    return {end: (moments[end] - moments[begin]) * 1000 for begin, end in pairs if begin in moments and end in moments}


def rows(moves: Sequence[Moments]) -> list[tuple[str, str]]:
    """Return the description of each step, and its milliseconds in these moves."""
    found, pauses = [steps_of(each) for each in moves], [_whole(each) for each in moves]
    cells = [(STEPS[end], [each[end] for each in found if end in each]) for end in list(STEPS)[1:]]
    whole = [each for each in pauses if each is not None]
    return [(what, _cell(each)) for what, each in [*cells, ("all of this", whole)]]


def _whole(moments: Moments) -> float | None:
    return (moments[FIRST] - moments[OVER]) * 1000 if OVER in moments and FIRST in moments else None


def _cell(values: Sequence[float]) -> str:
    return f"median {figures.ms(figures.median(values))}, worst {figures.ms(max(values, default=None))}"
