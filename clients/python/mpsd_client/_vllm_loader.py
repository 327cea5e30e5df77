"""The loader of vLLM's --load-format mpsd.

It depends on these parts of vLLM 0.33.0, by their files in its wheel:
    model_executor/model_loader/__init__.py       register_model_loader, get_model_loader
    model_executor/model_loader/base_loader.py    BaseModelLoader, whose load_model ends with process_weights_after_loading
    model_executor/model_loader/weight_cache/     WeightCacheKey, check_ipc_quant_support, export_model_attrs.  Its own loader,
                                                  ipc_cache, shares processed weights like this, by CUDA IPC from a daemon
    model_executor/utils.py                       weights_already_processed: processing makes only the Python objects
    v1/worker/gpu_worker.py                       init_device asks get_external_weight_memory before it measures memory
"""

import json
import time
from dataclasses import asdict
from typing import Any

import torch
from vllm.config.utils import replace
from vllm.distributed import get_dp_group, get_pp_group, get_tp_group
from vllm.model_executor.model_loader import get_model_loader, register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.model_executor.model_loader.weight_cache.protocol import WeightCacheKey, check_ipc_quant_support
from vllm.model_executor.model_loader.weight_cache.utils import export_model_attrs
from vllm.model_executor.utils import weights_already_processed
from vllm.utils.torch_utils import set_default_torch_dtype

from mpsd_client import _calls as calls
from mpsd_client import _cuda
from mpsd_client._arena import Arena
from mpsd_client._client import Client
from mpsd_client._errors import ErrorCode, Refused
from mpsd_client._layout import LayoutError
from mpsd_client._torch_load import load
from mpsd_client._torch_pool import drop_pool, pool
from mpsd_client._torch_save import save
from mpsd_client._vllm_weights import describe, fill_meta, give

FORMAT = "mpsd"
PREFIX = "weights."
LOAD_SECONDS = 1800.0  # how long an engine waits for another one to load
PAUSE_SECONDS = 1.0


def register() -> None:
    register_model_loader(FORMAT)(ArenaModelLoader)


