"""P3 and the run folder: what the same command, or a changed one, does where a run has been."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults import Started, settings
from isostep.checkpoint.saving import find
from isostep.config import Config
from isostep.errors import ConfigError
from isostep.optim import learning_rate_factor, warmup_steps
from isostep.track.folder import Claim, changed_keys, claim
from isostep.train.resume import check_resumable

LR = 1e-3
STEPS = 21  # three epochs of 7 windows
# a start leaves traces in these, whatever comes of it
TRACES = (".lock", ".phases", "logs", "env.json")
TRAINING = ("train/loss", "train/grad_norm", "train/lr")
CURVE = (*TRAINING, "eval/loss", "eval/accuracy")


def rates(total: int) -> dict[int, float]:
    """The learning rate of every step, from 1, of a linear schedule over `total` steps."""
    warmup = warmup_steps(0.06, total)
    return {step + 1: LR * learning_rate_factor(step, "linear", warmup, total) for step in range(total)}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run folder but the traces of a start."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith(TRACES)}


def without_status(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name != "status.json"}


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def weights_step(model: Path) -> int:
    """The step that a model's card names."""
    text = (model / "README.md").read_text(encoding="utf-8")
    return int(text.partition("after optimizer step ")[2].partition(".")[0])


def step_path(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step:08d}"


def assert_curve(rows: list[dict[str, Any]], reference: list[dict[str, Any]], keys: tuple[str, ...] = CURVE) -> None:
    """Where both have a value, it is the same; `reference` has every step."""
    by_step = {row["step"]: row for row in reference}
    for row in rows:
        for key in keys:
            if key in row and key in by_step[row["step"]]:
                assert row[key] == pytest.approx(by_step[row["step"]][key], rel=1e-5), f"step {row['step']}: {key}"


