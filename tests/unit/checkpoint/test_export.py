from __future__ import annotations

import math
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from isostep.checkpoint.card import model_card, portable
from isostep.checkpoint.export import export, repair
from isostep.config import Config, Data, Model, Run, schema
from isostep.data.labels import Label, Labels
from isostep.models.load import load_model
from isostep.models.tokenizer import load_tokenizer
from isostep.tasks import Task, make_task

CONFIG = Config(model=Model(path="builtin:tiny"))


def task(labels: list[Label]) -> Task:
    made = make_task(CONFIG)
    made.labels = Labels.of(labels)
    return made


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    tokenizer = load_tokenizer(CONFIG, lambda: iter(["a man is here", "a film"] * 3), tmp_path_factory.mktemp("cache"))
    torch.manual_seed(0)
    return load_model(CONFIG, task([False, True]), tokenizer), tokenizer


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_folder_loads_as_the_same_model_and_tokenizer(trained: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = trained
    before = tokenizer("a man", truncation=True, max_length=4, padding="max_length")
    export(model, tokenizer, tmp_path / "runs" / "best", "# card\n")
    folder = tmp_path / "runs" / "best"
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert set(os.listdir(folder)) == names and os.listdir(folder.parent) == ["best"]
    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in loaded.state_dict().items())
    assert loaded.config.label_values == [False, True] and loaded.config.id2label == {0: "false", 1: "true"}
    again = AutoTokenizer.from_pretrained(folder)
    assert again.backend_tokenizer.truncation is None  # the last batch's would cut every later text
    assert again("a man", truncation=True, max_length=4, padding="max_length").data == before.data
    assert str(tmp_path) not in "".join(path.read_text() for path in folder.glob("*.json"))


class Crash(BaseException):
    """A kill -9: nothing catches it, and no clean-up that a process can't do any more may count."""


def test_a_crash_at_any_moment_leaves_the_old_or_the_new_folder(
    trained: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = trained
    folder = tmp_path / "best"
    export(model, tokenizer, folder, "old")
    old = content(folder)
    crashed = 0
    for moment in range(100):
        calls = 0

        def counted(real: Any, moment: int = moment) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > moment:
                    raise Crash
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for module, name in (
                (os, "rename"),
                (os, "fsync"),
                (shutil, "rmtree"),
                (Path, "mkdir"),
                (Path, "write_text"),
            ):
                patch.setattr(module, name, counted(getattr(module, name)))
            try:
                export(model, tokenizer, folder, "new")
            except Crash:
                crashed += 1
        done = calls <= moment
        repair(folder)
        assert os.listdir(tmp_path) == ["best"]
        now = content(folder)
        assert now == {**old, "README.md": b"new"} or (not done and now == old)
        if done:
            break
        export(model, tokenizer, folder, "old")
    assert done and crashed > 8


def test_an_export_that_fails_keeps_the_folder_before(
    trained: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = trained
    export(model, tokenizer, tmp_path / "best", "old")
    old = content(tmp_path / "best")

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tokenizer), "save_pretrained", full)
    with pytest.raises(OSError, match="No space left"):
        export(model, tokenizer, tmp_path / "best", "new")
    assert os.listdir(tmp_path) == ["best"] and content(tmp_path / "best") == old


def card(config: Config, **changes: Any) -> str:
    values: dict[str, Any] = {
        "task": task(["ham", "spam"]),
        "results": {"eval/loss": 0.25, "eval/accuracy": 0.984375, "eval/mcc": 0.9},
        "step": 120,
        "command": [
            f"{Path.cwd()}/train.py",
            "--config",
            "/home/me/secret project/spam.yaml",
            "--run.root=/home/me/runs",
        ],
    }
    return model_card(config, **{**values, **changes})


def loaded(text: str, folder: Path) -> Any:
    """The metadata as the Hub's own library reads it."""
    (folder / "README.md").write_text(text)
    return ModelCard.load(folder / "README.md").data


def entries(data: Any) -> dict[tuple[str, str, str], float]:
    """{(dataset, split, metric's recorded name): value} of the model index."""
    return {(e.dataset_name, e.dataset_split, e.metric_name): e.metric_value for e in data.eval_results}


