"""Images of an arena with a client that never pauses: its stall, the whole time, and its speed, by size and by dirty share."""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.gpu.comparison import figures, vault
from tests.gpu.comparison.clients import Client, Event
from tests.gpu.comparison.pytorch import has_torch, python_path
from tests.gpu.comparison.stage import ROOT, Stage

PROGRAM, SERVICE = ROOT / "tests/gpu/image_client.py", ROOT / "tests/gpu/image_service.py"
SIZES = (20, 60)  # GiB
PERMILLES = (0, 10, 50, 250, 1000)  # of the arena's bytes, in each step
TRIALS = 10
TRIAL_SECONDS = 400.0  # most: of one image, on a slow disk
SPARE = 2 << 30  # bytes that stay free on the disk
FREEZE_GIB, FREEZE_PERMILLE = 20, 100
FREEZE_WAIT = "100ms"  # for the work of the writer, whose steps take less than 1 ms
FREEZE_SECONDS = 60.0  # most: of one image
STAGING_RATE = 1.5e12  # bytes a second
SCAN_MS = {20: 12.0}  # the stall's goal, before the dirty bytes
MOST_STALL_MS = {(20, 50): 20.0}
LEAST_SPEED = 0.97
IMAGES = 100  # of a service in a row
CHECKERS = 4  # processes that restore them
SERVICE_SECONDS = 150.0
LLM, SHAPE, TOKENS = ROOT / "tests/gpu/torch/restored_llm.py", "7B", "786432"  # 57 KiB each
LLM_RESTORES = 3
MOST_FIRST = 0.35  # of the time until all bytes are there


def run(stage: Stage) -> None:
    stage.mpsd.renew()
    stage.mpsd.warm(10)
    place = Path(os.environ.get("IMAGES_DIRECTORY", stage.work))
    few = stage.options.is_simulated  # which is no measure
    for gib in _numbers("IMAGES_GIB", SIZES[:1] if few else SIZES):
        size = gib * vault.unit(stage)
        for permille in _numbers("IMAGES_PERMILLE", PERMILLES[-2:] if few else PERMILLES):
            disk = shutil.disk_usage(place).free
            if size + SPARE > disk or 2 * size > vault.free_bytes(stage.mpsd):
                what = f"{vault.size_text(stage, size)}, {permille / 10:g} % dirty: left out"
                stage.add(what, remark=f"{disk >> 30} GiB are free on the disk")
                continue
            _take(stage, place / "images", gib, permille)
        if not stage.options.is_simulated and os.environ.get("IMAGES_BASELINES") != "0":
            _baselines(stage, place, size)


def run_service(stage: Stage) -> None:
    """Images of a decoding service in a row; other processes restore each of them, and compare memory and record."""
    stage.mpsd.renew()
    stage.mpsd.warm(10)
    count = 5 if stage.options.is_simulated else stage.trials(IMAGES)
    directory = Path(os.environ.get("IMAGES_DIRECTORY", stage.work)) / "service-images"
    service = _python(stage, stage.options.python, "serve", str(count), str(directory), PYTHONPATH=str(ROOT), program=SERVICE)
    service.wait(min(stage.left(), SERVICE_SECONDS))
    taken = {event["name"]: (event["digest"], event["token"]) for event in service.events("image")}
    checkers = [
        _python(stage, stage.options.python, "check", str(directory), program=SERVICE, has_input=True)
        for _ in range(1 if stage.options.is_simulated else CHECKERS)
    ]
    for number, name in enumerate(taken):
        checkers[number % len(checkers)].tell(name)
    restored = {}
    for each in checkers:
        each.release()
        each.wait(min(stage.left(), SERVICE_SECONDS))
        restored |= {event["name"]: (event["digest"], event["token"]) for event in each.events("restored")}
    right = sum(restored.get(name) == content for name, content in taken.items())
    vault.remove(stage.mpsd, "decoding")
    shutil.rmtree(directory, ignore_errors=True)
    trouble = "" if len(taken) == count else service.trouble
    tokens = [token for _, token in taken.values()]
    stage.add(
        f"{count} images of a decoding service, each restored in another process: as at the barrier",
        mpsd=figures.of(right, count),
        goal="all",
        met=right == count,
        remark=(trouble or f"{max(tokens)} tokens meanwhile")[:300],
    )


