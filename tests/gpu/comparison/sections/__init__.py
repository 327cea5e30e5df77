"""The sections, in the order in which they run: what matters most comes first, should the time run out."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.gpu.comparison.sections import (
    blame,
    contract,
    cost,
    crowd,
    ending,
    failover_cost,
    failover_count,
    failover_fence,
    failover_llm,
    failover_rehearse,
    failover_resize,
    failover_runs,
    failover_sync,
    faults,
    incidents,
    latch,
    limits,
    newcomers,
    pollers,
    private,
    pytorch,
    recovery,
    restart,
    shim_shield,
    shim_torch,
    silence,
    startup,
    stopping,
    strangers,
    throughput,
    two_gpus,
    unprivileged,
    vault_bad,
    vault_fencing,
    vault_gone,
    vault_guards,
    vault_images,
    vault_many,
    vault_survival,
    vault_times,
    vault_torch,
    watched,
)
from tests.gpu.comparison.stage import Stage


@dataclass(frozen=True, slots=True)
class Section:
    """`seconds`: its most; usually it takes far less."""

    name: str
    seconds: float
    run: Callable[[Stage], object]


SECTIONS = (
    Section("startup", 45, startup.run),
    Section("pytorch", 70, pytorch.run),
    Section("throughput", 45, throughput.run),
    Section("pollers", 75, pollers.run),
    Section("faults", 100, faults.run),
    Section("memory_faults", 560, incidents.run_memory),
    Section("other_faults", 560, incidents.run_others),
    Section("blame", 120, blame.run),
    Section("watched", 60, watched.run),
    Section("recovery", 90, recovery.run),
    Section("stopping", 200, stopping.run),
    Section("latch", 30, latch.run),
    Section("limits", 100, limits.run),
    Section("newcomers", 110, newcomers.run),
    Section("two_gpus", 330, two_gpus.run),
    Section("crowd", 40, crowd.run),
    Section("restart", 30, restart.run),
    Section("silence", 40, silence.run),
    Section("strangers", 40, strangers.run),
    Section("private", 120, private.run),
    Section("ending", 35, ending.run),
    Section("cost", 45, cost.run),
    Section("unprivileged", 30, unprivileged.run),
    Section("vault_survival", 250, vault_survival.run),
    Section("vault_torch", 400, vault_torch.run),
    Section("vault_checks", 150, vault_torch.run_checks),
    Section("vault_fencing", 330, vault_fencing.run),
    Section("shim_shield", 200, shim_shield.run),
    Section("shim_torch", 400, shim_torch.run),
    Section("vault_bad", 60, vault_bad.run),
    Section("vault_gone", 90, vault_gone.run),
    Section("vault_guards", 120, vault_guards.run),
    Section("vault_images", 560, vault_images.run),
    Section("vault_times", 250, vault_times.run),
    Section("vault_many", 200, vault_many.run),
    Section("failover_checks", 100, vault_torch.run_promotions),
    Section("failover_count", 400, failover_count.run),
    Section("failover_rehearse", 240, failover_rehearse.run),
    Section("failover_fence", 200, failover_fence.run),
    Section("failover_llm", 560, failover_llm.run),
    Section("failover_diffusion", 300, failover_runs.run_diffusion),
    Section("failover_training", 300, failover_runs.run_training),
    Section("failover_cost", 250, failover_cost.run),
    Section("failover_resize", 160, failover_resize.run),
    Section("failover_sync", 90, failover_sync.run),
    Section("contract", 150, contract.run),
)
