"""Break the product on purpose, one way at a time, and see that a test notices: `make mutants`.

Each mutant is a replacement in a copy of the repository; the tests named beside it have to fail there. Words on the
command line choose the mutants that have one of them in their description.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mutations import FAULTS, STEP, Mutant

ROOT = Path(__file__).resolve().parents[1]


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


def main(words: list[str]) -> int:
    chosen = [mutant for mutant in (*STEP, *FAULTS) if not words or any(word in mutant.what for word in words)]
    survivors = 0
    for mutant in chosen:
        alive = survives(mutant)
        survivors += alive
        print(f"{'SURVIVED' if alive else 'caught  '}  {mutant.what}  ({mutant.test})", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
