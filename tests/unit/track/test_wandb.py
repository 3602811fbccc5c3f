"""The real client: offline files are made, a server that is down costs a warning, the run's id stays."""

from __future__ import annotations

import logging
import time

import pytest

from isostep.config import Config
from isostep.state import TrainState
from isostep.track.wandb import NullTracker, make_tracker, resolve_mode, run_id


def config(tmp_path, mode, *more):
    return Config.load(overrides=["--data.path", "builtin:sms", "--model.path", "builtin:tiny", "--run.root",
                                  str(tmp_path), "--run.name", "r", "--track.wandb", mode, *more])  # fmt: skip


@pytest.fixture(autouse=True)
def no_key(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))


def test_auto_is_online_with_a_key_and_offline_without(monkeypatch, tmp_path):
    assert resolve_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert resolve_mode("auto") == "disabled" and resolve_mode("online") == "online"
    monkeypatch.delenv("WANDB_MODE")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password " + "0" * 40)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert resolve_mode("auto") == "online"
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert resolve_mode("auto") == "online"


def test_disabled_tracks_nothing(tmp_path):
    assert type(make_tracker(config(tmp_path, "disabled"), tmp_path, {})) is NullTracker
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_offline_keeps_the_rows_in_the_run_folder_under_one_id(tmp_path):
    first = run_id(tmp_path)
    tracker = make_tracker(config(tmp_path, "offline"), tmp_path, {"world_size": 1})
    tracker.row({"step": 3, "train/loss": 0.25})
    tracker.finish(TrainState(best_value=0.5, best_step=3), 0)
    files = list((tmp_path / "wandb").glob(f"offline-run-*/run-{first}.wandb"))
    assert len(files) == 1
    until = time.monotonic() + 20  # the client's own process may still be writing
    while b"best/value" not in files[0].read_bytes() and time.monotonic() < until:
        time.sleep(0.1)
    assert b"best/value" in files[0].read_bytes() and b"train/loss" in files[0].read_bytes()
    assert run_id(tmp_path) == first


@pytest.mark.slow
def test_a_server_that_is_down_costs_a_warning_and_the_run_is_kept_offline(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("isostep.track.wandb.INIT_TIMEOUT", 2.0)
    with caplog.at_level(logging.WARNING, logger="isostep"):
        tracker = make_tracker(config(tmp_path, "online"), tmp_path, {})
    tracker.row({"step": 1, "train/loss": 0.25})
    tracker.finish(TrainState(), 0)
    assert "could not start online" in caplog.text
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.slow
def test_a_setting_that_the_client_refuses_costs_a_warning_that_says_why(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("isostep.track.wandb.INIT_TIMEOUT", 2.0)
    wrong = config(tmp_path, "online", "--track.tags", "x" * 80)
    with caplog.at_level(logging.WARNING, logger="isostep"):
        make_tracker(wrong, tmp_path, {}).row({"step": 1})
    assert "tag" in caplog.text.lower()
