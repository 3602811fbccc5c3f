"""The record of a run: rows as JSON lines, history from rows, status replaced whole, folders claimed."""

from __future__ import annotations

import json

import pytest

from isostep.config import Config
from isostep.durable import write_atomically
from isostep.errors import ConfigError
from isostep.state import TrainState
from isostep.track.folder import changed_keys, claim, store_config
from isostep.track.record import Record, history, read_rows


def config(tmp_path, *overrides):
    base = [
        "--data.path",
        "builtin:sms",
        "--model.path",
        "builtin:tiny",
        "--run.root",
        str(tmp_path),
        "--run.name",
        "r",
    ]
    return Config.load(overrides=[*base, *overrides])


def test_rows_are_json_lines_at_once_and_a_cut_off_line_is_left_out(tmp_path):
    record = Record(tmp_path, 1, "eval")
    record.begin(None)
    record.row({"step": 1, "train/loss": 0.5, "train/grad_norm": float("nan")})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "train/loss": 0.5, "train/grad_norm": null}\n'
    record.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "tra')
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1]
    assert read_rows(tmp_path / "none.jsonl") == []


def test_history_takes_the_training_side_from_its_own_evaluation_or_else_from_the_row():
    rows = [
        {"step": 0, "eval/loss": 9.0, "examples_seen": 0},
        {"step": 1, "train/loss": 3.0, "examples_seen": 8},
        {"step": 2, "train/loss": 2.0, "eval/loss": 2.5, "eval/accuracy": 0.5, "examples_seen": 16},
        {"step": 4, "train/loss": 1.0, "eval/loss": 1.5, "eval/train/loss": 0.9, "eval/train/accuracy": 0.8,
         "examples_seen": 32},
    ]  # fmt: skip
    assert history(rows, "eval") == {
        "steps": [2, 4],
        "train_losses": [2.0, 0.9],
        "val_losses": [2.5, 1.5],
        "train_accs": [None, 0.8],
        "val_accs": [0.5, None],
        "examples_seen": 32,
    }
    assert history([], "eval")["examples_seen"] == 0


def test_a_write_that_fails_leaves_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    write_atomically(path, "old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"


def test_only_what_changes_the_numbers_counts_as_a_change(tmp_path):
    one = config(tmp_path).to_dict()
    free = config(tmp_path, "--eval.every", "7", "--checkpoint.keep", "9", "--track.log_every", "3",
                  "--batch.tokens_per_device", "99", "--run.timeout", "5").to_dict()  # fmt: skip
    assert changed_keys(one, free) == []
    other = config(tmp_path, "--optim.lr", "0.1", "--batch.size", "8").to_dict()
    assert changed_keys(one, other) == [("batch.size", 32, 8), ("optim.lr", 5e-5, 0.1)]


def test_a_folder_is_claimed_anew_continued_finished_or_refused(tmp_path):
    folder = tmp_path / "r"
    assert claim(folder, config(tmp_path)) == (False, 0)
    # a start that failed before its first step may be corrected
    store_config(folder, config(tmp_path, "--optim.lr", "0.3"))
    assert claim(folder, config(tmp_path, "--optim.lr", "0.1")) == (False, 0)
    store_config(folder, config(tmp_path, "--optim.lr", "0.1"))
    record = Record(folder, 2, "eval")
    record.begin(None)
    record.row({"step": 1})
    record.status("running", TrainState(step=1))
    assert claim(folder, config(tmp_path, "--optim.lr", "0.1")) == (False, 1)
    with pytest.raises(ConfigError, match=r"optim.lr was 0.1, is 5e-05"):
        claim(folder, config(tmp_path))
    with pytest.raises(ConfigError, match=r"run.resume is never"):
        claim(folder, config(tmp_path, "--optim.lr", "0.1", "--run.resume", "never"))
    record.status("completed", TrainState(step=1, restarts=1), "all steps done", 0)
    (folder / "STOP").touch()
    assert claim(folder, config(tmp_path, "--optim.lr", "0.1")) == (True, 1)
    assert not (folder / "STOP").exists()
    # a longer run goes on; whether it is longer is known once the data is
    assert claim(folder, config(tmp_path, "--optim.lr", "0.1", "--train.epochs", "9")) == (False, 2)
    status = json.loads((folder / "status.json").read_text())
    assert (status["state"], status["reason"], status["exit_code"]) == ("completed", "all steps done", 0)
    assert (status["world_size"], status["step"]) == (2, 1)


def test_a_record_goes_on_from_a_step_with_the_rows_up_to_it_as_they_were(tmp_path):
    lines = ['{"step": 1, "a":  1}\n', '{"step": 2}\n', '{"step": 3}\n', '{"step": 4, "cut o']
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(lines))
    (tmp_path / "best").mkdir()
    record = Record(tmp_path, 1, "eval")
    assert path.read_text() == "".join(lines), "nothing is touched before the run begins"
    record.begin(2)
    record.row({"step": 3, "b": 5})
    record.close()
    assert path.read_text() == lines[0] + lines[1] + '{"step": 3, "b": 5}\n'
    assert (tmp_path / "best").exists()
    anew = Record(tmp_path, 1, "eval")
    anew.begin(None)
    anew.close()
    assert path.read_text() == "" and not (tmp_path / "best").exists()
