"""Saving and finding checkpoints over all ranks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from isostep.checkpoint import contents, store
from isostep.checkpoint.contents import Trained
from isostep.checkpoint.export import repair
from isostep.checkpoint.store import Entry
from isostep.errors import CheckpointError, SaveError
from isostep.track.folder import holds_a_run, stored_config

if TYPE_CHECKING:
    from isostep.train.ranks import Ranks

DISK_FULL = 28  # errno.ENOSPC, which safetensors has in its text only


def stage(name: str) -> None:
    """A point in a save that tests may replace to make it fail there; does nothing."""


class Checkpointer:
    """Writes checkpoints of one run.

    Args:
        root: the folder checkpoints/ of the run.
        ranks: all of them take part in a save.
        trained: what is stored, unwrapped.
        device: whose random state is stored too.
        keep: checkpoints that are kept.
    """

    def __init__(self, root: Path, ranks: Ranks, trained: Trained, device: torch.device, keep: int) -> None:
        self.root = root
        self.ranks = ranks
        self.trained = trained
        self.device = device
        self.keep = keep

    def save(self, step: int, state: dict[str, Any], sums: dict[str, float]) -> Path:
        """Commit a checkpoint of `step`: `state` is the same on all ranks, `sums` each rank's own.

        Raises on all ranks together if it fails on any: SaveError where the disk is full. What was half written is
        removed, and older checkpoints are touched only after the new one is in its place.
        """
        made, target = store.unfinished_folder(self.root, step), store.step_folder(self.root, step)
        main = self.ranks.is_main
        try:
            self._on_main(lambda: self._begin(made))
            entries = self.ranks.agree(lambda: self._write(made, state, sums))
            gathered = [entry for part in self.ranks.gather(entries) for entry in part or ()]
            self._on_main(lambda: self._commit(made, target, gathered, step))
        except Exception:
            if main:
                shutil.rmtree(made, ignore_errors=True)
            raise
        self._on_main(lambda: store.prune(self.root, self.keep))
        return target

    def _on_main(self, work: Callable[[], None]) -> None:
        self.ranks.agree(work, only=lambda: self.ranks.is_main)

    def _begin(self, made: Path) -> None:
        stage("begin")
        self.root.mkdir(parents=True, exist_ok=True)
        store.sweep(self.root)
        made.mkdir()
        need, have = self._bytes(), shutil.disk_usage(self.root).free
        if need > have:
            raise SaveError(f"{self.root}: a checkpoint needs {_mb(need)} and the disk has {_mb(have)} left; the one "
                            "before is intact: make room and start again")  # fmt: skip

    def _bytes(self) -> int:
        tensors, _ = contents.optimizer_state(self.trained)
        both = (*contents.model_state(self.trained.model).values(), *tensors.values())
        return sum(tensor.numel() * tensor.element_size() for tensor in both)

    def _write(self, made: Path, state: dict[str, Any], sums: dict[str, float]) -> list[Entry]:
        stage("write")
        try:
            paths = [contents.write_rank(made, self.ranks.rank, self.device, sums)]
            if self.ranks.is_main:
                paths += contents.write_shared(made, self.trained, state)
            stage("flush")
            return [store.flush(path) for path in paths]
        except (OSError, SafetensorError) as error:
            if getattr(error, "errno", None) != DISK_FULL and f"os error {DISK_FULL}" not in str(error):
                raise
            have = shutil.disk_usage(self.root).free
            raise SaveError(f"{made}: the disk is full: a checkpoint needs {_mb(self._bytes())}, {_mb(have)} are left; "
                            "the one before is intact: make room and start again") from error  # fmt: skip

    def _commit(self, made: Path, target: Path, entries: list[Entry], step: int) -> None:
        stage("commit")
        store.commit(made, target, entries, {"step": step, "world_size": self.ranks.world_size})
        stage("committed")


def find(root: Path, resume: str) -> Path | None:
    """The checkpoint that a start goes on from, by run.resume: auto, never, or a checkpoint's path. On rank 0.

    A path that config.yaml names already was gone back to by an earlier start: the same command again, after a requeue
    say, goes on from what has been saved since.

    Raises CheckpointError (exit code 6) for a path that can't be used, or that lies in another run while this folder
    holds one, too.
    """
    if resume == "never":
        return None
    if resume == "auto":
        store.sweep(root)
        return store.newest_valid(root)
    asked = Path(resume)
    if _went_back_before(root, resume):
        newest = store.newest_valid(root)
        if newest is not None and (not asked.is_dir() or store.step_of(newest) > int(store.verify(asked)["step"])):
            return newest
    store.verify(asked)
    if not (asked / contents.STATE).is_file():
        raise CheckpointError(f"run.resume: {asked} holds no {contents.STATE}")
    if asked.resolve().parent != root.resolve() and holds_a_run(root.parent):
        raise CheckpointError(f"run.resume: {asked} is of another run; this one's checkpoints lie in {root}\n"
                              "to start from its weights, name its best/ or final/ as model.path")  # fmt: skip
    return asked


def _went_back_before(root: Path, resume: str) -> bool:
    return holds_a_run(root.parent) and stored_config(root.parent).get("run", {}).get("resume") == resume


def supersede(root: Path, step: int) -> None:
    """Set the checkpoints after `step` aside: the run goes on from there, so they belong to another future."""
    for newer in store.checkpoints(root):
        if store.step_of(newer) > step:
            store.set_aside(newer, "superseded")


def supersede_best(best: Path, step: int | None) -> Path | None:
    """Set `best` aside, and say where it is now, unless it was exported at `step`; nothing where there is none."""
    repair(best)
    card = best / "README.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    if not best.exists() or f"the weights after optimizer step {step}." in text:
        return None
    return store.set_aside(best, "superseded")


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