class ArenaModelLoader(BaseModelLoader):
    """The loader.  Extra configuration: arena: its name; capacity_gib: of each rank; ttl_seconds: how long it stays without an
    engine (0: until it is removed); load_format: with which the first engine loads ("auto").  Other keys go to that loader."""

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        extra = dict(load_config.model_loader_extra_config or {})
        self.arena, self.capacity = str(extra.pop("arena", "")), int(float(extra.pop("capacity_gib", 0)) * (1 << 30))
        self.ttl, format_ = float(extra.pop("ttl_seconds", 0)), str(extra.pop("load_format", "auto"))
        if not self.arena or self.capacity <= 0 or format_ == FORMAT:
            raise ValueError('--load-format mpsd needs --model-loader-extra-config \'{"arena": NAME, "capacity_gib": SIZE}\'')
        self._first = replace(load_config, load_format=format_, model_loader_extra_config=extra)

    def get_external_weight_memory(self, vllm_config: Any) -> int:
        """Return the bytes of the budget that are in use before this engine starts: those that it will map.  0 for the first
        engine."""
        with Client() as mpsd:
            try:
                found = mpsd.ask(calls.arena_get(self._name(vllm_config, vllm_config.model_config)))
            except Refused as refused:
                if refused.code != ErrorCode.NO_SUCH_ARENA:
                    raise
                return 0
        return found.used_bytes if found.layout_bytes else 0

    def download_model(self, model_config: Any) -> None:
        get_model_loader(self._first).download_model(model_config)

    def load_weights(self, model: Any, model_config: Any) -> None:
        raise NotImplementedError("weights in an arena are shared, and nobody can change them: load others under another name")

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        """Load or map the weights.  Raises ValueError for settings that do not work with it; LayoutError if the arena has other
        weights."""
        if vllm_config.parallel_config.enable_eplb or model_config.enable_cumem_allocator:
            raise ValueError("--load-format mpsd: no EPLB, which moves weights, and no sleep mode, whose memory is its own")
        key = self._key(vllm_config, model_config)  # before loading, which changes the configuration
        arena = self._take(self._name(vllm_config, model_config))
        if arena.is_writable:
            return self._fill(arena, key, vllm_config, model_config, prefix)
        return self._map(arena, key, vllm_config, model_config, prefix)

    def _take(self, name: str) -> Arena:
        """Open the arena for writing if no engine has loaded the weights, else for reading.  Wait for an engine that is loading
        them."""
        deadline = time.monotonic() + LOAD_SECONDS
        while True:
            try:
                return Arena.create(name, self.capacity, _cuda.uuid_of(torch.cuda.current_device()), ttl=self.ttl)
            except FileExistsError:
                arena = Arena.read(name)
            if arena.layout is not None:
                return arena
            arena.close()
            try:
                return Arena.open(name)  # the engine that created it has died before its commit
            except Refused as refused:
                if refused.code not in (ErrorCode.ARENA_BUSY, ErrorCode.ARENA_SEALED) or time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _fill(self, arena: Arena, key: Any, vllm_config: Any, model_config: Any, prefix: str) -> Any:
        with pool(arena):
            loader = get_model_loader(self._first)
            model = loader.load_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        check_ipc_quant_support(model)  # before others rely on it
        drop_pool(arena)  # frees the blocks of temporary tensors of the loading
        torch.cuda.empty_cache()
        extra = {"key": key, "attributes": export_model_attrs(model), **describe(model)}
        save(arena, {PREFIX.removesuffix("."): model, "extra": extra}, copy=True)  # copies tensors in host memory
        arena.seal()
        return model

    def _map(self, arena: Arena, key: Any, vllm_config: Any, model_config: Any, prefix: str) -> Any:
        extra = arena.extra
        if extra["key"] != key:
            names = sorted(name for name in key if extra["key"].get(name) != key[name])
            raise LayoutError(f"arena {arena.name} has the weights of another engine: {', '.join(names)} differ")
        device = torch.device(vllm_config.device_config.device)
        with set_default_torch_dtype(model_config.dtype):
            with torch.device("meta"):
                model = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
            check_ipc_quant_support(model)
            give(model, {name.removeprefix(PREFIX): each for name, each in load(arena).items()}, extra)
            for name, value in extra["attributes"].items():
                setattr(model, name, value)
            with weights_already_processed():
                process_weights_after_loading(model, model_config, device)
            fill_meta(model, device)
        return model.eval()

    def _name(self, vllm_config: Any, model_config: Any) -> str:
        """Return the name of the arena: one for each rank, and one for the draft model of speculative decoding."""
        ranks = get_dp_group().rank_in_group, get_pp_group().rank_in_group, get_tp_group().rank_in_group
        return f"{self.arena}.{'.'.join(map(str, ranks))}{'.draft' if _is_draft(vllm_config, model_config) else ''}"

    def _key(self, vllm_config: Any, model_config: Any) -> Any:
        """Return the settings that determine the weights: vLLM's own list, as JSON values."""
        dp, pp, tp = get_dp_group(), get_pp_group(), get_tp_group()
        made = WeightCacheKey.from_model_config(
            model_config,
            tp_size=tp.world_size,
            tp_rank=tp.rank_in_group,
            cache_config=vllm_config.cache_config,
            pp_size=pp.world_size,
            pp_rank=pp.rank_in_group,
            is_draft=_is_draft(vllm_config, model_config),
            dp_size=dp.world_size,
            dp_rank=dp.rank_in_group,
            enable_expert_parallel=vllm_config.parallel_config.enable_expert_parallel,
            expert_placement_strategy=vllm_config.parallel_config.expert_placement_strategy,
            kernel_config=vllm_config.kernel_config,
        )
        return json.loads(json.dumps(asdict(made), default=str))


def _is_draft(vllm_config: Any, model_config: Any) -> bool:
    speculative = vllm_config.speculative_config
    return speculative is not None and model_config is speculative.draft_model_config
