"""What a checkpoint holds, as safetensors and JSON: trained weights, optimizer, counters, and each rank's random state.

Safetensors rather than torch.distributed.checkpoint: under DDP every rank holds the same weights, so one file written
by rank 0 is all there is to coordinate; and DCP's metadata is a pickle. Only parameters that are trained are stored:
the others come from model.path.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from isostep.errors import CheckpointError

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
Tensors = dict[str, Tensor]


@dataclass
class Trained:
    """What training changes, unwrapped."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    scaler: torch.amp.GradScaler | None


def rank_file(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def write_shared(folder: Path, trained: Trained, state: dict[str, Any]) -> list[Path]:
    """Rank 0's files: what is the same on all ranks. `state` is JSON and carries the loop's counters."""
    tensors, scalars = optimizer_state(trained)
    save_file(_on_cpu(model_state(trained.model)), folder / MODEL)
    save_file(_on_cpu(tensors), folder / OPTIMIZER)
    whole = {
        **state,
        "optimizer": scalars,
        "scheduler": schedule_state(trained),
        "scaler": trained.scaler.state_dict() if trained.scaler is not None else None,
    }
    (folder / STATE).write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    return [folder / MODEL, folder / OPTIMIZER, folder / STATE]


def read_state(folder: Path) -> dict[str, Any]:
    """state.json of a checkpoint. Raises CheckpointError where it can't be read."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / STATE}: can't be read ({error})") from error
    return state


def restore_shared(folder: Path, trained: Trained, state: dict[str, Any]) -> None:
    """Put a checkpoint's weights, optimizer, schedule and scaler back. Raises CheckpointError where they do not fit."""
    restore_model(folder, trained.model)
    _restore_optimizer(trained, _opened(folder / OPTIMIZER)[0], state["optimizer"])
    _restore_schedule(trained, state["scheduler"])
    if trained.scaler is not None and state["scaler"] is not None:
        trained.scaler.load_state_dict(state["scaler"])


def schedule_state(trained: Trained) -> dict[str, Any]:
    """Where the schedule stands; of one that is not isostep's own also what it may have changed in the optimizer."""
    scheduler = trained.scheduler
    if isinstance(scheduler, LambdaLR):
        return {"last_epoch": scheduler.last_epoch, "step_count": scheduler._step_count}
    groups = [
        {key: value for key, value in group.items() if key != "params"} for group in trained.optimizer.param_groups
    ]
    return {"state": scheduler.state_dict(), "groups": groups}


def _restore_schedule(trained: Trained, state: dict[str, Any]) -> None:
    scheduler = trained.scheduler
    if not isinstance(scheduler, LambdaLR):
        scheduler.load_state_dict(state["state"])
        for group, stored in zip(trained.optimizer.param_groups, state["groups"], strict=True):
            group.update(stored)
        return
    scheduler.last_epoch, scheduler._step_count = state["last_epoch"], state["step_count"]
    # the rate is a function of the step, computed anew: the same number, or that of a schedule made longer
    rates = [
        base * factor(scheduler.last_epoch)
        for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    ]
    for group, rate in zip(trained.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = rates


def model_state(model: nn.Module) -> Tensors:
    """Trained parameters by name; tied ones once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def restore_model(folder: Path, model: nn.Module) -> None:
    """Copy the stored weights into `model`. Raises CheckpointError where names or shapes differ."""
    stored, present = _opened(folder / MODEL)[0], model_state(model)
    _check_names(folder / MODEL, stored.keys(), present.keys())
    with torch.no_grad():
        for name, parameter in present.items():
            if stored[name].shape != parameter.shape:
                raise CheckpointError(f"{folder / MODEL}: {name} has shape {tuple(stored[name].shape)}, "
                                      f"and the model's has {tuple(parameter.shape)}")  # fmt: skip
            parameter.copy_(stored[name])


def optimizer_state(trained: Trained) -> tuple[Tensors, dict[str, Any]]:
    """The optimizer's state by parameter name: tensors as "name/key", numbers as {name: {key: value}}."""
    tensors: Tensors = {}
    scalars: dict[str, Any] = {}
    for name, parameter in model_state(trained.model).items():
        for key, value in trained.optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{name}/{key}"] = value
            else:
                scalars.setdefault(name, {})[key] = value
    return tensors, scalars


def _restore_optimizer(trained: Trained, tensors: Tensors, scalars: dict[str, Any]) -> None:
    names = {id(parameter): name for name, parameter in model_state(trained.model).items()}
    by_name: dict[str, dict[str, Any]] = {name: dict(values) for name, values in scalars.items()}
    for key, value in tensors.items():
        name, _, part = key.rpartition("/")
        by_name.setdefault(name, {})[part] = value
    _check_names(Path(OPTIMIZER), by_name.keys(), by_name.keys() & set(names.values()))
    groups = trained.optimizer.state_dict()["param_groups"]
    order = [parameter for group in trained.optimizer.param_groups for parameter in group["params"]]
    state = {i: by_name[names[id(p)]] for i, p in enumerate(order) if names[id(p)] in by_name}
    trained.optimizer.load_state_dict({"state": state, "param_groups": groups})


def _check_names(path: Path, stored: Any, present: Any) -> None:
    odd = sorted(set(stored) ^ set(present))
    if odd:
        raise CheckpointError(f"{path}: is of another model; {odd[0]} is only in one of the two")


def write_rank(folder: Path, rank: int, device: torch.device, sums: dict[str, float]) -> Path:
    """This rank's file: its random states, and sums that have not been reduced yet."""
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, words, next_gauss = random.getstate()
    tensors = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "python": torch.tensor(words, dtype=torch.int64),
    }
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    facts = {
        "numpy": [kind, int(position), int(has_gauss), float(gauss)],
        "python": [version, next_gauss],
        "sums": sums,
    }
    path = folder / rank_file(rank)
    save_file(tensors, path, metadata={"facts": json.dumps(facts)})
    return path


def restore_rank(folder: Path, rank: int, device: torch.device) -> None:
    """Set this process' random states to those of `rank` in the checkpoint."""
    path = folder / rank_file(rank)
    tensors, facts = _opened(path)
    kind, position, has_gauss, gauss = facts["numpy"]
    version, next_gauss = facts["python"]
    torch.set_rng_state(tensors["torch"])
    np.random.set_state((kind, tensors["numpy"].numpy().astype(np.uint32), position, has_gauss, gauss))
    random.setstate((version, tuple(tensors["python"].tolist()), next_gauss))
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"], device)


def rank_sums(folder: Path, rank: int) -> dict[str, float]:
    """The unreduced sums of `rank` in the checkpoint."""
    sums: dict[str, float] = _opened(folder / rank_file(rank))[1]["sums"]
    return sums


def _opened(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """A file's tensors and its facts. Raises CheckpointError where it can't be read."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
            return tensors, json.loads((file.metadata() or {}).get("facts", "{}"))
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path}: can't be read ({error})") from error


def _on_cpu(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
