"""Build the vault, and join it with the leases and with the resources of dead clients that mpsd holds."""

from collections.abc import Callable, Sequence

from mpsd.api.event_bus import EventBus
from mpsd.app import settings
from mpsd.app.startup import Startup
from mpsd.errors import NoSuchLease
from mpsd.host import processes, programs
from mpsd.host.own_process import own_id
from mpsd.keeper.memory_keepers import VaultKeepers
from mpsd.leases.lease_book import LeaseBook
from mpsd.model.device import Device
from mpsd.model.process import ProcessId
from mpsd.uvm.attachments import Attachments
from mpsd.vault.allocations import Allocations
from mpsd.vault.arenas import Arenas
from mpsd.vault.catalog import Catalog, VaultParts
from mpsd.vault.descriptor_checks import check_exported, check_simulated
from mpsd.vault.fencing import ArenaHolders, has_ended_wholly
from mpsd.vault.lifecycle import Vault
from mpsd.vault.reclaim import Reclaimer
from mpsd.vault.writers import Writers

KEEPER = "vault-keeper"


def join_vault(
    found: Startup,
    devices: Callable[[], Sequence[Device]],
    book: LeaseBook,
    attachments: Attachments,
    events: EventBus,
    is_served: Callable[[int], bool],
) -> Vault:
    """Build the vault from the configuration and the store.  is_served: of an arena (vault/writers.py).  Raise UnusablePath."""
    config, store = found.config, found.vault_store

    def lease_bytes(lease_id: int, gpu: str) -> int | None:
        try:
            return book.find(lease_id).spec.memory_bytes.get(gpu)
        except NoSuchLease:
            return None

    def lease_of(process: ProcessId) -> int | None:
        grant = book.grant_of(process)
        return None if grant is None else grant.lease_id

    def is_awaited(process: ProcessId) -> bool:
        """Return whether another process waits for the writer's end, and the settings ask for a short wait."""
        return catalog.settings.is_prompt and any(
            entry.queue and entry.arena.writer == process for entry in catalog.by_id.values()
        )

    parts = VaultParts(devices, lease_bytes, events.publish, ranges=found.ranges)
    catalog = Catalog(store, parts, settings.vault(config))
    program = programs.own_program("keeper")
    path, most = found.claim.state_directory / KEEPER, config.vault.max_allocations
    keeper = VaultKeepers(found.inspector, program, path, most, catalog.compare, store)
    reclaimer = Reclaimer(keeper, store, catalog.account.share)
    holders = ArenaHolders(attachments, is_awaited, found.ranges)
    check_memory = check_simulated if config.backend == "sim" else check_exported
    allocations = Allocations(catalog, store, keeper, reclaimer, check_memory)
    writers = Writers(catalog, store, allocations, holders, is_served)
    arenas = Arenas(catalog, store, allocations, writers, holders, reclaimer, lease_of)
    before = store.begin(own_id(), processes.ticks_at(), has_ended_wholly)
    return Vault(arenas, catalog, store, keeper, holders, reclaimer, before)
