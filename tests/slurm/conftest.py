"""One cluster for all tests; skipped, with the reason, where none can be started."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
import yaml
from cluster import Cluster, running, why_not
from jobs import Jobs
from launch import LAUNCH


def leave(number: int, frame: object) -> None:
    """End by way of the cluster's taking down, which no second signal interrupts."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit("stopped")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    before = signal.signal(signal.SIGTERM, leave)
    with running(tmp_path_factory.mktemp("slurm") / "cluster") as made:
        yield made
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def jobs(cluster: Cluster, tmp_path_factory) -> Jobs:
    work: Path = tmp_path_factory.mktemp("jobs")
    launch = work / "accelerate.yaml"
    launch.write_text(yaml.safe_dump({**LAUNCH, "rdzv_backend": "c10d", "same_network": True, "num_processes": 1}))
    return Jobs(cluster, work, launch, sys.executable)
