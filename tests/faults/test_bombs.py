"""P10: a pickle that runs code, in the place of every file that isostep loads beside its checkpoints'."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_saves import Bomb

from isostep.cli.predict import predict
from isostep.config import Config
from isostep.data import files, sources
from isostep.data.labels import Labels
from isostep.errors import ConfigError, DataError
from isostep.models.load import load_model
from isostep.models.tokenizer import load_tokenizer
from isostep.tasks import make_task
from isostep.track.folder import claim, store_config
from isostep.track.lock import FolderLock
from isostep.train import prepare
from isostep.train.parts import Parts


@pytest.fixture
def canary(tmp_path):
    """A file that must not be there at the end of a test."""
    path = tmp_path / "canary"
    yield path
    assert not path.exists(), "the pickle was run"


def put(path: Path, canary: Path, size: int = 0) -> Path:
    """Replace `path` by a bomb of at least `size` bytes: what follows a pickle's end is not read."""
    assert not canary.exists()
    path.unlink(missing_ok=True)  # an Arrow file may be mapped into this process
    path.write_bytes(pickle.dumps(Bomb(canary)).ljust(size, b"\0"))
    return path


def config(*overrides: str) -> Config:
    model = [] if "--model.path" in overrides else ["--model.path", "builtin:tiny"]
    data = [] if "--data.train" in overrides else ["--data.path", "builtin:sms"]
    return Config.load(overrides=["--run.name", "r", "--data.max-train-examples", "50", *model, *data, *overrides])


TASK = make_task(config())
TASK.labels = Labels.of(["ham", "spam"])


def make_data(config: Config) -> prepare.TokenizedData:
    return prepare.make_data(config, Parts(make_task(config)))


@pytest.fixture(scope="session")
def exported(tmp_path_factory) -> Path:
    """A classifier's folder as best/ is: made by the product's own export from a fresh builtin:tiny."""
    from isostep.checkpoint.export import export

    root = tmp_path_factory.mktemp("exported")
    texts = ["win a prize now", "see you at home", "call now to win", "at home now"]
    tokenizer = load_tokenizer(config(), lambda: iter(texts), root / "cache")
    model: Any = load_model(config(), TASK, tokenizer)
    export(model, tokenizer, root / "model", "a card")
    return root / "model"


@pytest.fixture
def model(exported, tmp_path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "model"))


def test_the_bombs_go_off_where_nobody_takes_care(tmp_path):
    pickle.loads(put(tmp_path / "bomb", tmp_path / "first", 4096).read_bytes())
    yaml.unsafe_load(tagged(tmp_path / "bomb", tmp_path / "second").read_text()).get("run").close()
    assert (tmp_path / "first").exists() and (tmp_path / "second").exists()


def load(folder: Path) -> None:
    named = config("--model.path", str(folder))
    load_model(named, TASK, load_tokenizer(named, lambda: iter(()), folder))


def test_a_model_folder_loads_as_long_as_it_is_whole(model):
    load(model)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"])
def test_p10_no_file_of_a_model_folder_is_unpickled(model, canary, name):
    put(model / name, canary)
    with pytest.raises(ConfigError, match=r"model\.path") as refused:
        load(model)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00001.bin", "model.pt"])
def test_p10_pickled_weights_are_refused_by_name(model, canary, name):
    (model / "model.safetensors").unlink()
    put(model / name, canary)
    with pytest.raises(ConfigError, match=f"only {name}, which is pickle and is never read"):
        load(model)


