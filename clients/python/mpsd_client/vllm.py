"""vLLM's weights in an arena: the first engine loads them, every later or concurrent one maps them.

    vllm serve MODEL --load-format mpsd --model-loader-extra-config '{"arena": "llm", "capacity_gib": 20}'

It is a plugin (`vllm.general_plugins`), which vLLM finds if mpsd-client is installed.  Prose, and what was never run: mpsd's
docs/python.md, "vLLM".  It imports nothing of vLLM before vLLM calls `register`.
"""

import warnings


def register() -> None:
    """Register --load-format mpsd with vLLM.  vLLM calls it in each of its processes, possibly more than once."""
    try:
        from mpsd_client import _vllm_loader
    except ImportError as exc:  # other load formats still work with this version of vLLM
        warnings.warn(f"--load-format mpsd is for vLLM 0.33: {exc}", RuntimeWarning, stacklevel=2)
        return
    _vllm_loader.register()
