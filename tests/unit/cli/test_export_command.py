"""`isostep export`: the checkpoint's weights, and a folder that transformers' own pipeline reads alike."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from isostep import Config, fit
from isostep.checkpoint import store
from isostep.cli import main
from isostep.cli.export import export_checkpoint
from isostep.cli.predict import predict
from isostep.cli.predictor import load
from isostep.cli.run_folder import read_config
from isostep.data import files
from isostep.data.files import Block
from isostep.errors import CheckpointError, ConfigError
from isostep.tasks import TokenClassification
from isostep.tasks.base import logits_of

WORDS = "a man is here there was never good bad film not very and it they we you now then again".split()  # noqa: SIM905
KINDS = {
    "classification": ["--data.label", "kind"],
    "regression": ["--task.kind", "regression", "--data.label", "score"],
    "multi_label": ["--task.multi_label", "true", "--data.label", "[x, y]"],
}


def sentences(n: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 15))) for _ in range(n)]


def bert(folder: Path) -> Path:
    """A small BERT as a user would have it, with a card."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    shape = BertConfig(vocab_size=len(pieces), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                       intermediate_size=24, max_position_embeddings=32)  # fmt: skip
    torch.manual_seed(1)
    model = BertForSequenceClassification(shape)
    for weight in model.parameters():
        weight.data.mul_(10 if weight.dim() > 1 else 1)  # so that its answers differ
    model.save_pretrained(folder)
    BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, model_max_length=32).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """made(kind, model) -> the folder of a run of six steps, checkpoints at 2, 4 and 6; each is trained once."""
    root = tmp_path_factory.mktemp("runs")
    os.environ["ISOSTEP_CACHE"] = str(root / "cache")
    with open(root / "rows.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "kind", "score", "x", "y"])
        for i, text in enumerate(sentences(60, 0)):
            writer.writerow([text, ["ham", "spam", "so so"][i % 3], i / 10 - 2, i % 2, int(i % 5 < 2)])
    small = bert(root / "bert")

    def train(kind: str, model: str = "tiny", own: Any = None) -> Path:
        folder = root / f"{kind}-{model}"
        if not folder.exists():
            overrides = ["--run.root", str(root), "--run.name", folder.name, "--data.train", str(root / "rows.csv"),
                         "--data.text", "text", "--model.path", str(small) if model == "bert" else "builtin:tiny",
                         "--batch.size", "8", "--train.max_steps", "6", "--eval.every", "3", "--data.max_length", "12",
                         "--checkpoint.every", "2", "--checkpoint.keep", "3", "--optim.lr", "1e-3", "--track.wandb",
                         "disabled", "--data.test", str(root / "rows.csv"), *KINDS[kind]]  # fmt: skip
            fit(Config.load(overrides=overrides), model=own)
        return folder

    yield train
    del os.environ["ISOSTEP_CACHE"]


def logits(folder: Path, run: Path, texts: list[str]) -> Any:
    """isostep's own, a row at a time."""
    config = read_config(run)
    model, task = load(dataclasses.replace(config, model=dataclasses.replace(config.model, path=str(folder))))
    encoded = task.encode(Block({"text": texts}, "here", range(1, len(texts) + 1))).columns
    rows = [dict(zip(encoded, row, strict=True)) for row in zip(*encoded.values(), strict=True)]
    with torch.no_grad():
        return torch.cat([logits_of(model(**task.inputs([row]))) for row in rows]).numpy()


PIPELINE = """
import json, sys
from transformers import pipeline
folders, texts = json.loads(sys.argv[1])
made = {}
for folder in folders:
    answer = pipeline("text-classification", model=folder, device="cpu")
    said = answer(texts, function_to_apply="none", top_k=None, truncation=True, max_length=12)
    ids = answer.model.config.label2id
    made[folder] = [[{ids[one["label"]]: one["score"] for one in row}[i] for i in range(len(ids))] for row in said]
print(json.dumps(made))
"""


def said_by(program: str, given: Any) -> Any:
    """What a fresh process without a network prints as JSON."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    command = [sys.executable, "-c", program, json.dumps(given)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_transformers_pipeline_in_a_fresh_process_gives_the_same_logits(
    made: Callable[..., Path], tmp_path: Path
) -> None:
    texts = sentences(12, 5)
    runs = [*(made(kind) for kind in KINDS), made("regression", "bert")]
    for run in runs:
        export_checkpoint(run, tmp_path / run.name, 4)
    found = said_by(PIPELINE, [[str(tmp_path / run.name) for run in runs], texts])
    for run, size in zip(runs, (3, 1, 2, 1), strict=True):
        own = logits(tmp_path / run.name, run, texts)
        assert own.shape == (12, size)
        np.testing.assert_allclose(np.array(found[str(tmp_path / run.name)]), own, rtol=1e-5, atol=1e-6)
        assert np.ptp(own, axis=0).min() > 1e-3  # the texts do make a difference


@pytest.mark.parametrize(("kind", "model"), [("classification", "tiny"), ("regression", "bert")])
def test_a_step_s_weights_are_its_checkpoints(made: Callable[..., Path], tmp_path: Path, kind: str, model: str) -> None:
    run = made(kind, model)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    for step in (2, 4, 6):
        assert export_checkpoint(run, tmp_path / str(step), step) == step
        stored = load_file(store.step_folder(run / "checkpoints", step) / "model.safetensors")
        written = load_file(tmp_path / str(step) / "model.safetensors")
        assert written.keys() == stored.keys()
        assert all(torch.equal(written[name], stored[name]) for name in stored)
    assert export_checkpoint(run, tmp_path / "newest") == 6
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "newest" / name).read_bytes() == (run / "final" / name).read_bytes()
    assert "local" not in (run / "final" / "tokenizer_config.json").read_text()  # where it once lay
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before  # the run is only read


TOKENS = """
import json, sys
from transformers import pipeline
folder, texts = json.loads(sys.argv[1])
answer = pipeline("token-classification", model=folder, device="cpu", aggregation_strategy="none", ignore_labels=[])
said = answer(texts)
print(json.dumps([[[one["entity"], float(one["score"])] for one in row] for row in said]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("keep", [True, False])
def test_a_task_that_was_handed_in_is_known_by_its_head(
    made: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    root = made("regression", "bert").parent
    texts = [text.split()[:10] for text in sentences(40, 3)]
    rows = [{"words": words, "tags": ["X" if len(word) > 3 else "O" for word in words]} for words in texts]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = ["--run.root", str(tmp_path), "--run.name", "run", "--data.train", str(data), "--data.text", "words",
                 "--data.label", "tags", "--model.path", str(root / "bert"), "--batch.size", "8", "--train.max_steps",
                 "4", "--checkpoint.every", "2", "--optim.lr", "1e-3", "--track.wandb", "disabled"]  # fmt: skip
    fit(Config.load(overrides=overrides), task=TokenClassification())
    run, out = tmp_path / "run", tmp_path / "out"
    if keep:
        assert export_checkpoint(run, out) == 4
        assert (out / "config.json").read_bytes() == (run / "final" / "config.json").read_bytes()
    else:
        shutil.rmtree(run / "best")
        os.rename(run / "final", tmp_path / "final")
        assert export_checkpoint(run, out, task=TokenClassification()) == 4
        os.rename(tmp_path / "final", run / "final")
    monkeypatch.setattr(files, "BLOCK_ROWS", 16)
    assert predict(run, data, tmp_path / "answers.jsonl", str(out)) == (40, 0)
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    said = said_by(TOKENS, [str(out), [" ".join(words) for words in texts]])
    for row, one in zip(answers, said, strict=True):
        assert row["prediction"] == [tag for tag, _ in one]
        np.testing.assert_allclose(row["scores"], [score for _, score in one], rtol=1e-5)
    assert {tag for row in answers for tag in row["prediction"]} == {"O", "X"}


def test_without_best_and_final_the_model_is_built_from_its_base(made: Callable[..., Path], tmp_path: Path) -> None:
    for model in ("tiny", "bert"):
        run = tmp_path / model
        shutil.copytree(made("regression", model), run)
        export_checkpoint(run, tmp_path / f"{model}-with", 2)
        shutil.rmtree(run / "best")
        shutil.rmtree(run / "final")
        export_checkpoint(run, tmp_path / f"{model}-without", 2)
        for name in ("model.safetensors", "config.json", "tokenizer.json"):
            with_it, without = (tmp_path / f"{model}-{which}" / name for which in ("with", "without"))
            assert with_it.read_bytes() == without.read_bytes()
    rows = run.parent / "other.csv"
    rows.write_text("text,score\n" + "\n".join(f"{text},{i}" for i, text in enumerate(sentences(40, 9))))
    run = tmp_path / "tiny"
    stored = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(stored.replace(str(made("regression").parent / "rows.csv"), str(rows)))
    with pytest.raises(ConfigError, match=r"builtin:tiny makes its tokenizer .* is not what this run was trained on"):
        export_checkpoint(run, tmp_path / "out", 2)


def test_the_card_tells_what_was_measured_of_these_weights(made: Callable[..., Path], tmp_path: Path) -> None:
    run = made("regression", "bert")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    status = json.loads((run / "status.json").read_text())
    export_checkpoint(run, tmp_path / "6", 6)
    data = ModelCard.load(tmp_path / "6" / "README.md").data
    assert data.license == "apache-2.0"
    found = {(entry.dataset_split, entry.metric_name): entry.metric_value for entry in data.eval_results}
    measured = next(row for row in rows if row["step"] == 6 and "eval/mse" in row)
    assert found["validation", "mse"] == measured["eval/mse"]
    assert (("test", "mse") in found) == (status["best_step"] == 6)
    assert "isostep train --config config.yaml" in (tmp_path / "6" / "README.md").read_text()
    export_checkpoint(run, tmp_path / "2", 2)  # no evaluation there
    assert "Not evaluated." in (tmp_path / "2" / "README.md").read_text()


def test_faults(made: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(made("regression", "bert"), run)

    def refused(code: int, pattern: str, *arguments: str, out: str = "out") -> None:
        capsys.readouterr()
        assert main.main(["export", str(run), str(tmp_path / out), *arguments]) == code
        told = capsys.readouterr().err
        assert pattern in told and len(told.splitlines()) == 1
        assert not (tmp_path / "out").exists()

    refused(2, "has no checkpoint of step 5; there are those of: 2, 4, 6", "--step", "5")
    refused(2, "--merge: ", "--merge")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    refused(2, "full exists and is not empty", out="full")
    assert os.listdir(tmp_path / "full") == ["mine.txt"]
    damaged = store.step_folder(run / "checkpoints", 6) / "model.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    refused(6, "hash mismatch", "--step", "6")
    assert main.main(["export", str(run), str(tmp_path / "older")]) == 0  # the newest valid one
    told = capsys.readouterr()
    assert "step 4" in told.out and "hash mismatch" in told.err and damaged.exists()
    shutil.rmtree(run / "checkpoints")
    refused(2, "holds no checkpoint")
    shutil.rmtree(run)
    refused(2, "is no run folder")


def test_every_state_but_a_fresh_one_can_be_exported(made: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(made("classification"), run)
    shutil.rmtree(run / "final")
    status = json.loads((run / "status.json").read_text())
    for state in ("running", "preempted", "failed", "diverged"):
        (run / "status.json").write_text(json.dumps({**status, "state": state}))
        assert export_checkpoint(run, tmp_path / state, 4) == 4


def test_a_checkpoint_that_goes_while_it_is_read_gives_way_to_a_newer_one(
    made: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(made("classification"), run)
    newer, root = tmp_path / "newer", run / "checkpoints"
    os.rename(store.step_folder(root, 6), newer)
    verify = store.verify

    def pruned(folder: Path) -> Any:
        manifest = verify(folder)
        if newer.exists():  # the run goes on just now
            os.rename(newer, store.step_folder(root, 6))
            shutil.rmtree(folder)
        return manifest

    monkeypatch.setattr(store, "verify", pruned)
    assert export_checkpoint(run, tmp_path / "out") == 6
    os.rename(store.step_folder(root, 6), newer)
    with pytest.raises(CheckpointError):  # but one that was asked for does not
        export_checkpoint(run, tmp_path / "other", 2)


def test_a_model_that_was_handed_in_is_refused_clearly(made: Callable[..., Path], tmp_path: Path) -> None:
    class Linear(nn.Module):
        def __init__(self, task: Any) -> None:
            super().__init__()
            self.table = nn.EmbeddingBag(len(task.tokenizer), len(task.labels))

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            return self.table(input_ids)

    run = made("classification", "own", Linear)
    with pytest.raises(ConfigError, match="handed in from Python"):
        export_checkpoint(run, tmp_path / "out")
    assert main.main(["predict", str(run), "--input", str(run.parent / "rows.csv"), "--output", "x.csv"]) == 2
