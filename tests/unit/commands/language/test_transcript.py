"""Every step of the vendor's transcript, through dispatch() to a board in memory: the vendor's answer, or the difference."""

import pytest

from mpsd.commands.language.dispatch import dispatch
from mpsd.model.authority import Caller
from tests.contract.transcript import Reply, Scene, Step, scenes
from tests.unit.commands.language.fake_board import DEVICES, FakeBoard

CLIENT = 586


@pytest.mark.parametrize("scene", scenes(), ids=lambda scene: scene.name)
async def test_scene(scene: Scene) -> None:
    board = FakeBoard(devices=DEVICES[:1])
    names = {"uuid": DEVICES[0].uuid, "prefix": DEVICES[0].uuid[:12]}
    for step in scene.before:
        await check(board, step.filled(names))
    if "server" in scene.needs:
        names["server"] = str(board.add_server(clients=(CLIENT,) if "client" in scene.needs else ()))
        names["client"] = str(CLIENT)
    if "server of uid 1000" in scene.needs:
        names["server"] = str(board.add_server(uid=1000))
    for step in scene.steps:
        await check(board, step.filled(names))


async def check(board: FakeBoard, step: Step) -> None:
    if step.ours.err:
        return  # the front end's own output, without a daemon
    reply = Reply("")
    for line in step.line.split("\n"):
        answer = await dispatch(board, Caller(step.uid, daemon_uid=0), line.encode("latin-1"))
        out = reply.out + answer.stdout.encode().decode("latin-1")
        reply = Reply(out, answer.status or reply.status, reply.err + answer.stderr)
    assert step.ours.accepts(reply), f"{step.line!r}: expected {step.ours}, got {reply}"
