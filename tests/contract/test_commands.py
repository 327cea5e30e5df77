"""Every recorded scene, to every control program: what the vendor answers, or a difference that is written down."""

from typing import Any

import pytest

from tests.contract.playing import play, unplayable
from tests.contract.programs import Program, programs
from tests.contract.transcript import Scene, scenes

# What mpsd says there is what tests/unit/commands/language compares without a daemon; what it does, tests/integration.
OF_ITS_WORDS = (
    "several lines", "no server", "start_server for a negative uid", "default percentage", "default memory limit",
    "default memory limit, values that are none", "default memory limit, naming devices", "default client priority",
    "quit with what it does not know",
)  # fmt: skip


def row(program: Program, scene: Scene) -> Any:
    is_slow = program.is_ours and scene.name in OF_ITS_WORDS
    return pytest.param(program, scene, id=f"{program.name}-{scene.name}", marks=[pytest.mark.slow] if is_slow else [])


@pytest.mark.deadline(120)
@pytest.mark.parametrize(
    ("program", "scene"), [row(program, scene) for program in programs() for scene in scenes()], indirect=["program"]
)
def test_scene(program: Program, scene: Scene) -> None:
    if why := unplayable(scene):
        pytest.skip(why)
    wrong = [str(played) for played in play(program, scene) if not played.is_same]
    assert not wrong, "\n".join(wrong)
