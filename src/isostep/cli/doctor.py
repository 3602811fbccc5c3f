"""`isostep doctor`: what would break a run, found before it is submitted; on all ranks under a launcher."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from isostep.config.commandline import parse

if TYPE_CHECKING:
    from isostep.config import Config
    from isostep.train.ranks import Ranks

MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


class Finding(NamedTuple):
    """One line of the table."""

    name: str
    state: str
    """ok, warn or fail."""
    said: str
    mend: str = ""


class Patient(NamedTuple):
    """What is looked at: this rank, its fellows, and the configuration where one was given."""

    ranks: Ranks
    device: Any
    root: Path
    config: Config | None


def run(argv: Sequence[str]) -> int:
    """Print the table on rank 0; 1 where a line says FAIL, else 0."""
    own = argparse.ArgumentParser(
        prog="isostep doctor",
        description="Check environment, devices, ranks, disk, network and tracking. Under accelerate launch or srun it "
        "looks at all ranks together. With a configuration (--config and overrides, as for train.py) it looks at "
        "that run's folder and data, too.",
    )
    _, rest = own.parse_known_args(list(argv))
    config = parse(rest, prog="isostep doctor") if rest else None

    from isostep.cli import symptoms
    from isostep.config import Config
    from isostep.config.schema import Model
    from isostep.train.ranks import end_process_group, start

    accelerator, ranks = start(config or Config(model=Model(path="builtin:tiny")))
    root = Path(config.run.root if config is not None else "runs")
    patient = Patient(ranks, accelerator.device, root, config)
    findings = [finding for check in symptoms.CHECKS for finding in _look(check, patient)]
    if ranks.is_main:
        print("\n".join(table(findings)))
    end_process_group()
    return int(any(finding.state == "fail" for finding in findings))


def _look(check: Callable[[Patient], list[Finding]], patient: Patient) -> list[Finding]:
    """What a check finds, the same on every rank; of several that differ, the worst and where it is."""
    every = patient.ranks.gather((os.uname().nodename, check(patient)))
    merged = []
    for same in zip(*(findings for _, findings in every), strict=True):
        worst = max(range(len(same)), key=lambda rank: list(MARKS).index(same[rank].state))
        where = "" if same[worst].state == same[0].state or len(same) == 1 else f"rank {worst} on {every[worst][0]}: "
        merged.append(same[worst]._replace(said=where + same[worst].said))
    return merged


def table(findings: Sequence[Finding]) -> list[str]:
    """Aligned lines: state, what was looked at, what it says; the mend below where there is one."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{MARKS[finding.state]}  {finding.name:<{width}}  {finding.said}")
        if finding.mend and finding.state != "ok":
            lines.append(f"      {'':<{width}}  -> {finding.mend}")
    return lines
