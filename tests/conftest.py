"""No test may reach a network: the hub is switched off before transformers is imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("ATTNFLOW_CACHE", str(Path(sys.prefix) / "cache"))