def run_freeze(stage: Stage) -> None:
    """Images of a writer that knows nothing of them, which mpsctl stops for a moment: how long it stands, and of one moment."""
    stage.mpsd.renew()
    stage.mpsd.warm(10)
    size = int(os.environ.get("FREEZE_GIB", FREEZE_GIB)) * vault.unit(stage)
    trials = 2 if stage.options.is_simulated else stage.trials(TRIALS)
    directory = Path(os.environ.get("IMAGES_DIRECTORY", stage.work)) / "freeze-images"
    words = (str(size), str(FREEZE_PERMILLE))
    writer = _python(stage, stage.options.python, "write", *words, PYTHONPATH=str(ROOT), has_input=True)
    vault.said(writer, "writing")
    stood, right, trouble = [], 0, ""
    for number in range(trials):
        writer.tell("")
        vault.said(writer, "stood")
        taking = stage.mpsd.spawn(
            [str(stage.options.python), "-m", "mpsctl", "image", "take", "imaged", "--freeze", FREEZE_WAIT,
             "--name", f"frozen.{number}", "--directory", str(directory), "--json"],
            {**stage.mpsd.environment(), "PYTHONPATH": f"{ROOT}:{ROOT}/clients/python:{ROOT}/clients/mpsctl"},
        )  # fmt: skip
        status, since = taking.wait(min(stage.left(), FREEZE_SECONDS)), time.monotonic_ns()
        writer.tell("")
        event = writer.wait_for("stood", FREEZE_SECONDS, since)
        if status != 0 or event is None:
            trouble = f"{taking.trouble}; the writer: {writer.trouble}"
            break
        stood.append(event)
        look = ("frozen", *words, str(directory), f"frozen.{number}")
        found = vault.said(_python(stage, stage.options.python, *look, PYTHONPATH=str(ROOT)), "frozen", FREEZE_SECONDS)
        # a kernel of the simulator's stands still with its process, so the image may have the middle of a step there
        is_right = found["is_right"] or (stage.options.is_simulated and found["is_rest_right"] and len(found["steps"]) == 2)
        right += is_right
        trouble = trouble or ("" if is_right else f"steps {found['steps'][:9]}")
        shutil.rmtree(directory, ignore_errors=True)  # each image has all of its bytes to write, as the first
    writer.release()
    writer.wait(FREEZE_SECONDS)
    vault.remove(stage.mpsd, "imaged")
    shutil.rmtree(directory, ignore_errors=True)
    stage.keep("freeze", stood)
    what = f"{vault.size_text(stage, size)}, {FREEZE_PERMILLE / 10:g} % dirty, a writer stopped by mpsctl"
    is_met = right == trials
    stage.add(f"{what}: images of one moment", mpsd=figures.of(right, trials), goal="all", met=is_met, remark=trouble[:300])
    if stood:
        longest = [float(event["longest_ms"]) for event in stood]
        stage.add(
            f"{what}: its longest step, ms",
            mpsd=f"{figures.median(longest):.1f} (worst {max(longest):.1f})",
            remark=f"usually {stood[0]['usual_ms']:.1f}",
        )


def run_llm(stage: Stage) -> None:
    """The first token of an LLM while its weights and cache are being restored."""
    if not has_torch(stage) or stage.options.torch_python is None:
        return
    stage.mpsd.renew()
    stage.mpsd.warm(10)
    directory = Path(os.environ.get("IMAGES_DIRECTORY", stage.work)) / "llm-images"
    more = {"PYTHONPATH": python_path(stage), "MPSD_IMAGER": str(stage.options.python.parent / "mpsd-imager")}

    def run_one(verb: str, event: str) -> Event | None:
        client = _python(stage, stage.options.torch_python, verb, SHAPE, TOKENS, str(directory), program=LLM, **more)
        client.wait(min(stage.left(), SERVICE_SECONDS))
        vault.remove(stage.mpsd, "llm")
        found = client.events(event)
        if not found:
            stage.add(f"{SHAPE}: {verb}", met=False, remark=client.trouble[:300])
        return found[0] if found else None

    taken = run_one("take", "taken")
    verbs = ("restore", "restore_warm") if taken else ()
    restored = {verb: [run_one(verb, "restored") for _ in range(LLM_RESTORES)] for verb in verbs}
    shutil.rmtree(directory, ignore_errors=True)
    stage.keep("llm", [taken, *(each for found in restored.values() for each in found)])
    if taken:
        _add_llm(stage, taken, "", restored["restore"])
        _add_llm(stage, taken, "with an imager that was started before: ", restored["restore_warm"])


def _add_llm(stage: Stage, taken: Event, how: str, restored: Sequence[Event | None]) -> None:
    if not all(restored):
        return
    opened, first, whole = (
        figures.median([float(event[key]) for event in restored if event]) for key in ("opened_s", "first_s", "all_s")
    )
    is_same = all(event and (event["token"], event["logit"]) == (taken["token"], taken["logit"]) for event in restored)
    stage.add(
        f"LLM {SHAPE}, {taken['bytes'] / 1e9:.1f} GB, of which {taken['kv_bytes'] / 1e9:.1f} GB are the cache: "
        f"{how}the part of the restoration after which the first token is there",
        mpsd=f"{first / whole:.2f}",
        goal=f"<= {MOST_FIRST}, the same token",
        met=is_same and first <= MOST_FIRST * whole,
        remark=f"opened after {opened:.2f} s, first token {first:.2f} s, all {whole:.2f} s; "
        f"the token is {'the same' if is_same else 'another'}; the image took {taken['seconds']:.1f} s",
    )


def _numbers(variable: str, numbers: Sequence[int]) -> list[int]:
    return [int(word) for word in os.environ[variable].split(",")] if os.environ.get(variable) else list(numbers)


