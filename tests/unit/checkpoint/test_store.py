"""Checkpoint folders: whole or not there, verified by hash, the newest good one found."""

from __future__ import annotations

import json
import logging
import os

import pytest

from isostep.checkpoint import store
from isostep.checkpoint.saving import find, supersede
from isostep.errors import CheckpointError


def make(root, step, content=b"weights " * 100):
    root.mkdir(exist_ok=True)
    made = store.unfinished_folder(root, step)
    made.mkdir()
    (made / "model.safetensors").write_bytes(content)
    (made / "state.json").write_text("{}")
    entries = [store.flush(made / name) for name in ("model.safetensors", "state.json")]
    store.commit(made, store.step_folder(root, step), entries, {"step": step, "world_size": 1})
    return store.step_folder(root, step)


def names(root):
    return sorted(path.name for path in root.iterdir())


def test_a_checkpoint_is_a_folder_whose_manifest_describes_each_file(tmp_path):
    folder = make(tmp_path, 7)
    manifest = store.verify(folder)
    assert folder.name == "step-00000007" and manifest["step"] == 7
    assert manifest["files"]["model.safetensors"]["size"] == 800
    assert names(tmp_path) == ["step-00000007"]


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "one flipped bit": (lambda folder: flip(folder / "model.safetensors"), "model.safetensors"),
    "cut off": (lambda folder: os.truncate(folder / "model.safetensors", 799), "model.safetensors"),
    "emptied": (lambda folder: os.truncate(folder / "state.json", 0), "state.json"),
    "missing": (lambda folder: (folder / "state.json").unlink(), "state.json"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "manifest.json"),
    "manifest cut off": (lambda folder: os.truncate(folder / "manifest.json", 20), "manifest.json"),
    "manifest of another kind": (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest.json"),
    "manifest of a later version": (
        lambda folder: (folder / "manifest.json").write_text('{"version": 99, "files": {}}'),
        "manifest.json",
    ),
    "a name that leads elsewhere": (
        lambda folder: (folder / "manifest.json").write_text(
            json.dumps({"version": 1, "files": {"../x": {"size": 0, "xxh3": ""}}})
        ),
        "x",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_set_aside_with_a_warning_that_names_the_file_and_the_one_before_is_used(
    tmp_path, caplog, damage
):
    before, newest = make(tmp_path, 5), make(tmp_path, 10)
    harm, named = DAMAGE[damage]
    harm(newest)
    with pytest.raises(CheckpointError, match=named) as refused:
        store.verify(newest)
    assert refused.value.exit_code == 6
    with caplog.at_level(logging.WARNING, logger="isostep"):
        assert find(tmp_path, "auto") == before
    assert named in caplog.text
    assert names(tmp_path) == ["broken-step-00000010", "step-00000005"]


def test_all_damaged_or_none_there_is_a_start_from_nothing(tmp_path):
    assert find(tmp_path / "none", "auto") is None
    flip(make(tmp_path, 5) / "model.safetensors")
    assert find(tmp_path, "auto") is None


def test_never_and_an_explicit_path(tmp_path):
    root = tmp_path / "checkpoints"
    old = make(root, 5)
    make(root, 10)
    (tmp_path / "config.yaml").write_text("run: {resume: auto}\n")
    assert find(root, "never") is None
    assert find(root, str(old)) == old
    assert names(root) == ["step-00000005", "step-00000010"], "nothing is touched before the start is accepted"
    supersede(root, 5)
    # the newer one belongs to a future that is not this run's any more
    assert names(root) == ["step-00000005", "superseded-step-00000010"]
    with pytest.raises(CheckpointError, match="is missing"):
        find(root, str(tmp_path / "nowhere"))
    flip(old / "model.safetensors")
    with pytest.raises(CheckpointError, match="hash mismatch"):
        find(root, str(old))


def test_pruning_keeps_the_newest_and_sweeping_takes_only_unfinished_ones(tmp_path):
    for step in (5, 10, 99_999_999, 100_000_015, 20):
        make(tmp_path, step)
    store.unfinished_folder(tmp_path, 25).mkdir()
    store.sweep(tmp_path)
    assert [folder.name for folder in store.checkpoints(tmp_path)] == [
        *("step-100000015", "step-99999999", "step-00000020", "step-00000010", "step-00000005"),
    ]
    store.prune(tmp_path, 2)
    assert names(tmp_path) == ["step-100000015", "step-99999999"]


def test_a_step_saved_again_replaces_the_old_one(tmp_path):
    make(tmp_path, 5)
    assert (make(tmp_path, 5, b"new") / "model.safetensors").read_bytes() == b"new"