def test_card_of_a_hub_model(tmp_path: Path) -> None:
    config = Config(
        run=Run(name="spam", root="/home/me/runs"),
        model=Model(path="owner/model-1"),
        data=Data(train="/home/me/data/train.csv", text=("body",), label="kind"),
    )
    text = card(config)
    found = loaded(text, tmp_path)
    values = {"eval/accuracy": 0.984375, "eval/mcc": 0.9}
    assert found.to_dict() == {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["isostep"],
        "base_model": "owner/model-1",
        "metrics": ["accuracy", "matthews_correlation"],
        "model-index": [{"name": "spam", "results": [{
            "task": {"type": "text-classification"},
            "dataset": {"name": "train.csv", "type": "train.csv", "split": "validation"},
            "metrics": [
                {"type": "accuracy", "value": values["eval/accuracy"], "name": "accuracy"},
                {"type": "matthews_correlation", "value": values["eval/mcc"], "name": "mcc"},
            ],
        }]}],
    }  # fmt: skip
    for line in (
        "# spam",
        "| eval/accuracy | 0.984375 |",
        "- Labels: `ham`, `spam`",
        "- Data: `train.csv`, text from `body`",
        f"- Made with: isostep {version('isostep')}, transformers {version('transformers')}, torch {version('torch')}",
    ):
        assert line in text.splitlines()
    assert "train.py --config spam.yaml --run.root=runs" in text.splitlines()
    assert "/home/me" not in text and str(Path.cwd()) not in text
    shown = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert shown["data"]["train"] == "train.csv" and shown["optim"]["lr"] == 5e-5


def test_card_of_local_and_built_in_models(tmp_path: Path) -> None:
    for path, said in ((str(tmp_path), tmp_path.name), ("builtin:tiny", "builtin:tiny")):
        text = card(Config(model=Model(path=path), data=Data(path="owner/set")), results={})
        found = loaded(text, tmp_path).to_dict()
        assert not found.keys() & {"base_model", "metrics", "license", "language", "model-index"}
        assert found["datasets"] == ["owner/set"]
        assert f"from `{said}`" in text and str(tmp_path) not in text and "Not evaluated." in text


def test_licence_and_language_are_those_of_the_base(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    config = Config(model=Model(path=str(base)), data=Data(path="owner/set"))
    head = "license: other\nlicense_name: x\nlicense_link: LICENSE\nlanguage: [en, de]\ntags: [a]\nmodel-index: 3\n"
    for said in ("no metadata at all", f"---\n{head}---\n# Base\n", "---\nlicense: [\n---\n"):
        (base / "README.md").write_text(said)
        found = loaded(card(config), tmp_path).to_dict()
        if "[en" in said:
            assert (found["license"], found["license_name"], found["language"]) == ("other", "x", ["en", "de"])
        else:
            assert "license" not in found and "language" not in found
        assert found["tags"] == ["isostep"]


def test_each_set_and_split_has_its_entries(tmp_path: Path) -> None:
    results = {"eval/a/mse": 0.5, "eval/a/loss": 0.5, "eval/b/pearson": math.nan, "eval/b/r2": 0.25,
               "eval/train/mse": 0.1, "test/mse": 0.75}  # fmt: skip
    sets = {"a": "/data/a.csv", "b": "matched"}
    data = Data(path="owner/set", name="part", revision="v1", validation=sets, test="held_out", text=("t",), label="y")
    config = Config(model=Model(path="builtin:tiny"), task=schema.Task(kind="regression"), data=data)
    found = loaded(card(config, task=make_task(config), results=results), tmp_path)
    assert entries(found) == {
        ("a.csv", "validation", "mse"): 0.5,
        ("owner/set", "matched", "r2"): 0.25,
        ("owner/set", "held_out", "mse"): 0.75,
    }
    (one,) = [entry for entry in found.eval_results if entry.dataset_split == "held_out"]
    assert (one.dataset_config, one.dataset_revision, one.metric_type) == ("part", "v1", "mse")
    assert found.metrics == ["mse", "r_squared"] and found.pipeline_tag == "text-classification"


def test_averages_are_told_apart(tmp_path: Path) -> None:
    results = {"eval/f1_micro": 0.5, "eval/f1_macro": 0.25, "eval/accuracy": 0.125}
    config = Config(model=Model(path="builtin:tiny"), task=schema.Task(multi_label=True), data=Data(path="owner/set"))
    made = make_task(config)
    made.labels = Labels.of(["x", "y"])
    found = loaded(card(config, task=made, results=results), tmp_path)
    assert {(e.metric_type, (e.metric_args or {}).get("average"), e.metric_value) for e in found.eval_results} == {
        ("f1", "micro", 0.5), ("f1", "macro", 0.25), ("accuracy", None, 0.125)}  # fmt: skip
    assert found.metrics == ["f1", "accuracy"]


def test_portable_keeps_all_but_absolute_paths() -> None:
    here = str(Path.cwd() / "configs" / "a.yaml")
    given = {"a": [here, "runs/x", 3, None, True], "b": "/elsewhere/b.csv", "c": "owner/model", "d": "~/x/y.csv"}
    want = {"a": ["configs/a.yaml", "runs/x", 3, None, True], "b": "b.csv", "c": "owner/model", "d": "y.csv"}
    assert portable(given) == want
