"""vLLM's own classes, on its CPU platform and without its kernels: mpsd_client's loader loads a model of two layers "into an
arena", and another one maps it.  The arena is a dictionary: only a GPU has real ones.

    vllm_on_a_cpu.py FOLDER      prints one line of JSON for each check
"""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform

vllm.platforms._current_platform = CpuPlatform()  # before others import it

from mpsd_client import _vllm_loader  # noqa: E402
from mpsd_client.vllm import register  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed import init_distributed_environment, initialize_model_parallel  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.model_loader import get_model_loader  # noqa: E402

MODEL = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 512,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
EXTRA = {"arena": "llm", "capacity_gib": 1, "load_format": "dummy"}


class Arena:
    name, is_writable, is_sealed = "llm.0.0.0", True, False

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self.extra: Any = None

    def seal(self) -> None:
        self.is_writable, self.is_sealed = False, True


def save(arena: Arena, state: dict[str, Any], *, copy: bool) -> None:
    assert copy
    model = state["weights"]
    everything = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    arena.tensors = {f"weights.{name}": each.detach() for name, each in everything}
    arena.extra = json.loads(json.dumps(state["extra"]))


def configure(folder: Path, **changes: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(MODEL))
    extra = EXTRA | changes
    made = EngineArgs(
        str(folder), load_format="mpsd", model_loader_extra_config=extra, skip_tokenizer_init=True, enforce_eager=True
    )
    return made.create_engine_config()


def everything(model: Any) -> dict[str, Any]:
    return dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))


def refusal(call: Any) -> str:
    try:
        call()
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    return ""


def main(folder: Path) -> None:
    register()
    config, arena = configure(folder), Arena()
    for name, fake in {"save": save, "load": lambda arena: arena.tensors, "pool": contextlib.nullcontext}.items():
        setattr(_vllm_loader, name, fake)
    _vllm_loader.drop_pool = lambda arena: None
    _vllm_loader.ArenaModelLoader._take = lambda self, name: arena
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{folder}/meet", 0, "gloo")
        initialize_model_parallel(1, 1)
        first = get_model_loader(config.load_config).load_model(vllm_config=config, model_config=config.model_config)
        before = {name: each.detach().clone() for name, each in everything(first).items()}
        again = configure(folder)
        with set_current_vllm_config(again):
            second = get_model_loader(again.load_config).load_model(vllm_config=again, model_config=again.model_config)
        other = configure(folder)
        other.model_config.revision = "another"
        stranger = get_model_loader(other.load_config)
        why = refusal(lambda: stranger.load_model(vllm_config=other, model_config=other.model_config))
    found, nameless = everything(second), configure(folder, arena="")
    is_parameter = {name for name, _ in second.named_parameters(remove_duplicate=False)}
    checks = {
        "sealed": arena.is_sealed,
        "the same names": found.keys() == before.keys(),
        "the same bits": all(torch.equal(found[name], each) for name, each in before.items()),
        "parameters are the arena's memory": all(
            found[name].data_ptr() == arena.tensors[f"weights.{name}"].data_ptr() for name in is_parameter
        ),
        "buffers are not": all(
            each.data_ptr() != arena.tensors[f"weights.{name}"].data_ptr() for name, each in second.named_buffers()
        ),
        "tied weights are": second.lm_head.weight is second.model.embed_tokens.weight,
        "nothing is on the meta device": not any(each.is_meta for each in found.values()),
        "other weights are refused": why.startswith("LayoutError") and "revision" in why,
        "nobody changes them": refusal(lambda: stranger.load_weights(second, None)).startswith("NotImplementedError"),
        "no name is refused": refusal(lambda: get_model_loader(nameless.load_config)).startswith("ValueError"),
    }
    for name, holds in checks.items():
        print(json.dumps({"check": name, "holds": bool(holds)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
