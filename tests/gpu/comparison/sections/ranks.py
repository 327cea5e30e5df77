"""Two GPUs: a training of two ranks, which are killed at random moments, ends with the weights of an undisturbed training."""

from mpsd.images.store import Images
from tests.gpu.comparison import figures, vault
from tests.gpu.comparison.replicas import images_in_memory
from tests.gpu.comparison.stage import Stage
from tests.two_ranks import HUNG_SECONDS, RANKS, STEPS, STRIKES, Training, train

GROUPS = ("undisturbed", "killed")


def run(stage: Stage) -> None:
    stage.mpsd.renew()
    gpus = stage.gpus()[: len(RANKS)]
    wanted = min(stage.trials(len(STRIKES)), len(STRIKES))
    with images_in_memory(stage) as directory:
        undisturbed, killed = (
            train(stage.options.python, [gpus[0], gpus[-1]], group, directory, stage.mpsd.environment(), strikes)
            for group, strikes in zip(GROUPS, (0, wanted), strict=True)
        )
        with Images.open(directory) as images:
            damaged = images.listing().damaged
    vault.remove(stage.mpsd, *(f"{group}-rank{rank}" for group in GROUPS for rank in RANKS))
    strikes_made = [(each.kind, each.seconds) for each in killed.strikes]
    stage.keep("ranks", {"undisturbed": undisturbed.reports, "killed": killed.reports, "strikes": strikes_made})
    what = f"a training of {len(RANKS)} ranks on {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"
    _report(stage, what, undisturbed, killed, wanted)
    stage.add(
        f"{what}: damaged images", mpsd=f"{len(damaged)}", goal="0", met=not damaged, remark="; ".join(damaged.values())[:300]
    )  # fmt: skip
    _report_times(stage, what, killed)


def _report(stage: Stage, what: str, undisturbed: Training, killed: Training, wanted: int) -> None:
    failed = [f"the launcher with status {each.status}" for each in (undisturbed, killed) if each.status]
    is_same = killed.is_as(undisturbed) and not failed
    stage.add(
        f"{what}, disturbed: the weights after {STEPS} steps are those of an undisturbed run",
        mpsd="yes" if is_same else "no", goal="yes", met=is_same,
        remark=f"starts of the undisturbed one: {len(undisturbed.values('life'))}; failed: {', '.join(failed) or 'none'}"[:300],
    )  # fmt: skip
    kinds = [each.kind for each in killed.strikes]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(STRIKES))
    stage.add(
        f"{what}: strikes", mpsd=figures.of(len(kinds), wanted), goal="all", met=len(kinds) == wanted, remark=counts
    )  # fmt: skip
    epochs = killed.values("epoch")
    is_ascending = epochs == sorted(epochs)
    stage.add(
        f"{what}: starts of both ranks, each from the epoch of the one before or a later one",
        mpsd=f"{len(epochs)}", goal="ascending", met=is_ascending, remark=f"epochs {', '.join(map(str, epochs))}",
    )  # fmt: skip


def _report_times(stage: Stage, what: str, killed: Training) -> None:
    def seconds(*kinds: str) -> str:
        found = [each.seconds for each in killed.strikes if each.kind in kinds and each.seconds is not None]
        return f"median {figures.median(found):.1f} s, longest {max(found):.1f} s" if found else figures.NONE

    hung = f"a rank that hangs: {seconds('hung')}, {HUNG_SECONDS} s of which the other one waits"
    stage.add(
        f"{what}: from the end of a rank until both make steps again",
        mpsd=seconds("rank", "both"),
        remark=f"{hung}; the end of an imager: {seconds('imager')}",
    )
    remark = f"of both ranks together, which make {STEPS * len(RANKS)}"
    stage.add(f"{what}: steps repeated", mpsd=f"{killed.repeated}", remark=remark)
