"""Break the product on purpose, one way at a time, and see that a test notices: `make mutants`.

Each mutant is a replacement in a copy of the repository; the tests named beside it have to fail there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Mutant(NamedTuple):
    what: str
    file: str
    old: str
    new: str
    test: str


MUTANTS = [
    Mutant(
        "divide by rank-local counts", "src/isostep/train/step.py",
        "scale = self.accelerator.num_processes / window.weight",
        "scale = 1.0 / sum(len(p[self.accelerator.process_index].indices) for p in window.passes)",
        "tests/distributed/test_gradients.py::test_gradients_equal_one_plain_backward_in_float64[2]",
    ),
    Mutant(
        "divide by nothing of the ranks", "src/isostep/train/step.py",
        "scale = self.accelerator.num_processes / window.weight", "scale = 1.0 / window.weight",
        "tests/distributed/test_gradients.py::test_gradients_equal_one_plain_backward_in_float64[2]",
    ),
    Mutant(
        "drop the short window", "src/isostep/data/plan.py",
        "self.windows_per_epoch = -(-len(lengths)", "self.windows_per_epoch = (len(lengths)",
        "tests/distributed/test_gradients.py::test_gradients_equal_one_plain_backward_in_float64[1]",
    ),
    Mutant(
        "step the scheduler per rank", "src/isostep/train/step.py",
        "optimizer, split_batches=True", "optimizer, split_batches=False",
        "tests/distributed/test_gradients.py::test_the_scheduler_moves_once_per_optimizer_step",
    ),
    Mutant(
        "shuffle per rank", "src/isostep/data/plan.py",
        "np.random.SeedSequence([self.seed, epoch])",
        "np.random.SeedSequence([self.seed, epoch, int(__import__('os').environ.get('RANK', '0'))])",
        "tests/distributed/test_gradients.py::test_gradients_equal_one_plain_backward_in_float64[2]",
    ),
    Mutant(
        "train on a placeholder", "src/isostep/train/step.py",
        'return (losses * batch["weights"]).sum()', "return losses.sum()",
        "tests/distributed/test_gradients.py::test_gradients_equal_one_plain_backward_in_float64[3]",
    ),
    Mutant(
        "evaluate a placeholder", "src/isostep/train/evaluate.py",
        'real = batch["weights"] > 0', 'real = batch["weights"] >= 0',
        "tests/distributed/test_evaluation.py::test_p2_an_evaluation_equals_the_rows_taken_one_by_one[3]",
    ),
    Mutant(
        "average batch means", "src/isostep/train/evaluate.py",
        "loss = float(losses[order].astype(np.float64).sum() / len(order))",
        "loss = float(np.mean([own[3].mean() for own in gathered if len(own[3])]))",
        "tests/distributed/test_evaluation.py::test_p2_an_evaluation_equals_the_rows_taken_one_by_one[3]",
    ),
]  # fmt: skip


def survives(mutant: Mutant) -> bool:
    """True if the test passes although the product is broken: then the test is worth nothing."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "isostep"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "runs", ".*_cache"))
        file = copy / mutant.file
        text = file.read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, f"{mutant.what}: {mutant.old!r} stands {text.count(mutant.old)} times"
        file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        env = {**os.environ, "PYTHONPATH": str(copy / "src")}
        done = subprocess.run([sys.executable, "-m", "pytest", "-x", mutant.test], cwd=copy, env=env,
                              capture_output=True, text=True)  # fmt: skip
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    return done.returncode == 0


def main() -> int:
    survivors = 0
    for mutant in MUTANTS:
        alive = survives(mutant)
        survivors += alive
        print(f"{'SURVIVED' if alive else 'caught  '}  {mutant.what}  ({mutant.test})", flush=True)
    print(f"{len(MUTANTS) - survivors} of {len(MUTANTS)} caught")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
