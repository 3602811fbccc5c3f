"""env.json: what the run ran on, to be read when two runs differ."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from importlib import metadata
from typing import Any

import torch

PACKAGES = (
    "isostep", "torch", "accelerate", "transformers", "datasets", "tokenizers", "safetensors", "numpy", "scikit-learn",
    "wandb", "peft", "bitsandbytes",
)  # fmt: skip


def to_json(facts: dict[str, Any]) -> str:
    return json.dumps(facts, indent=1) + "\n"


def describe(world_size: int, precision: str) -> dict[str, Any]:
    """Versions, devices, threads and SLURM's job. No environment variable is copied whole: they can hold secrets."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    cuda = torch.cuda.is_available()
    return {
        "versions": versions,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "world_size": world_size,
        "precision": precision,
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else ["cpu"],
        "cuda": torch.version.cuda if cuda else None,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
    }