def test_p10_an_index_of_safetensors_leads_to_no_pickle(model, canary):
    put(model / "weights.bin", canary)
    names = dict.fromkeys(("classifier.weight", "classifier.bias"), "weights.bin")
    (model / "model.safetensors").rename(model / "other.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    with pytest.raises(ConfigError, match=r"model\.path"):
        load(model)


def test_p10_pickles_beside_the_weights_stay_unread(model, canary):
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
        put(model / name, canary)
    load(model)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_p10_predict_unpickles_nothing_of_best(model, tmp_path, canary, name):
    run = tmp_path / "run"
    store_config(run_folder(run), config())
    model.rename(run / "best")
    (tmp_path / "in.csv").write_text("text\nhello\n")
    put(run / "best" / name, canary)
    with pytest.raises(ConfigError, match=r"model\.path"):
        predict(run, tmp_path / "in.csv", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def run_folder(run: Path) -> Path:
    run.mkdir(exist_ok=True)
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    return run


def tagged(path: Path, canary: Path) -> Path:
    """YAML that does the same to PyYAML's unsafe loader."""
    path.write_text(f"run: !!python/object/apply:builtins.open [{canary}, w]\n")
    return path


@pytest.mark.parametrize("bomb", [put, tagged])
def test_p10_a_runs_config_yaml_is_data_alone(tmp_path, canary, bomb: Callable[[Path, Path], Path]):
    run = run_folder(tmp_path / "run")
    path = bomb(run / "config.yaml", canary)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        claim(run, config())
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        predict(run, tmp_path / "in.csv", tmp_path / "out.csv")
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        Config.load(path)


def test_p10_a_runs_metrics_are_data_alone(tmp_path, canary):
    run = run_folder(tmp_path / "run")
    store_config(run, config())
    put(run / "metrics.jsonl", canary)
    with pytest.raises(ConfigError, match=r"metrics\.jsonl"):
        claim(run, config())


@pytest.mark.parametrize("name", ["status.json", ".lock"])
def test_p10_a_status_or_lock_that_is_none_counts_as_missing(tmp_path, canary, name):
    run = run_folder(tmp_path / "run")
    store_config(run, config())
    put(run / name, canary)
    lock = FolderLock(run)
    lock.acquire()
    try:
        assert claim(run, config()).restarts == 1
    finally:
        lock.release()


@pytest.mark.parametrize("ending", sorted(files.FORMATS))
def test_p10_an_input_is_read_by_its_format_alone(tmp_path, canary, ending):
    path = put(tmp_path / f"train.{ending}", canary)
    with pytest.raises(DataError, match=path.name):
        list(files.read(path))
    with pytest.raises(DataError, match=path.name):
        make_data(config("--data.train", str(path), "--data.text", "text", "--data.label", "label"))


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json", "data-00000-of-00001.arrow"])
def test_p10_a_saved_dataset_is_not_unpickled(tmp_path, canary, name):
    import datasets

    saved = tmp_path / "saved"
    datasets.Dataset.from_dict({"text": ["a", "b"], "label": ["x", "y"]}).save_to_disk(str(saved))
    put(saved / name, canary, (saved / name).stat().st_size)
    with pytest.raises(DataError, match=r"data\.path"):
        sources.resolve(config("--data.path", str(saved), "--data.text", "text", "--data.label", "label"))


def in_cache(cache: Path, name: str) -> Path:
    (path,) = cache.glob(f"*/*/{name}")
    return path


@pytest.mark.parametrize("name", ["meta.json", "train.arrow", "validation.arrow"])
def test_p10_tokens_in_the_cache_are_made_anew_where_they_were_replaced(tmp_path, canary, monkeypatch, name):
    monkeypatch.setenv("ISOSTEP_CACHE", str(tmp_path / "cache"))
    before = make_data(config())
    put(in_cache(tmp_path / "cache", name), canary)
    after = make_data(config())
    assert not after.summary["reused"] and after.train[:] == before.train[:]


@pytest.mark.parametrize("name", ["train.arrow", "tokenizer.json"])
def test_p10_a_cache_that_lies_about_its_size_is_refused_by_name(tmp_path, canary, monkeypatch, name):
    monkeypatch.setenv("ISOSTEP_CACHE", str(tmp_path / "cache"))
    make_data(config())
    path = in_cache(tmp_path / "cache", name)
    put(path, canary, path.stat().st_size)
    with pytest.raises(ConfigError, match=str(path.parent)):
        make_data(config())