def assert_each_step_once(rows: list[dict[str, Any]], last: int) -> None:
    assert [row["step"] for row in rows] == list(range(1, last + 1))
    assert rows[-1]["examples_seen"] == (last // 7) * 100 + (last % 7) * 16


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A file of 100 rows of one to nine words, and a class that follows from the first."""
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    rows = (f"{('good', 'bad')[i % 2]} {'word ' * (i * 7 % 9)}{i},{i % 2}\n" for i in range(100))
    path.write_text("text,label\n" + "".join(rows))
    return path


@pytest.fixture(scope="module")
def sections(data) -> dict[str, Any]:
    """No dropout, so that curves on any number of ranks agree; checkpoints of every sixth step, and of the last."""
    own = {"path": None, "train": str(data), "validation": str(data), "text": ["text"], "label": "label",
           "max_train_examples": None}  # fmt: skip
    return {"data": own, "model": {"dropout": 0.0}, "checkpoint": {"every": 3, "keep": 4}, "eval": {"every": 5}}


@pytest.fixture(scope="module")
def finished(work, sections) -> Started:
    """21 steps on one process; evaluations after 5, 10, 15, 20 and 21."""
    return Started(work, settings(work, "again-finished", **sections), 1).finish()


@pytest.fixture(scope="module")
def killed(work, sections) -> Started:
    """The same, killed in step 11: checkpoints of 3, 6 and 9, and best/ of step 10."""
    fault = {"site": "step", "kind": "kill", "rank": 0, "step": 11}
    run = Started(work, settings(work, "again-killed", **sections), 1, fault=fault)
    assert run.wait() != 0
    assert saved(run.folder) == [f"step-0000000{step}" for step in (3, 6, 9)]
    assert weights_step(run.folder / "best") == 10
    return run


@pytest.fixture
def again(work, start, sections, request) -> Callable[..., Started]:
    """Start a configuration again in a copy of a run's folder; in the same copy where `source` is None.

    `back_to`: the step of that folder's checkpoint that run.resume names.
    """

    def run(
        source: Started | None,
        world: int = 1,
        fault: dict[str, Any] | None = None,
        back_to: int | None = None,
        **changes: Any,
    ) -> Started:
        name = "again-" + "".join(c if c.isalnum() else "-" for c in request.node.name)
        if source is not None:
            shutil.copytree(source.folder, source.folder.parent / name)
        config = settings(work, name, **sections)
        for section, values in changes.items():
            config[section] = {**config.get(section, {}), **values}
        if back_to is not None:
            config["run"]["resume"] = str(step_path(Path(config["run"]["root"]) / name, back_to))
        return start(config, world, fault=fault)

    return run


# ---------------------------------------------------------------------------------------------- made longer


@pytest.mark.parametrize("length", [{"epochs": 4}, {"max_steps": 26}], ids=["epochs", "max_steps"])
def test_a_finished_run_made_longer_goes_on_with_the_rates_of_the_longer_schedule(again, finished, length):
    total = length.get("max_steps", 28)
    done = again(finished, 2 if "epochs" in length else 1, train=length).finish()
    was, now = rates(STEPS), rates(total)
    assert f"made longer: to step {total}, was 21; the next step's learning rate is {now[22]:.4g}, was 0" in done.text()
    before = (finished.folder / "metrics.jsonl").read_bytes()
    assert (done.folder / "metrics.jsonl").read_bytes().startswith(before), "what was recorded is left as it is"
    rows = done.rows()
    assert_each_step_once(rows, total)
    for row in rows:
        assert math.isclose(row["train/lr"], (was if row["step"] <= 21 else now)[row["step"]], rel_tol=1e-12)
    status = done.status()
    assert (status["state"], status["step"], status["restarts"]) == ("completed", total, 1)
    history = json.loads((done.folder / "history.json").read_text())
    assert history["steps"] == [5, 10, 15, 20, 21, 25, total]
    assert weights_step(done.folder / "final") == total
    assert weights_step(done.folder / "best") == status["best_step"]
    if "max_steps" in length:
        shorter = again(None)  # the former configuration is now the shorter one
        assert shorter.wait() == 2 and "was to have 26 steps" in shorter.text()


def test_an_interrupted_run_made_longer_goes_on_from_its_checkpoint_and_keeps_no_best_of_the_old_schedule(
    again, killed
):
    done = again(killed, 2, fault={"site": "step", "kind": "kill", "rank": 1, "step": 1}, train={"epochs": 4})
    assert done.wait() != 0
    was, now = rates(STEPS), rates(28)
    said = f"made longer: to step 28, was 21; the next step's learning rate is {now[10]:.4g}, was {was[10]:.4g}"
    assert said in done.text()
    assert not (done.folder / "best").exists(), "it was of step 10, which now comes out differently"
    assert weights_step(done.folder / "superseded-best") == 10
    done = again(None, 2, train={"epochs": 4}).finish()
    assert_each_step_once(done.rows(), 28)
    for row in done.rows():
        assert math.isclose(row["train/lr"], (was if row["step"] <= 9 else now)[row["step"]], rel_tol=1e-12)
    assert_curve(done.rows()[:9], killed.rows())
    assert weights_step(done.folder / "best") == done.status()["best_step"]
    assert done.status()["restarts"] == 2


# ---------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize("length", [{"epochs": 2}, {"max_steps": 20}], ids=["epochs", "max_steps"])
def test_a_run_made_shorter_is_refused_and_nothing_of_it_is_touched(again, finished, length):
    before = contents(finished.folder)
    refused = again(finished, train=length)
    assert refused.wait() == 2
    lines = refused.text().splitlines()
    assert len(lines) == 2 and "was to have 21 steps" in lines[0] and str(length.get("max_steps", 14)) in lines[0]
    assert lines[1] == "choose another --run.name"
    assert contents(refused.folder) == before
    assert claim(refused.folder, Config.load(finished.folder / "config.yaml")) == Claim(finished=True, restarts=0)


def test_an_interrupted_run_made_shorter_is_refused_and_nothing_of_it_is_touched(again, killed):
    before = contents(killed.folder)
    refused = again(killed, 2, train={"epochs": 2})
    assert refused.wait() == 1, "the launcher's code for any failure"
    assert "was to have 21 steps; train.epochs or train.max_steps now say 14" in refused.text()
    assert contents(refused.folder) == before


CHANGES = {
    "optim.lr": (LR, 5e-4),
    "batch.size": (16, 8),
    "data.max_train_examples": (None, 50),
    "run.seed": (5, 6),
    "model.dropout": (0.0, 0.2),
}


def section_of(key: str, value: Any) -> dict[str, dict[str, Any]]:
    section, _, leaf = key.partition(".")
    return {section: {leaf: value}}


def test_what_changes_the_result_is_refused_with_both_values_and_nothing_is_touched(again, finished):
    before = contents(finished.folder)
    changed = {section: value for key in CHANGES for section, value in section_of(key, CHANGES[key][1]).items()}
    refused = again(finished, 2, **changed)
    assert refused.wait() == 1
    for key, (old, new) in CHANGES.items():
        assert f"{key} was {old!r}, is {new!r}" in refused.text()
    assert refused.text().count("choose another --run.name") == 1, "one rank says it"
    assert contents(refused.folder) == before


@pytest.mark.parametrize("key", CHANGES)
def test_each_of_them_alone_is_refused(killed, key):
    stored = Config.load(killed.folder / "config.yaml").to_dict()
    section, _, leaf = key.partition(".")
    changed = Config.load(killed.folder / "config.yaml", overrides=[f"--{key}", str(CHANGES[key][1])])
    with pytest.raises(ConfigError, match=r"choose another --run\.name") as refused:
        claim(killed.folder, changed)
    old, new = CHANGES[key]
    assert f"{key} was {old!r}, is {new!r}\n" in str(refused.value) and refused.value.exit_code == 2
    assert stored[section][leaf] == old


def test_another_task_is_another_run(killed):
    stored = Config.load(killed.folder / "config.yaml").to_dict()
    other = {**stored, "task": {**stored["task"], "kind": "regression"}}
    assert changed_keys(stored, other) == [("task.kind", "classification", "regression")]


def test_a_run_whose_configuration_was_lost_is_refused_by_a_line(killed, tmp_path):
    shutil.copytree(killed.folder, tmp_path / "lost")
    (tmp_path / "lost" / "config.yaml").unlink()
    with pytest.raises(ConfigError, match=r"config\.yaml can't be read"):
        claim(tmp_path / "lost", Config.load(killed.folder / "config.yaml"))


CHANGED_ROWS = {
    "a longer row": lambda text: text.replace("good", "good word", 1),
    "two labels swapped": lambda text: text.replace(",0", ",X", 1).replace(",1", ",0", 1).replace(",X", ",1", 1),
}


@pytest.mark.parametrize("change", CHANGED_ROWS)
def test_other_rows_in_the_same_file_are_refused(again, killed, data, change):
    before, original = contents(killed.folder), data.read_text()
    try:
        data.write_text(CHANGED_ROWS[change](original))
        refused = again(killed)
        assert refused.wait() == 2
    finally:
        data.write_text(original)
    assert "was begun with other data" in refused.text() and "data.train" in refused.text()
    assert "choose another --run.name" in refused.text() and "Traceback" not in refused.text()
    assert without_status(contents(refused.folder)) == without_status(before)
    assert (refused.status()["state"], refused.status()["exit_code"]) == ("failed", 2)
    assert again(None).finish().status()["state"] == "completed"


def test_another_precision_is_refused():
    facts = {"precision": "no", "data": "1"}
    check_resumable({"facts": facts, "total_steps": 21}, facts, 21, "mine")
    with pytest.raises(ConfigError, match=r"begun in precision no, and this start is in bf16") as refused:
        check_resumable({"facts": facts, "total_steps": 21}, {**facts, "precision": "bf16"}, 21, "mine")
    assert "choose another --run.name" in str(refused.value)


# ---------------------------------------------------------------------------------------------- allowed


def test_evaluations_saves_and_rows_may_change_and_the_training_is_the_same(again, killed, finished):
    changes = {"eval": {"every": 4, "max_examples": 30}, "checkpoint": {"every": "epoch", "keep": 1},
               "track": {"log_every": 3}}  # fmt: skip
    # killed again in step 17: the checkpoint of step 14 lies between the rows of 12 and 15
    cut = again(killed, fault={"site": "step", "kind": "kill", "rank": 0, "step": 8}, **changes)
    assert cut.wait() != 0 and saved(cut.folder) == ["step-00000014"]
    done = again(None, **changes).finish()
    rows, status = done.rows(), done.status()
    assert (status["state"], status["step"], status["restarts"]) == ("completed", STEPS, 2)
    assert [row["step"] for row in rows] == [*range(1, 10), 12, 15, 16, 18, 20, 21]
    assert [row["step"] for row in rows if "eval/loss" in row] == [5, 12, 16, 20, 21]
    assert saved(done.folder) == ["step-00000021"]
    assert_losses_of_sparse_rows(rows, finished.rows())
    assert_curve(rows, finished.rows(), ("train/grad_norm", "train/lr"))
    ours, theirs = done.weights(), finished.weights()
    assert all(ours[name].equal(theirs[name]) for name in theirs)


def test_metric_and_tokens_per_device_may_change_and_the_curve_is_the_same(again, killed, finished):
    done = again(killed, eval={"metric": "eval/accuracy", "mode": "max"}, batch={"tokens_per_device": 60}).finish()
    rows, status = done.rows(), done.status()
    assert_each_step_once(rows, STEPS)
    assert_curve(rows, finished.rows())
    found = {row["step"]: row["eval/accuracy"] for row in rows if "eval/loss" in row and row["step"] > 9}
    assert status["best_value"] == max(found.values()) and found[status["best_step"]] == status["best_value"]
    assert weights_step(done.folder / "best") == status["best_step"]


def assert_losses_of_sparse_rows(rows: list[dict[str, Any]], reference: list[dict[str, Any]]) -> None:
    """train/loss of a row is the mean over the items since the row before."""
    seen, before = {row["step"]: row["examples_seen"] for row in reference}, 0
    for row in rows:
        part = [r for r in reference if before < r["step"] <= row["step"]]
        sizes = [seen[r["step"]] - seen.get(r["step"] - 1, 0) for r in part]
        mean = sum(n * r["train/loss"] for n, r in zip(sizes, part, strict=True)) / sum(sizes)
        assert row["train/loss"] == pytest.approx(mean, rel=1e-5), f"step {row['step']}"
        before = row["step"]


# ---------------------------------------------------------------------------------------------- stopped early


EARLY = {"every": 2, "max_examples": 61, "patience": 2, "min_delta": 0.9}


@pytest.fixture(scope="module")
def patient(work, sections) -> Started:
    """Ended by eval.patience after step 6: nothing is ever better by 0.9 than the first evaluation."""
    run = Started(work, settings(work, "again-patient", **{**sections, "eval": EARLY}), 1).finish()
    assert (run.status()["step"], run.status()["best_step"]) == (6, 2)
    return run


def test_a_run_that_stopped_early_stays_stopped_when_it_is_made_longer_and_says_so(again, patient):
    config = Config.load(patient.folder / "config.yaml")
    assert claim(patient.folder, config) == Claim(finished=True, restarts=0)
    done = again(patient, eval={**EARLY, "patience": None}, train={"epochs": 4}).finish()
    assert "eval.patience ended the run at step 6, and it stays ended" in done.text()
    assert "made longer" not in done.text()
    assert (done.folder / "metrics.jsonl").read_bytes() == (patient.folder / "metrics.jsonl").read_bytes()
    assert (done.status()["state"], done.status()["step"]) == ("completed", 6)
    ours, theirs = done.weights(), patient.weights()
    assert all(ours[name].equal(theirs[name]) for name in theirs), "no step was trained"


# ---------------------------------------------------------------------------------------------- run.resume


def test_resume_never_is_refused_where_a_run_is(killed):
    before = contents(killed.folder)
    with pytest.raises(ConfigError, match=r"run\.resume is never") as refused:
        claim(killed.folder, Config.load(killed.folder / "config.yaml", overrides=["--run.resume", "never"]))
    assert refused.value.exit_code == 2 and contents(killed.folder) == before


def test_resume_by_path_goes_back_to_it_and_the_same_command_goes_on_from_there(again, killed, finished):
    was = {row["step"]: row for row in killed.rows()}
    fault = {"site": "step", "kind": "kill", "rank": 0, "step": 1}
    cut = again(killed, fault=fault, back_to=3)
    assert cut.wait() != 0
    assert "resumed from" in cut.text() and "step-00000003" in cut.text()
    assert saved(cut.folder) == ["step-00000003", "superseded-step-00000006", "superseded-step-00000009"]
    assert cut.rows() == [was[step] for step in (1, 2, 3)], "later rows are cut off, those before are as they were"
    assert not (cut.folder / "best").exists() and weights_step(cut.folder / "superseded-best") == 10
    cut = again(None, 2, fault={**fault, "step": 5}, checkpoint={"keep": 1}, back_to=3)
    assert cut.wait() != 0
    assert "step-00000003" not in saved(cut.folder) and "step-00000006" in saved(cut.folder)
    done = again(None, 2, back_to=3)  # the checkpoint asked for has been pruned: the run has gone on from it
    done.finish()
    assert "step-00000006" in done.text()
    assert_each_step_once(done.rows(), STEPS)
    assert_curve(done.rows(), finished.rows())
    history = json.loads((done.folder / "history.json").read_text())
    assert history["steps"] == [5, 10, 15, 20, 21]
    assert weights_step(done.folder / "best") == done.status()["best_step"] == finished.status()["best_step"]
    assert "already finished" in again(None, back_to=3).finish().text()


def test_a_finished_run_goes_back_to_a_checkpoint_asked_for_by_path(again, finished):
    done = again(finished, back_to=18).finish()
    assert "step-00000018" in done.text() and "superseded-step-00000021" in saved(done.folder)
    ours, theirs = done.weights(), finished.weights()
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert_each_step_once(done.rows(), STEPS)


def test_a_refused_start_by_path_sets_nothing_aside(again, killed):
    refused = again(killed, back_to=3, train={"epochs": 2})
    assert refused.wait() == 2 and "was to have 21 steps" in refused.text()
    assert without_status(contents(refused.folder)) == without_status(contents(killed.folder))


def test_a_path_that_is_no_checkpoint_or_of_another_run_is_exit_code_6(again, killed, finished):
    refused = again(killed, 1, run={"resume": str(step_path(finished.folder, 18))})
    assert refused.wait() == 6 and "is of another run" in refused.text() and "Traceback" not in refused.text()
    assert without_status(contents(refused.folder)) == without_status(contents(killed.folder))
    for path in (refused.folder, refused.folder / "best", step_path(refused.folder, 4)):
        with pytest.raises(Exception, match="no checkpoint") as error:
            find(refused.folder / "checkpoints", str(path))
        assert error.value.exit_code == 6  # type: ignore[attr-defined]


def test_a_new_run_branches_off_anothers_checkpoint_and_only_with_its_configuration(again, killed, finished):
    origin = {"resume": str(step_path(killed.folder, 6))}
    branch = again(None, run=origin).finish()
    ours, theirs = branch.weights(), finished.weights()
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert [row["step"] for row in branch.rows()] == list(range(7, STEPS + 1))
    shutil.rmtree(branch.folder)
    refused = again(None, run=origin, optim={"lr": 2e-3})
    assert refused.wait() == 2 and "optim.lr was 0.001, is 0.002" in refused.text()
    assert not (refused.folder / "checkpoints").exists()


# ---------------------------------------------------------------------------------------------- killed early, or late


def test_killed_before_the_first_checkpoint_it_starts_from_step_1_and_says_so(again, finished):
    rare = {"checkpoint": {"every": 10}, "eval": {"every": 2}}
    cut = again(None, fault={"site": "step", "kind": "kill", "rank": 0, "step": 6}, **rare)
    assert cut.wait() != 0
    assert [row["step"] for row in cut.rows()] == [1, 2, 3, 4, 5] and (cut.folder / "best").exists()
    done = again(None, **rare).finish()
    assert "no checkpoint was saved before the run was interrupted: it starts again from step 1" in done.text()
    assert_each_step_once(done.rows(), STEPS)
    assert done.status()["restarts"] == 1
    assert_curve(done.rows(), finished.rows(), TRAINING)


def test_killed_between_best_and_the_checkpoint_it_comes_to_the_same_best_again(again, killed):
    assert weights_step(killed.folder / "best") == 10 and saved(killed.folder)[-1] == "step-00000009"
    cut = again(killed, fault={"site": "step", "kind": "kill", "rank": 0, "step": 3})  # in step 12
    assert cut.wait() != 0
    ours, theirs = (run.folder / "best" / "model.safetensors" for run in (cut, killed))
    assert ours.read_bytes() == theirs.read_bytes() and ours.stat().st_mtime > theirs.stat().st_mtime
    assert not (cut.folder / "superseded-best").exists()