def _take(stage: Stage, directory: Path, gib: int, permille: int) -> None:
    """Take some images of one client."""
    trials, size = 1 if stage.options.is_simulated else stage.trials(TRIALS), gib * vault.unit(stage)
    words = ("take", str(size), str(permille), str(trials), str(directory))
    client = _python(stage, stage.options.python, *words, PYTHONPATH=str(ROOT))
    status = client.wait(min(stage.left(), TRIAL_SECONDS * trials))
    found, restored = client.events("image"), client.events("restored")
    stage.mpsd.clients.remove(client)
    vault.remove(stage.mpsd, "imaged", "restored")
    shutil.rmtree(directory, ignore_errors=True)
    what = f"{vault.size_text(stage, size)}, {permille / 10:g} % dirty"
    stage.keep(what, found)
    if not found:
        stage.add(what, met=False, remark=f"no image: {client.trouble}"[:300])
        return
    _report(stage, what, found, _goal(gib, permille) if not stage.options.is_simulated else None)
    right = sum(bool(event["is_right"]) for event in found)
    stage.add(f"{what}: images right", mpsd=figures.of(right, trials), goal="all", met=right == trials and status == 0)
    _report_restored(stage, what, size, restored)


def _goal(gib: int, permille: int) -> float | None:
    """Return the most milliseconds of a stall."""
    if gib not in SCAN_MS:
        return None
    dirty_ms = (gib << 30) * permille / 1000 / STAGING_RATE * 1e3
    return min(SCAN_MS[gib] + dirty_ms, MOST_STALL_MS.get((gib, permille), float("inf")))


def _report(stage: Stage, what: str, found: Sequence[Event], most_ms: float | None) -> None:
    def median(key: str) -> float:
        return figures.median([float(event[key]) for event in found]) or 0.0

    stall, speed = median("stall_ms"), median("speed")
    worst = max(float(event["stall_ms"]) for event in found)
    moved = f"staged {median('staged_bytes') / (1 << 20):.0f} MiB, direct {median('direct_bytes') / (1 << 20):.0f} MiB"
    stage.add(
        f"{what}: stall, ms",
        mpsd=f"{stall:.1f} (worst {worst:.1f})",
        goal=f"<= {most_ms:.1f}" if most_ms else "",
        met=stall <= most_ms if most_ms else None,
        remark=moved,
    )
    is_judged = most_ms is not None
    stage.add(
        f"{what}: the client's speed while it is copied",
        mpsd=f"{speed:.3f}",
        goal=f">= {LEAST_SPEED}" if is_judged else "",
        met=speed >= LEAST_SPEED if is_judged else None,
        remark=f"prepared after {median('prepared_s'):.2f} s, on the disk after {median('total_s'):.2f} s",
    )


def _report_restored(stage: Stage, what: str, size: int, found: Sequence[Event]) -> None:
    """The first of eight equal parts, and all."""
    if not found or not all(event["is_right"] for event in found):
        stage.add(f"{what}: restored", met=False, remark="wrong bytes" if found else "not restored")
        return
    opened, first, whole = (
        figures.median([float(event[key]) for event in found]) or 0.0 for key in ("opened_s", "first_s", "all_s")
    )
    is_judged = not stage.options.is_simulated
    stage.add(
        f"{what}: restored: the part of the time after which the first eighth is there",
        mpsd=f"{first / whole:.2f}",
        goal=f"<= {MOST_FIRST}" if is_judged else "",
        met=first <= MOST_FIRST * whole if is_judged else None,
        remark=f"opened after {opened:.2f} s, {size / 1e9 / (whole - opened):.1f} GB/s after that",
    )


def _baselines(stage: Stage, place: Path, size: int) -> None:
    """The same bytes by the ways without mpsd, in which the client stands still throughout."""
    what, directory = vault.size_text(stage, size), place / "saved"
    checkpoint = _python(stage, stage.options.python, "checkpoint", str(size), PYTHONPATH=str(ROOT))
    checkpoint.wait(stage.left())
    ends = {name: event["seconds"] for name in ("checkpoint", "unlock") for event in checkpoint.events(name)}
    stage.add(f"{what}: cuda-checkpoint", vendor=_seconds(ends), remark=checkpoint.trouble if len(ends) < 2 else "without MPS")
    if os.environ.get("IMAGES_BASELINES") == "checkpoint" or not has_torch(stage) or stage.options.torch_python is None:
        return
    directory.mkdir()
    saved = _python(
        stage, stage.options.torch_python, "save", str(size), str(directory), PYTHONPATH=python_path(stage)
    )
    saved.wait(stage.left())
    ends = {name: event["seconds"] for name in ("torch.save", "safetensors") for event in saved.events(name)}
    stage.add(f"{what}: saved by PyTorch", vendor=_seconds(ends), remark="" if ends else saved.trouble[:300])
    shutil.rmtree(directory)


def _seconds(ends: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in ends.items()) or "failed"


def _python(
    stage: Stage, python: Path, *words: str, program: Path = PROGRAM, has_input: bool = False, **more: str
) -> Client:
    return stage.mpsd.spawn([str(python), str(program), *words], {**stage.mpsd.environment(), **more}, has_input)
