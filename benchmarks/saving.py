"""How long training stands still for a checkpoint, and what asking for a stop costs a step.

    OMP_NUM_THREADS=1 accelerate launch --config_file accelerate_configs/cpu_2.yaml benchmarks/saving.py

The model is MiniLM with a head and AdamW's state. Measured in one run: isostep's checkpoint (written, flushed to the
disk, hashed, renamed), a plain copy of the same bytes in memory, and transformers' Trainer saving the same (in its loop
with save_steps=1, from the end of a step to its on_save). Medians over --repeats; the stop is asked beside a pretended
step of 20 ms, and its cost is the mean over 300 of them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from isostep.checkpoint.contents import Trained, model_state, optimizer_state
from isostep.checkpoint.saving import Checkpointer
from isostep.config import Config
from isostep.optim import make_optimizer
from isostep.train.ranks import end_process_group, start
from isostep.train.step import prepare_scheduler
from isostep.train.stop import Stop
from quality import minilm

STEP_SECONDS = 0.02


class Clock(TrainerCallback):  # type: ignore[misc]
    """Seconds from the end of a step to the end of its save."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.began = 0.0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.began = time.perf_counter()

    def on_save(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self.began)


def rows() -> list[dict[str, Any]]:
    return [
        {"input_ids": [101, *range(2000, 2000 + 30), 102], "attention_mask": [1] * 32, "labels": i % 2}
        for i in range(64)
    ]


def trainer_seconds(folder: str, repeats: int) -> list[float]:
    model = AutoModelForSequenceClassification.from_pretrained(minilm(), num_labels=2)
    clock = Clock()
    arguments = TrainingArguments(
        folder, per_device_train_batch_size=4, max_steps=repeats + 1, save_steps=1, save_total_limit=2, use_cpu=True,
        report_to="none", disable_tqdm=True, logging_steps=1000,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=rows(), callbacks=[clock]).train()  # type: ignore[arg-type]
    return clock.seconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    config = Config.load(
        overrides=["--run.name", "saving", "--data.path", "builtin:sms", "--model.path", "builtin:tiny"]
    )
    accelerator, ranks = start(config)
    folder = ranks.share(tempfile.mkdtemp(prefix="saving-"))
    model = AutoModelForSequenceClassification.from_pretrained(minilm(), num_labels=2)
    optimizer = make_optimizer(model, config.optim)
    prepared, wrapped = accelerator.prepare(model, optimizer)
    prepared(
        **{k: torch.tensor([r[k] for r in rows()[:2]]) for k in ("input_ids", "attention_mask", "labels")}
    ).loss.backward()
    wrapped.step()
    trained = Trained(model, optimizer, prepare_scheduler(wrapped, config.optim, 100).scheduler, None)
    checkpointer = Checkpointer(Path(folder, "checkpoints"), ranks, trained, accelerator.device, keep=2)
    tensors = [*model_state(model).values(), *optimizer_state(trained)[0].values()]
    ours, copies = [], []
    for step in range(repeats + 1):
        began = time.perf_counter()
        checkpointer.save(step, {}, {})
        saved = time.perf_counter()
        kept = [tensor.detach().clone() for tensor in tensors]
        copies.append(time.perf_counter() - saved)
        ours.append(saved - began)
        del kept
    theirs = trainer_seconds(str(Path(folder, "trainer")), repeats)
    stop = Stop(Path(folder), ranks.rank, ranks.new_group())
    asked = []
    for _ in range(300):
        time.sleep(STEP_SECONDS)
        began = time.perf_counter()
        stop.poll()
        asked.append(time.perf_counter() - began)
    stop.drain()
    if ranks.is_main:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        print(f"{ranks.world_size} rank(s), {size / 1e6:.0f} MB of weights and optimizer")
        for name, seconds in (("isostep", ours[1:]), ("Trainer", theirs), ("copy in memory", copies[1:])):
            print(f"{name:15} {statistics.median(seconds) * 1000:8.1f} ms a save (median of {len(seconds)})")
        cost = statistics.mean(asked)  # not each call asks the other ranks
        print(f"asking for a stop {cost * 1e6:.0f} us, {cost / STEP_SECONDS:.2%} of a 20 ms step")
    end_process_group()


if __name__ == "__main__":
    main()
