"""The examples' modules, by the names that they have for each other."""

import sys
from pathlib import Path

LLM = Path(__file__).resolve().parents[3] / "clients/python/examples/llm"
if str(LLM) not in sys.path:
    sys.path.append(str(LLM))
