"""fit() from a program: what may be handed in, how it ends where that is wrong, and the documentation's snippets."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from launch import ROOT, environment, run_program


def test_what_a_program_hands_in_is_used_checked_and_gone_on_with(tmp_path):
    run_program("handed_in", 2, str(tmp_path), timeout=300)  # it asserts on every rank


def test_every_snippet_of_the_documentation_runs(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "custom.md").read_text(), re.M | re.S)
    (tmp_path / "snippets.py").write_text("\n".join(blocks))
    env = environment(1, tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, "snippets.py"], cwd=tmp_path, env=env, text=True, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]

    def rows(name: str) -> list[dict[str, float]]:
        return [json.loads(line) for line in (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()]

    named = {name for block in blocks for name in re.findall(r'config\(\s*"([^"]+)"', block)}
    assert {folder.name for folder in (tmp_path / "runs").iterdir()} == named and len(named) == 12
    for name in named:
        assert json.loads((tmp_path / "runs" / name / "status.json").read_text())["state"] == "completed"
    assert "eval/missed" in rows("missed")[-1]
    assert {"eval/same/loss", "eval/few/loss"} <= rows("rows")[-1].keys()
    asked, plain = rows("asked")[-1]["tokens_seen"], rows("smoothed")[-1]["tokens_seen"]
    assert asked > plain, "the words before each text are there"
    losses = [rows(name)[-1]["eval/loss"] for name in ("smoothed", "wary", "frozen", "by-layer", "one-cycle")]
    assert len(set(losses)) == len(losses), "each changes what is trained"
    shown = done.stdout.splitlines()
    assert next(line for line in shown if line.startswith("[4, 8]")).endswith(" 128")
    assert {"eval/f1", "eval/accuracy"} <= rows("pairs")[-1].keys()
