"""On every rank: the gradients of real steps in float64 against one plain backward over each window's mean loss.

For three token budgets and full and short windows; with the ids of every window and the learning rates, which are
printed by rank 0 as JSON for comparison over world sizes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from small import Rows, bert

from isostep.config import Config
from isostep.data.loader import TrainSampler, make_loader
from isostep.data.plan import Plan
from isostep.tasks import Classification
from isostep.train.ranks import start
from isostep.train.step import Step, prepare_scheduler

BATCH, EPOCHS, BUDGETS = 8, 2, (16, 70, 100_000)


def plain_steps(rows: Rows, order: list[list[int]], rates: list[float]) -> list[tuple[float, torch.Tensor]]:
    """(mean loss, gradient) of each window: the rows one by one, no padding, no ranks, no micro-batches."""
    net, out = bert(), []
    for ids, rate in zip(order, rates, strict=True):
        losses = []
        for row in rows.__getitems__(ids):
            logits = net(input_ids=torch.tensor([row["input_ids"]])).logits
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor([row["labels"]])))
        mean = torch.stack(losses).mean()
        gradient = torch.autograd.grad(mean, list(net.parameters()))
        out.append((mean.item(), torch.cat([g.flatten() for g in gradient])))
        with torch.no_grad():
            for parameter, g in zip(net.parameters(), gradient, strict=True):
                parameter -= rate * g
    return out


def main(folder: str) -> None:
    config = Config.load(overrides=["--run.name", "gradients", "--data.path", "builtin:sms", "--model.path",
                                    "builtin:tiny", "--optim.lr", "0.5", "--optim.warmup", "2"])  # fmt: skip
    accelerator, ranks = start(config)
    rows, task = Rows(22), Classification()
    task.tokenizer = SimpleNamespace(pad_token_id=0)  # type: ignore[assignment]
    report = {}
    for budget in BUDGETS:
        plan = Plan(rows.lengths, BATCH, ranks.world_size, budget, seed=11)
        net = bert()
        plain_sgd = torch.optim.SGD(net.parameters(), lr=config.optim.lr)
        prepared, optimizer = accelerator.prepare(net, plain_sgd)
        scheduler = prepare_scheduler(optimizer, config.optim, EPOCHS * plan.windows_per_epoch)
        step = Step(accelerator, prepared, optimizer, scheduler, task, max_grad_norm=None)
        sampler = TrainSampler(plan)
        loader = accelerator.prepare_data_loader(make_loader(rows, sampler, task.collate, 0))
        step.warm_up(next(iter(loader)))
        seen: list[torch.Tensor] = []
        plain_sgd.register_step_pre_hook(
            lambda *_, net=net, seen=seen: seen.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
        )
        losses, rates, ids = [], [], []
        for epoch in range(EPOCHS):
            sampler.start_at(epoch, 0)
            batches = iter(loader)
            for window in plan.windows(epoch):
                rates.append(scheduler.get_last_lr()[0])
                result = step(window, batches)
                losses.append(sum(ranks.gather(result.loss_sum.item())) / window.weight)
                ids.append(window.indices.tolist())
        assert next(batches, None) is None, "parts are left over"
        assert [len(window) for window in ids] == [8, 8, 6, 8, 8, 6], "the short last window is kept"
        for k, (loss, gradient) in enumerate(plain_steps(rows, ids, rates)):
            worst = ((seen[k] - gradient).norm() / gradient.norm()).item()
            assert worst < 1e-10, f"{ranks.world_size} ranks, budget {budget}, step {k}: gradient off by {worst:.1e}"
            assert abs(losses[k] - loss) < 1e-10 * loss, f"step {k}: loss {losses[k]} for {loss}"
        report[str(budget)] = {"ids": ids, "rates": rates}
    if ranks.is_main:
        Path(folder, f"world-{ranks.world_size}.json").write_text(json.dumps(report))
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
