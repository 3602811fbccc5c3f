"""What is seen while a run runs: log lines, and a bar where there is a terminal."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from isostep.track.redaction import redact

LOGGER = logging.getLogger("isostep")
FORMAT = "%(asctime)s %(levelname)s %(message)s"


def open_log(folder: Path, rank: int) -> None:
    """Send the log to <folder>/logs/rank-N.log, and on rank 0 to standard output as plain lines.

    Called again (several fits in one process), it closes what it opened before.
    """
    close_log()
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(folder / "logs" / f"rank-{rank}.log", encoding="utf-8")
    file.setFormatter(_Formatter(FORMAT))
    LOGGER.addHandler(file)
    if rank == 0:
        LOGGER.addHandler(_TerminalHandler())


def close_log() -> None:
    for handler in list(LOGGER.handlers):
        LOGGER.removeHandler(handler)
        handler.close()
    LOGGER.propagate = True


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text: str = redact(super().format(record))
        return text


class _TerminalHandler(logging.Handler):
    """Plain lines on standard output; above the bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        text = redact(record.getMessage())
        if record.levelno >= logging.WARNING:
            text = f"warning: {text}"
        encoding = sys.stdout.encoding or "utf-8"
        try:
            tqdm.write(text.encode(encoding, "replace").decode(encoding), file=sys.stdout)
            sys.stdout.flush()
        except OSError:  # nobody reads it any more: the run goes on, and logs/rank-0.log with it
            LOGGER.removeHandler(self)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Progress:
    """A bar on a terminal; else a line a row, with the rate and the time left."""

    def __init__(self, done: int, total: int, metric: str) -> None:
        self.total = total
        self.shown = dict.fromkeys(("train/loss", "train/lr", "train/grad_norm", "eval/loss", "eval/accuracy", metric))
        self.bar = tqdm(total=total, initial=done, unit="step", file=sys.stderr) if sys.stderr.isatty() else None
        self.started, self.first = time.monotonic(), done

    def step(self) -> None:
        if self.bar is not None:
            self.bar.update(1)

    def row(self, values: dict[str, Any]) -> None:
        """Show the main values of a row of the record."""
        shown = [f"{name} {values[name]:.4g}" for name in self.shown if name in values]
        if self.bar is not None:
            self.bar.set_postfix_str(" ".join(shown[:4]), refresh=False)
            return
        step = values["step"]
        done = step - self.first
        left = (time.monotonic() - self.started) / done * (self.total - step) if done > 0 else None
        rate = values.get("perf/examples_per_second")
        ends = [f"{rate:.1f} examples/s"] if rate else []
        ends += [f"{_clock(left)} left"] if left is not None else []
        LOGGER.info(" · ".join([f"step {step}/{self.total}", f"epoch {values['epoch']:.2f}", *shown, *ends]))

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class NullProgress(Progress):
    """For ranks that show nothing."""

    def __init__(self) -> None:
        self.bar = None

    def row(self, values: dict[str, Any]) -> None:
        """Show nothing."""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
