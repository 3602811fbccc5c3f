"""On every rank: the gradients of real steps in float64 against one plain backward over each window's mean item loss.

For each kind of task, three token budgets and full and short windows; with the ids of every window and the learning
rates, which are printed by rank 0 as JSON for comparison over world sizes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from small import KINDS, Rows, bert, make_task, plain

from isostep.config import Config
from isostep.data.loader import TrainSampler, make_loader
from isostep.data.plan import Plan
from isostep.train.ranks import Ranks, start
from isostep.train.step import Step, prepare_scheduler

BATCH, EPOCHS, BUDGETS = 8, 2, (16, 70, 100_000)


def plain_steps(kind: str, rows: Rows, order: list[list[int]], rates: list[float]) -> list[tuple[float, torch.Tensor]]:
    """(mean item loss, gradient) of each window: the rows one by one, no padding, no ranks, no micro-batches."""
    net, out = bert(kind), []
    for ids, rate in zip(order, rates, strict=True):
        mean = torch.stack([loss for row in rows.__getitems__(ids) for loss, _, _ in plain(kind, net, row)]).mean()
        gradient = torch.autograd.grad(mean, list(net.parameters()))
        out.append((mean.item(), torch.cat([g.flatten() for g in gradient])))
        with torch.no_grad():
            for parameter, g in zip(net.parameters(), gradient, strict=True):
                parameter -= rate * g
    return out


def steps(
    kind: str, budget: int, config: Config, accelerator: Accelerator, ranks: Ranks
) -> tuple[dict[str, Any], list[tuple[float, torch.Tensor]]]:
    """The ids and rates of each step, and its loss and gradient."""
    rows, task = Rows(22, kind), make_task(kind)
    plan = Plan(rows.lengths, BATCH, ranks.world_size, budget, 11, task.items(rows))  # type: ignore[arg-type]
    net = bert(kind)
    plain_sgd = torch.optim.SGD(net.parameters(), lr=config.optim.lr)
    prepared, optimizer = accelerator.prepare(net, plain_sgd)
    scheduler = prepare_scheduler(optimizer, config.optim, EPOCHS * plan.windows_per_epoch)
    step = Step(accelerator, prepared, optimizer, scheduler, task, max_grad_norm=None)
    sampler = TrainSampler(plan)
    loader = accelerator.prepare_data_loader(make_loader(rows, sampler, task.collate, 0))
    step.warm_up(next(iter(loader)))
    seen: list[torch.Tensor] = []
    plain_sgd.register_step_pre_hook(lambda *_: seen.append(torch.cat([p.grad.flatten() for p in net.parameters()])))
    losses, rates, ids = [], [], []
    for epoch in range(EPOCHS):
        sampler.start_at(epoch, 0)
        batches = iter(loader)
        for window in plan.windows(epoch):
            rates.append(scheduler.get_last_lr()[0])
            result = step(window, batches)
            assert window.weight == rows.items[window.indices].sum(), "a window weighs as many as it has items"
            losses.append(sum(ranks.gather(result.loss_sum.item())) / window.weight)
            ids.append(window.indices.tolist())
    assert next(batches, None) is None, "parts are left over"
    assert [len(window) for window in ids] == [8, 8, 6, 8, 8, 6], "the short last window is kept"
    return {"ids": ids, "rates": rates}, list(zip(losses, seen, strict=True))


def main(folder: str) -> None:
    config = Config.load(overrides=["--run.name", "gradients", "--data.path", "builtin:sms", "--model.path",
                                    "builtin:tiny", "--optim.lr", "0.5", "--optim.warmup", "2"])  # fmt: skip
    accelerator, ranks = start(config)
    report: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        wanted: list[tuple[float, torch.Tensor]] = []
        report[kind] = {}
        for budget in BUDGETS:
            cut, found = steps(kind, budget, config, accelerator, ranks)
            wanted = wanted or plain_steps(kind, Rows(22, kind), cut["ids"], cut["rates"])
            for k, ((loss, gradient), (mean, exact)) in enumerate(zip(found, wanted, strict=True)):
                where = f"{kind}, {ranks.world_size} ranks, budget {budget}, step {k}"
                worst = ((gradient - exact).norm() / exact.norm()).item()
                assert worst < 1e-10, f"{where}: gradient off by {worst:.1e}"
                assert abs(loss - mean) < 1e-10 * mean, f"{where}: loss {loss} for {mean}"
            report[kind][str(budget)] = cut
    if ranks.is_main:
        Path(folder, f"world-{ranks.world_size}.json").write_text(json.dumps(report))
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
