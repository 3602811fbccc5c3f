"""train.py with a fault: reads what, where and when from $FAULT (JSON) and puts it into the product from outside.

{"site": ..., "kind": ..., "rank": 0, "step": 4, "times": 1}; sites: step, evaluation, preprocessing, worker, and the
stages of a save: begin, write, flush, commit, committed. Kinds: kill, stop (SIGSTOP), raise, full (disk), slow, signal
names; and for a step, nan and inf: one entry of one gradient, on this rank alone. `step` counts the step that is under
way, from 1; null: any.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import datasets
import torch
from torch.utils.data import get_worker_info

from isostep.checkpoint import saving
from isostep.cli.main import main
from isostep.train import evaluate, prepare, step

FAULT: dict[str, Any] = json.loads(os.environ.get("FAULT", "{}"))
done = {"steps": 0, "faults": 0}


def strike(site: str, owner: Any = None) -> None:
    if FAULT.get("site") != site or int(os.environ.get("RANK", "0")) != FAULT.get("rank", 0):
        return
    if FAULT.get("step") not in (None, done["steps"]) or done["faults"] >= FAULT.get("times", 1):
        return
    if site == "worker" and get_worker_info() is None:
        return
    done["faults"] += 1
    kind = FAULT["kind"]
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "raise":
        raise RuntimeError("injected fault")
    elif kind == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    elif kind in ("nan", "inf"):
        spoil(owner.trained[0], float(kind))
    elif kind == "slow":
        print(f"slow in {site}", flush=True)
        time.sleep(FAULT["seconds"])
    else:
        os.kill(os.getpid(), getattr(signal, kind))


def spoil(parameter: torch.Tensor, value: float) -> None:
    """Put `value` into the parameter's next gradient, before it is reduced over the ranks."""

    def spoiled(gradient: torch.Tensor) -> torch.Tensor:
        hook.remove()
        gradient = gradient.clone()
        gradient.view(-1)[0] = value
        return gradient

    hook = parameter.register_hook(spoiled)


def before(function: Callable[..., Any], site: str, count: bool = False) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        done["steps"] += count
        strike(site, *arguments[:1])
        return function(*arguments, **named)

    return wrapped


saving.stage = strike
step.Step.__call__ = before(step.Step.__call__, "step", count=True)  # type: ignore[method-assign]
evaluate.Evaluator._run = before(evaluate.Evaluator._run, "evaluation")  # type: ignore[method-assign]
prepare.load = before(prepare.load, "preprocessing")
datasets.Dataset.__getitems__ = before(datasets.Dataset.__getitems__, "worker")  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
