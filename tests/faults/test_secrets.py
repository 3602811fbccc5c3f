"""P10: nothing that signs in to anything is found in what a run leaves behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from launch import train_command

from faults import Started, settings
from isostep.config import Config
from isostep.errors import ConfigError
from isostep.track import console
from isostep.track.folder import claim, store_config
from isostep.track.redaction import redact

ENVIRONMENT = {
    "WANDB_API_KEY": "ca7a3e" + "0123456789abcdef" * 2 + "ca",
    "HF_TOKEN": "hf_CanaryOfTheHubCanaryOfTheHubCan",
    "AWS_SECRET_ACCESS_KEY": "CanaryOfTheCloud/CanaryOfTheCloud+Canary",
    "MY_PASSWORD": "canary-of-my-own",
}
PASSWORD = "canary-in-an-address"
ADDRESS = f"https://someone:{PASSWORD}@example.invalid/data.csv?token={PASSWORD}"


def files_with(secrets: Sequence[str], *roots: Path) -> list[tuple[Path, str]]:
    """Every file below `roots` that holds one of the secrets, and which."""
    wanted = [(secret, secret.encode()) for secret in secrets]
    files = [path for root in roots for path in root.rglob("*") if path.is_file()]
    assert files, "nothing to search"
    return [(path, text) for path in files for text, secret in wanted if secret in path.read_bytes()]


def by_command_line(monkeypatch: pytest.MonkeyPatch, *overrides: str) -> None:
    """Have every run that is started from now on told this by its command line, too."""

    def command(folder: Path, config: dict[str, object], world: int, program: Path) -> list[str]:
        return train_command(folder, config, world, *overrides, program=program)

    monkeypatch.setattr("faults.train_command", command)


def assert_clean(run: Started, *more: Path) -> None:
    secrets = [*ENVIRONMENT.values(), PASSWORD]
    assert not files_with(secrets, run.folder, *more)
    assert not [secret for secret in secrets if secret in run.text()], run.text()


def test_p10_no_secret_of_the_environment_or_of_an_address_is_left_anywhere(work, start, monkeypatch):
    config = settings(work, "secrets", track={"wandb": "offline", "group": ADDRESS}, train={"max_steps": 6})
    by_command_line(monkeypatch, "--track.notes", f"of {ADDRESS}, twice", "--train.epochs=1")
    home = work / "home"
    home.mkdir()
    run = start(config, variables={**ENVIRONMENT, "HOME": str(home)}).finish()
    for made in ("config.yaml", "env.json", "logs/rank-0.log", "best/README.md", "final/README.md", "status.json"):
        assert (run.folder / made).is_file()
    assert list((run.folder / "wandb").glob("offline-run-*/*.wandb"))
    assert_clean(run, work / "cache", home)
    shown = "of https://***@example.invalid/data.csv?token=***, twice"
    for made in ("config.yaml", "final/README.md"):
        assert shown in (run.folder / made).read_text(), "the rest of the address stays"


@pytest.mark.parametrize("key", ["data.path", "data.train", "model.path"])
def test_p10_an_address_with_a_password_that_cannot_be_used_is_named_without_it(work, start, monkeypatch, key):
    config = settings(work, f"address in {key}", track={"wandb": "offline"})
    by_command_line(monkeypatch, f"--{key}", ADDRESS, "--data.text", "text", "--data.label", "label")
    run = start(config, 1)
    assert run.wait(60) in (2, 3) and "Traceback" not in run.text()
    assert key in run.text() or "***@example.invalid" in run.text(), run.text()
    assert "***@example.invalid" in run.status()["reason"]
    assert_clean(run)


def test_a_run_whose_address_was_redacted_is_the_same_run_at_the_next_start(tmp_path):
    def config(address: str) -> Config:
        return Config.load(overrides=["--data.train", address, "--data.text", "text", "--data.label", "label",
                                      "--model.path", "builtin:tiny"])  # fmt: skip

    store_config(tmp_path, config(ADDRESS))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    assert not files_with([PASSWORD], tmp_path)
    assert claim(tmp_path, config(ADDRESS)).restarts == 1
    with pytest.raises(ConfigError, match=r"data\.train") as refused:
        claim(tmp_path, config(ADDRESS.replace("data.csv", "other.csv")))
    assert PASSWORD not in str(refused.value)


def test_p10_an_address_in_a_librarys_error_is_logged_without_its_password(tmp_path, capsys):
    console.open_log(tmp_path, rank=0)
    try:
        raise OSError(f"{ADDRESS}: unreachable")
    except OSError as error:
        console.LOGGER.warning("no data: %s", error, exc_info=True)
    finally:
        console.close_log()
    logged = (tmp_path / "logs" / "rank-0.log").read_text()
    for text in (logged, capsys.readouterr().out):
        assert "no data: https://***@example.invalid/data.csv?token=***: unreachable" in text
    assert "Traceback" in logged and not files_with([PASSWORD], tmp_path)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://someone:pass@host/a.csv", "https://***@host/a.csv"),
        ("https:/someone:pass@host/a.csv: no such file", "https:/***@host/a.csv: no such file"),
        ("git+ssh://token@host/a@b", "git+ssh://***@host/a@b"),
        ("s3://b/x?X-Amz-Signature=f0&part=2", "s3://b/x?X-Amz-Signature=***&part=2"),
        ("a@b.org of https://host/a@b, at 5:/6@7", "a@b.org of https://host/a@b, at 5:/6@7"),
    ],
)
def test_what_is_taken_out_of_a_text_and_what_stays(text, shown):
    assert redact(text) == shown and redact(shown) == shown
    assert redact({"a": [text, 1, None]}) == {"a": [shown, 1, None]}
