"""The sections, in the order in which they run: what matters most comes first, should the time run out."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.gpu.comparison.sections import (
    contained_lasts,
    containment,
    contract,
    crowd,
    failover_cost,
    failover_count,
    failover_elastic,
    failover_fence,
    failover_llm,
    failover_rehearse,
    failover_runs,
    incidents,
    limits,
    move,
    newcomers,
    private,
    ranks,
    replica,
    replica_cost,
    replica_lost,
    restart,
    sentinel_cost,
    sentinel_services,
    shim_shield,
    shim_torch,
    startup,
    stopping,
    strangers,
    throughput,
    two_gpus,
    vault_bad,
    vault_fencing,
    vault_images,
    vault_parity,
    vault_restore,
    vault_survival,
    vault_times,
    vault_torch,
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
    Section("throughput", 45, throughput.run),
    Section("memory_faults", 560, incidents.run_memory),
    Section("other_faults", 560, incidents.run_others),
    Section("contained", 1500, containment.run),
    Section("contained_shares", 120, containment.run_shares),
    Section("contained_lasts", contained_lasts.LASTS_SECONDS + contained_lasts.STARTS_SECONDS, contained_lasts.run),
    Section("sentinel_cost", 100, sentinel_cost.run),
    Section("sentinel_services", 150, sentinel_services.run),
    Section("stopping", 200, stopping.run),
    Section("limits", 100, limits.run),
    Section("limits_late", 250, limits.run_late),
    Section("newcomers", 110, newcomers.run),
    Section("two_gpus", 330, two_gpus.run),
    Section("replica", 160, replica.run),
    Section("replica_cost", 400, replica_cost.run),
    Section("replica_lost", 400, replica_lost.run),
    Section("move", 560, move.run),
    Section("crowd", 40, crowd.run),
    Section("restart", 30, restart.run),
    Section("strangers", 40, strangers.run),
    Section("private", 120, private.run),
    Section("vault_survival", 250, vault_survival.run),
    Section("vault_torch", 400, vault_torch.run),
    Section("vault_checks", 150, vault_torch.run_checks),
    Section("vault_fencing", 330, vault_fencing.run),
    Section("shim_shield", 200, shim_shield.run),
    Section("shim_torch", 400, shim_torch.run),
    Section("vault_bad", 60, vault_bad.run),
    Section("vault_images", 560, vault_images.run),
    Section("vault_restore", 118, vault_restore.run),
    Section("vault_image_service", 300, vault_images.run_service),
    Section("vault_image_freeze", 200, vault_images.run_freeze),
    Section("vault_image_llm", 200, vault_images.run_llm),
    Section("vault_parity", 560, vault_parity.run),
    Section("vault_times", 250, vault_times.run),
    Section("failover_checks", 100, vault_torch.run_promotions),
    Section("failover_count", 400, failover_count.run),
    Section("failover_rehearse", 240, failover_rehearse.run),
    Section("failover_fence", 200, failover_fence.run),
    Section("failover_llm", 560, failover_llm.run),
    Section("failover_diffusion", 300, failover_runs.run_diffusion),
    Section("failover_training", 300, failover_runs.run_training),
    Section("failover_cost", 250, failover_cost.run),
    Section("failover_elastic", failover_elastic.SECONDS, failover_elastic.run),
    Section("ranks", 300, ranks.run),
    Section("contract", 150, contract.run),
)
