"""slurm/*.sbatch on a real two-node cluster: stopped in every way there is, the run ends as if it had not been."""

from __future__ import annotations

import subprocess
import time

import pytest
import torch
from jobs import ROOT, STEPS
from wandb_file import run_ids

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clean(jobs):
    """The same run, never interrupted."""
    job = jobs.submit("clean", "--nodes=2")
    assert job.ends() == "COMPLETED", job.text()
    return job


def assert_as_if_nothing_had_happened(clean, job) -> None:
    ours, theirs = clean.weights(), job.weights()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert [row["step"] for row in job.rows()] == [row["step"] for row in clean.rows()] == list(range(1, STEPS + 1))


def test_stopped_in_every_way_it_ends_as_if_nothing_had_happened(cluster, jobs, clean):
    options = ["--nodes=2", "--signal=USR1@50"]
    job = jobs.submit("stopped", *options, **{"track.wandb": "offline"})
    # 1. a plain scancel: it has time to save and stays cancelled; the same line goes on
    job.trains_on()
    cluster.run("scancel", job.number)
    assert job.ends() == "CANCELLED"
    time.sleep(3)
    assert job.state() == "CANCELLED" and job.status()["state"] == "preempted", job.text()
    job = jobs.submit("stopped", *options, **{"track.wandb": "offline"})
    # 2. the time limit, which SLURM looks at every 30 s; then a longer one
    job.trains_on()
    cluster.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=1")
    job.requeued()
    cluster.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=30")
    # 3. a signal to all processes, and one to the batch shell alone
    for more in ([], ["--batch"]):
        job.trains_on()
        cluster.run("scancel", "--signal=USR1", *more, job.number)
        job.requeued()
    # 4. a job of a partition that comes first takes both nodes
    job.trains_on()
    urgent = cluster.run("sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null",
                         "--wrap", "srun sleep 2")  # fmt: skip
    job.until(lambda: cluster.state(urgent) == "COMPLETED")
    job.requeued()
    # 5. a node's network goes: nobody is told, SLURM notices and starts the job again when the node is back
    job.trains_on()
    cluster.cut("iso2")
    job.until(lambda: job.state() == "PENDING")
    cluster.heal("iso2")
    job.requeued()
    assert job.ends() == "COMPLETED", job.text()
    assert (job.status()["state"], job.status()["restarts"], cluster.restarts(job.number)) == ("completed", 6, 5)
    assert_as_if_nothing_had_happened(clean, job)
    parts = list((job.folder / "wandb").glob("offline-run-*/*.wandb"))
    assert len(parts) == 7 and len(set.union(*map(run_ids, parts))) == 1, "one W&B run throughout"


def test_max_requeues_is_an_end(cluster, jobs):
    job = jobs.submit("bounded", procs=1, env={"MAX_REQUEUES": "1"})
    job.trains_on()
    cluster.run("scancel", "--signal=USR1", job.number)
    job.requeued()
    job.trains_on()
    cluster.run("scancel", "--signal=USR1", job.number)
    assert job.ends() == "FAILED"
    assert "MAX_REQUEUES is 1: given up" in job.text()
    assert cluster.restarts(job.number) == 1 and job.status()["state"] == "preempted"


@pytest.mark.parametrize(
    ("change", "line"),
    [({"data.max_length": 100_000}, "data.max_length: 100000 is beyond"), ({"optim.lr": "fast"}, "optim.lr: must be")],
)
def test_a_mistake_ends_the_job_at_once_with_its_line_in_the_log(cluster, jobs, change, line):
    job = jobs.submit(f"mistake-{len(line)}", procs=1, **change)
    assert job.ends() == "FAILED"
    assert line in job.text() and cluster.restarts(job.number) == 0


def test_a_sweep_is_one_run_a_seed_each_stopped_and_finished_on_its_own(cluster, jobs):
    array = jobs.submit("sweep", "--array=0-2", script="sweep.sbatch", procs=1, env={"SWEEP_NAME": "seeds"},
                        **{"run.name": None, "train.max_steps": 100})  # fmt: skip
    folders = [jobs.work / "runs" / f"seeds-{seed}" for seed in range(3)]
    last = f"{array.number}_2"  # whose job id is the whole array's
    array.until(lambda: (folders[2] / "metrics.jsonl").exists())
    cluster.run("scancel", "--signal=USR1", last)
    array.until(lambda: cluster.state(last) == "PENDING")
    time.sleep(3)
    cluster.run("scontrol", "update", f"JobId={last}", "StartTime=now")
    array.until(lambda: all(cluster.state(f"{array.number}_{seed}") == "COMPLETED" for seed in range(3)), 240)
    assert [cluster.restarts(f"{array.number}_{seed}") for seed in range(3)] == [0, 0, 1]


def test_doctor_looks_at_all_nodes_together(cluster, jobs):
    done = subprocess.run(
        ["srun", "--nodes=2", "--ntasks-per-node=1", "bash", "slurm/doctor.sh", "--config", "configs/quickstart.yaml",
         "--run.root", str(jobs.work / "runs"), "--track.wandb", "disabled"],
        cwd=ROOT, env={**cluster.env, **jobs.env, "PROCS_PER_NODE": "1"}, text=True, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 on 2 host(s), gloo" in done.stdout and "the same content on every rank" in done.stdout, done.stdout
