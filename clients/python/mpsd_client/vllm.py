"""vLLM's weights in an arena: the first engine loads them, every later one, also one that runs beside it, maps them.

    vllm serve MODEL --load-format mpsd --model-loader-extra-config '{"arena": "llm", "capacity_gib": 20}'

A plugin (`vllm.general_plugins`), which vLLM finds where mpsd-client is installed.  Prose, and what was never run: mpsd's
docs/python.md, "vLLM".  Nothing of vLLM is imported before vLLM asks for it.
"""

import warnings


def register() -> None:
    """vLLM knows --load-format mpsd.  It may be called any number of times, as vLLM does, in each of its processes."""
    try:
        from mpsd_client import _vllm_loader
    except ImportError as exc:  # whoever does not ask for it can use a vLLM that is too old or too new for it
        warnings.warn(f"--load-format mpsd is for vLLM 0.33: {exc}", RuntimeWarning, stacklevel=2)
        return
    _vllm_loader.register()
