"""Every recorded scene, to every control program: what the vendor answers, or a difference that is written down."""

import pytest

from tests.contract.playing import play, unplayable
from tests.contract.programs import Program
from tests.contract.transcript import Scene, scenes


@pytest.mark.deadline(120)
@pytest.mark.parametrize("scene", scenes(), ids=lambda scene: scene.name)
def test_scene(program: Program, scene: Scene) -> None:
    if why := unplayable(scene):
        pytest.skip(why)
    wrong = [str(played) for played in play(program, scene) if not played.is_same]
    assert not wrong, "\n".join(wrong)
