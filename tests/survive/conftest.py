"""The numpy example's modules are what the proof trains with."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "elastic_numpy"
sys.path.insert(0, str(EXAMPLE))
