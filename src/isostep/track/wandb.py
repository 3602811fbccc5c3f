"""The record mirrored to Weights & Biases by its own client, on rank 0. A tracker that fails never stops a run."""

from __future__ import annotations

import logging
import netrc
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args
from urllib.parse import urlparse

from isostep.durable import write_atomically
from isostep.track.redaction import redact

if TYPE_CHECKING:
    from isostep.config import Config
    from isostep.state import TrainState

LOGGER = logging.getLogger("isostep")
INIT_TIMEOUT = 30.0  # seconds; the client's own default of 90 would hold up a start for that long
FINISH_TIMEOUT = 30.0  # seconds; the client would else wait for a server that is gone until that one comes back


class NullTracker:
    """Tracks nothing: track.wandb disabled, and all ranks but the first."""

    def row(self, values: dict[str, Any]) -> None:
        """Mirror a row of the record."""

    def finish(self, progress: TrainState, exit_code: int) -> None:
        """End the tracked run with the best value in its summary."""


Mode = Literal["online", "offline", "disabled"]


def resolve_mode(wanted: str) -> Mode:
    """online, offline or disabled; `auto` follows WANDB_MODE where that is set, else is online if there is a key."""
    for asked in (wanted, os.environ.get("WANDB_MODE")):
        if asked in get_args(Mode):
            return cast(Mode, asked)
    return "online" if _has_key() else "offline"


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def run_id(folder: Path) -> str:
    """The id of the tracked run, made once and kept in the run folder, so that every start continues the same run."""
    path = folder / "wandb" / "run-id"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, secrets.token_hex(4))
    return path.read_text(encoding="utf-8").strip()


def make_tracker(config: Config, folder: Path, environment: dict[str, Any]) -> NullTracker:
    """The tracker that track.wandb asks for; where that can't start, a warning says why and the run is kept offline."""
    mode = resolve_mode(config.track.wandb)
    if mode == "disabled":
        return NullTracker()
    if mode == "online":
        try:
            return WandbTracker(config, folder, environment, mode)
        except Exception as error:  # whatever the client raises: the run matters more
            LOGGER.warning(
                "W&B could not start online (%s); the run is kept offline, in %s", _brief(error), folder / "wandb"
            )
    try:
        import wandb

        wandb.teardown()  # its service still holds the id of the start that failed
        return WandbTracker(config, folder, environment, "offline")
    except Exception as error:  # as above
        LOGGER.warning("W&B could not start (%s); the run goes on without it: metrics.jsonl is whole", _brief(error))
        return NullTracker()


def _brief(error: Exception) -> str:
    return " ".join(redact(str(error)).split())[:200] or type(error).__name__


@contextmanager
def _redacted_arguments() -> Iterator[None]:
    """The client stores sys.argv when its run starts, and has no setting against it but one against all metadata."""
    own = sys.argv
    sys.argv = redact(own)
    try:
        yield
    finally:
        sys.argv = own


class WandbTracker(NullTracker):
    """One W&B run per run folder, over all its starts."""

    def __init__(self, config: Config, folder: Path, environment: dict[str, Any], mode: Mode) -> None:
        import wandb
        from wandb.sdk.lib import import_hooks

        shown = redact(config.to_dict())
        track = shown["track"]
        settings = wandb.Settings(
            init_timeout=INIT_TIMEOUT,
            finish_timeout=FINISH_TIMEOUT,  # holds for the end of the process, too
            finish_timeout_raises=True,
            silent=True,
            console="off",
        )
        with _redacted_arguments():
            self._run: Any = wandb.init(
                dir=folder,
                id=run_id(folder),
                resume="allow",
                name=config.run.name,
                project=track["project"],
                entity=track["entity"],
                group=track["group"],
                tags=track["tags"],
                notes=track["notes"],
                config={**shown, "environment": environment},
                mode=mode,
                settings=settings,
            )
        # its hooks report imports to its service, and an import would raise where that one has died
        import_hooks.unregister_all_post_import_hooks()
        # the axis is our own step: W&B's starts at 0 in every offline part, and it drops what lies below it
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        LOGGER.info("W&B: %s, run %s (track.wandb: disabled turns it off)", mode, self._run.id)

    def row(self, values: dict[str, Any]) -> None:
        if self._run is None:
            return
        try:
            self._run.log(values)
        except Exception as error:
            LOGGER.warning("W&B failed (%s); the run goes on without it, metrics.jsonl has everything", _brief(error))
            self._run = None

    def finish(self, progress: TrainState, exit_code: int) -> None:
        if self._run is None:
            return
        try:
            if progress.best_step is not None:
                self._run.summary["best/value"] = progress.best_value
                self._run.summary["best/step"] = progress.best_step
            self._run.finish(exit_code=exit_code)
        except Exception as error:
            LOGGER.warning("W&B could not end its run (%s); metrics.jsonl has everything", _brief(error))
