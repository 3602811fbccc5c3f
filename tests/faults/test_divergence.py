"""P7: a gradient that is not finite on one rank is skipped by all, shown and counted; for ever, it ends the run."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from faults import settings
from isostep.checkpoint.store import checkpoints


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_p7_a_step_that_is_not_finite_on_one_rank_is_skipped_by_all(work, start, kind):
    sections = {"model": {"dropout": 0.0}, "checkpoint": {"every": 1000}}
    alone = settings(work, f"one {kind} on one rank", **sections)
    shared = settings(work, f"one {kind} on two ranks", **sections)
    fault = {"site": "step", "kind": kind, "step": 8}
    reference = start(alone, 1, fault={**fault, "rank": 0}).finish()
    run = start(shared, 2, fault={**fault, "rank": 1}).finish()
    assert run.status()["nonfinite"] == 1 and run.status()["state"] == "completed"
    assert "step 8: the gradient is not finite; its update was skipped" in run.text()
    assert {row["step"]: row["train/grad_norm"] for row in run.rows()}[8] is None, "shown where it happened"
    assert [row["step"] for row in run.rows() if row.get("train/nonfinite")] == list(range(9, 22))
    for a, b in zip(reference.rows(), run.rows(), strict=True):
        for key in ("train/loss", "train/grad_norm", "train/lr", "eval/loss"):
            wanted = a.get(key)
            same = b.get(key) == (wanted if wanted is None else pytest.approx(wanted, rel=1e-5))
            assert same, f"step {a['step']}: {key}"


def test_p7_for_ever_it_ends_the_run_and_neither_the_best_nor_a_checkpoint_holds_it(work, start):
    config = settings(work, "for ever", train={"nonfinite_limit": 4})
    cut = start(config, fault={"site": "step", "kind": "nan", "rank": 1, "step": None, "times": 99})
    assert cut.wait() != 0
    status = cut.status()
    assert (status["state"], status["exit_code"], status["nonfinite"]) == ("diverged", 4, 4)
    assert "not finite in 4 step(s) in a row, up to step 4" in status["reason"], status
    assert status["best_step"] is None and not (cut.folder / "best").exists()
    for folder in checkpoints(cut.folder / "checkpoints"):
        assert all(torch.isfinite(value).all() for value in load_file(folder / "model.safetensors").values())
