"""Run another program, train.py or an example, with the faults of tests/faults/hooked.py and some at a run's end.

`struck.py PROGRAM ARGUMENTS`. Further sites for $FAULT: test (in the evaluation of the test set), test row (before it
is recorded) and tested (after it).
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))
from hooked import before, strike

from isostep.train import loop, results

test = results.Results.test
write_test_row = loop.Loop.write_test_row


def write_and_strike(self: loop.Loop, values: dict[str, float]) -> None:
    strike("test row")
    write_test_row(self, values)
    strike("tested")


def struck_test(self: results.Results, evaluator: Any, values: dict[str, float]) -> dict[str, float]:
    evaluator._run = before(evaluator._run, "test")
    return test(self, evaluator, values)


loop.Loop.write_test_row = write_and_strike  # type: ignore[method-assign]
results.Results.test = struck_test  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
