"""The PyTorch example's own `train.py`, at a walk until a file tells it to run.

What is done to the job takes its time by the clock; the rest of the epoch is only there to be long enough. Usage:
`walking_torch_trainer.py FILE TRAIN.PY [OPTION]...`
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path
from typing import Final

from torch.optim.optimizer import register_optimizer_step_post_hook

WALK_S: Final = 0.2


def main() -> None:
    hurry, script = Path(sys.argv[1]), Path(sys.argv[2])
    sys.argv = sys.argv[2:]
    sys.path.insert(0, str(script.parent))

    def walk(*_: object) -> None:
        if not hurry.exists():
            time.sleep(WALK_S)

    register_optimizer_step_post_hook(walk)
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
