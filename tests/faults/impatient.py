"""hooked.py with a W&B client that is given up after $FINISH_TIMEOUT seconds at the end: less than a run may wait."""

from __future__ import annotations

import os
import sys

import hooked  # noqa: F401 - installs the fault

from isostep.cli.main import main
from isostep.track import wandb as tracking

tracking.FINISH_TIMEOUT = float(os.environ["FINISH_TIMEOUT"])

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
