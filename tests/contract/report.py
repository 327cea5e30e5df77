"""A table of the answers of control programs.

    python -m tests.contract.report --control PATH [--control PATH2] [--all] [--scene NAME]

One row for each step of each recorded scene: the line, each program's answer, and whether the answers are the same; with one
program, the record of the vendor's is next to it. Pids and UUIDs of a run are replaced by names. It needs only the standard
library.
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from tests.contract.playing import Played, play, unplayable
from tests.contract.programs import Program, program_at
from tests.contract.transcript import Expected, Reply, Scene, scenes

WIDTH = 44


def main() -> int:
    options = _options()
    programs = [program_at(control) for control in options.control]
    if missing := [f"{program.name}: {why}" for program in programs if (why := program.missing())]:
        print(*missing, sep="\n", file=sys.stderr)
        return 2
    names = [program.name for program in programs] if len(programs) > 1 else ["driver 580, recorded", programs[0].name]
    _print_row("command", *names, "same?")
    chosen = [scene for scene in scenes() if options.scene in (None, scene.name)]
    unexpected = sum(_print_scene(scene, programs, options.all) for scene in chosen)
    print(f"\n{unexpected} unexpected answers")
    return 1 if unexpected else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.contract.report", description=__doc__.partition("\n")[0])
    parser.add_argument("--control", type=Path, action="append", required=True, help="a control program; once or twice")
    parser.add_argument("--all", action="store_true", help="also the steps with the same answer")
    parser.add_argument("--scene", choices=[scene.name for scene in scenes()], help="only this one")
    return parser.parse_args()


def _print_scene(scene: Scene, programs: list[Program], show_all: bool) -> int:
    """The number of answers that are neither the vendor's nor a difference that is written down."""
    if why := unplayable(scene):
        print(f"-- {scene.name}: skipped, {why}")
        return 0
    print(f"-- {scene.name}")
    unexpected = 0
    for steps in zip_longest(*(_played(program, scene) for program in programs)):
        if None in steps:
            print("   a program gave up: its steps are missing")
            return unexpected + 1
        unexpected += sum(not step.is_same for step in steps)
        verdict, replies = _verdict(steps), [_shown(step) for step in steps]
        if show_all or verdict != "yes":
            recorded = [_text(steps[0].step.vendor)] if len(steps) == 1 else []
            _print_row(steps[0].template, *recorded, *replies, verdict)
    return unexpected


def _played(program: Program, scene: Scene) -> Iterator[Played]:
    try:
        yield from play(program, scene)
    except AssertionError as error:  # it did not start, or no server or client came up
        print(f"   {program.name}: {error}")


def _verdict(steps: tuple[Played, ...]) -> str:
    wrong = [step for step in steps if not step.is_same]
    if wrong:
        return "NO, unexpected"
    why = next((step.step.why for step in steps if step.is_ours), "")
    return f"no: {why}" if why else "yes"


def _shown(played: Played) -> str:
    reply = played.reply
    return _cut(Reply(played.by_name(reply.out), reply.status, reply.err))


def _text(expected: Expected) -> str:
    return _cut(Reply(expected.out if expected.pattern is None else f"~ {expected.pattern}", expected.status, expected.err))


def _cut(reply: Reply) -> str:
    text = repr(reply.out)[1:-1] + (f" [stderr {reply.err.strip()}]" if reply.err else "")
    text = f"{text[: WIDTH - 2]}.." if len(text) > WIDTH else text
    return f"{text} ({reply.status})" if reply.status else text


def _print_row(line: str, *cells: str) -> None:
    shown = repr(line)[1:-1]
    print(f"{shown[: WIDTH + 12]:<{WIDTH + 12}} | " + " | ".join(f"{cell:<{WIDTH}}" for cell in cells), flush=True)


if __name__ == "__main__":
    sys.exit(main())
