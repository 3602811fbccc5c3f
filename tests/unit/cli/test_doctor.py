"""`isostep doctor`: its table, and each check in health and in sickness; test_doctor_on_ranks.py has several ranks."""

from __future__ import annotations

import os
import shutil
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from isostep.cli import doctor, symptoms
from isostep.cli.doctor import Finding, Patient
from isostep.config import Config, Data, Model
from isostep.config.schema import Track


class OneRank:
    """The collectives of a single process."""

    rank, world_size, is_main = 0, 1, True

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def share(self, value: Any) -> Any:
        return value


def patient(root: Path, config: Config | None = None) -> Patient:
    return Patient(OneRank(), torch.device("cpu"), root, config)  # type: ignore[arg-type]


def one(check: Any, given: Patient) -> Finding:
    (finding,) = check(given)
    return finding


def test_the_table_names_what_to_mend() -> None:
    found = [Finding("disk", "ok", "5 GB", "delete something"), Finding("run folder", "fail", "gone", "make it")]
    assert doctor.table(found) == ["ok    disk        5 GB", "FAIL  run folder  gone", "                  -> make it"]


def test_of_ranks_that_differ_the_worst_is_shown_and_where_it_is(tmp_path: Path) -> None:
    class Three(OneRank):
        def gather(self, value: Any) -> list[Any]:
            host, (finding,) = value
            return [value, (host, [finding]), ("far", [Finding("disk", "fail", "full", "delete")])]

    given = Patient(Three(), torch.device("cpu"), tmp_path, None)  # type: ignore[arg-type]
    (merged,) = doctor._look(lambda _: [Finding("disk", "ok", "5 GB")], given)
    assert merged == Finding("disk", "fail", "rank 2 on far: full", "delete")


def test_versions_below_the_floor_and_missing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert one(symptoms.versions, patient(tmp_path)).state == "ok"
    real = metadata.version

    def version(name: str) -> str:
        if name == "wandb":
            raise metadata.PackageNotFoundError(name)
        return "2.1.0" if name == "torch" else real(name)

    monkeypatch.setattr(symptoms.metadata, "version", version)
    finding = one(symptoms.versions, patient(tmp_path))
    assert finding.state == "fail" and "torch 2.1.0, wanted >=2.10" in finding.said
    assert "wandb is not installed" in finding.said


def test_a_run_folder_that_cannot_be_written(tmp_path: Path) -> None:
    healthy = one(symptoms.run_folder, patient(tmp_path / "runs"))
    assert healthy.state in ("ok", "warn") and "MB/s to the disk" in healthy.said
    assert not list((tmp_path / "runs").iterdir()), "the probe is removed"
    (tmp_path / "file").write_text("")
    sick = one(symptoms.run_folder, patient(tmp_path / "file" / "runs"))
    assert sick.state == "fail" and "can't be written" in sick.said and "run.root" in sick.mend


def test_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=64e6, free=1e9))
    assert one(symptoms.run_folder, patient(tmp_path)).state == "warn"
    assert one(symptoms.shared_memory, patient(tmp_path)).state == "warn"


def test_data_that_cannot_be_read(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("t,y\na,1\nb,0\n")
    made = Config(model=Model(path="builtin:tiny"), data=Data(train=str(own), text=("t",), label="y"))
    assert one(symptoms.data, patient(tmp_path, made)).state == "ok"
    own.unlink()
    sick = one(symptoms.data, patient(tmp_path, made))
    assert sick.state == "fail" and "own.csv" in sick.said
    assert one(symptoms.data, patient(tmp_path)).said == "not looked at: no --config"


def test_a_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert one(symptoms.hub, patient(tmp_path)).said.startswith("offline; what is cached lies in ")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://127.0.0.1:1")
    sick = one(symptoms.hub, patient(tmp_path))
    assert sick.state == "warn" and "can't be reached" in sick.said


def test_wandb_without_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    wanted = {mode: Config(model=Model(path="m"), track=Track(wandb=mode)) for mode in ("online", "offline")}  # type: ignore[arg-type]
    assert one(symptoms.wandb, patient(tmp_path, wanted["online"])).state == "warn"
    assert one(symptoms.wandb, patient(tmp_path, wanted["offline"])).state == "ok"
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert one(symptoms.wandb, patient(tmp_path, wanted["online"])).state == "ok"


def test_a_launcher_that_would_die_of_slurms_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.delenv("PET_SIGNALS_TO_HANDLE", raising=False)
    sick = one(symptoms.slurm, patient(tmp_path))
    assert sick.state == "fail" and "PET_SIGNALS_TO_HANDLE" in sick.mend
    monkeypatch.setenv("PET_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGUSR1")
    assert one(symptoms.slurm, patient(tmp_path)) == Finding("SLURM", "ok", "job 12, start 1")


def test_more_threads_than_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert one(symptoms.devices, patient(tmp_path)).state in ("ok", "fail")  # fail: a driver and a torch without CUDA
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(2 * (os.cpu_count() or 1)))
    finding = one(symptoms.devices, patient(tmp_path))
    assert finding.state == "warn" and "OMP_NUM_THREADS=1" in finding.mend
