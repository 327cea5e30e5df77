"""The settings of the pool of domains."""

from pathlib import Path

from msgspec import Struct


class PoolSettings(Struct, frozen=True):
    """The configuration's [domains], as the pool uses it."""

    home: Path  # one folder a domain
    spares: int
    max_domains: int
    clients_per_server: int
    idle_seconds: float
    poll_seconds: float
    restart_seconds: float
    restart_max_seconds: float
    is_multiuser: bool
    vendor_options: tuple[str, ...]  # options of each vendor daemon in addition to -d
    visible_devices: str | None  # the daemon's own CUDA_VISIBLE_DEVICES, passed on as it is
    recycle_seconds: float = 0.0  # a domain in FAULT for longer is restarted without its clients; 0: never
    reserved_per_gpu: int = 0  # places of each server that a sentinel takes for each GPU
    is_guarded: bool = False  # clients get in only through mpsd, even before any client has limits (domains/limit_guard.py)

    def capacity(self, gpus: tuple[str, ...]) -> int:
        return max(1, self.clients_per_server - self.reserved_per_gpu * len(gpus))
