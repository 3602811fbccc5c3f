"""`isostep predict` with small blocks and, before each, a pause: so that a test can strike in the middle.

predicting.py ROWS_A_BLOCK SECONDS ARGUMENT ...
"""

from __future__ import annotations

import sys
import time
from typing import Any

from isostep.cli import predictor
from isostep.cli.main import main
from isostep.data import files

if __name__ == "__main__":
    rows, seconds, *arguments = sys.argv[1:]
    files.BLOCK_ROWS = int(rows)
    call = predictor.Predictor.__call__

    def paused(self: predictor.Predictor, *given: Any) -> Any:
        time.sleep(float(seconds))
        return call(self, *given)

    predictor.Predictor.__call__ = paused  # type: ignore[method-assign]
    sys.exit(main(["predict", *arguments]))
