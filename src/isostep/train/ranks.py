"""The ranks of a run as one: start-up, agreement on what succeeded, and small objects passed between them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from isostep.errors import ConfigError, IsostepError

if TYPE_CHECKING:
    from accelerate import Accelerator

    from isostep.config import Config

T = TypeVar("T")
PR_SET_PDEATHSIG = 1  # of linux/prctl.h
PREPARATION_TIMEOUT = timedelta(days=7)  # tokenising may take longer than any collective of training should


class PeerError(RuntimeError):
    """Another rank failed; the message is its."""


class Ranks:
    """Collectives of the host, over a CPU group: outcomes, decisions, metrics. Never used within a step.

    Every method but the properties is called by all ranks together.
    """

    def __init__(self, accelerator: Accelerator, timeout_seconds: float) -> None:
        self.rank = accelerator.process_index
        self.local_rank = accelerator.local_process_index
        self.world_size = accelerator.num_processes
        self._timeout = timedelta(seconds=timeout_seconds)
        self._group: dist.ProcessGroup | None = None
        self._patient: dist.ProcessGroup | None = None
        if self.world_size > 1:
            self._group = dist.new_group(backend="gloo", timeout=self._timeout)
            self._patient = dist.new_group(backend="gloo", timeout=PREPARATION_TIMEOUT)

    def new_group(self) -> dist.ProcessGroup | None:
        """A further CPU group, for collectives that may overlap with others; None for a single process."""
        return dist.new_group(backend="gloo", timeout=self._timeout) if self.world_size > 1 else None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Each rank's value, on every rank."""
        return self._gather(value, self._group)

    def _gather(self, value: T, group: dist.ProcessGroup | None) -> list[T]:
        if self.world_size == 1:
            return [value]
        out: list[Any] = [None] * self.world_size
        dist.all_gather_object(out, value, group=group)
        return out

    def share(self, value: T) -> T:
        """Rank 0's value, on every rank: how a decision is made once."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def agree(
        self, work: Callable[[], T], *, only: Callable[[], bool] = lambda: True, patient: bool = False
    ) -> T | None:
        """Run `work` on the ranks for which `only` holds; if it raises on any of them, all raise.

        `patient` waits days rather than run.timeout for the others. A user's error keeps its class and text on every
        rank; any other error is raised as it is where it happened and as PeerError elsewhere.
        """
        result: T | None = None
        error: Exception | None = None
        try:
            if only():
                result = work()
        except Exception as caught:
            error = caught
        failures = self._gather(
            None if error is None else (type(error) if isinstance(error, IsostepError) else None, str(error)),
            self._patient if patient else self._group,
        )
        first = next(((rank, failure) for rank, failure in enumerate(failures) if failure is not None), None)
        if first is None:
            return result
        if error is not None:
            raise error
        rank, (kind, text) = first
        raise kind(text) if kind is not None else PeerError(f"rank {rank} failed: {text}")

    def on_each_node(self, work: Callable[[], T]) -> T:
        """Run `work` on one process of every node, then on the others, which find its result in the node's cache."""
        first = self.agree(work, only=lambda: self.local_rank == 0, patient=True)
        rest = self.agree(work, only=lambda: self.local_rank != 0)
        made = first if self.local_rank == 0 else rest
        assert made is not None
        return made


def start(config: Config) -> tuple[Accelerator, Ranks]:
    """Start Accelerate and the process group as the environment of this process says.

    Raises ConfigError (exit code 2) where the precision can't be had or contradicts Accelerate's, where the number of
    processes is not the launcher's, or where Accelerate was set up for a backend that isostep does not drive.
    """
    from accelerate import Accelerator, DataLoaderConfiguration, DistributedDataParallelKwargs, InitProcessGroupKwargs
    from accelerate.utils import DistributedType

    die_with_launcher()
    # said on every rank by torch about the argument that Accelerate passes on; nobody can act on it
    warnings.filterwarnings("ignore", message=".*broadcast_buffers.*", category=FutureWarning)
    on_cpu = not torch.cuda.is_available() or os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1")
    precision = resolve_precision(config.train.precision, os.environ.get("ACCELERATE_MIXED_PRECISION"))
    if on_cpu:
        refuse_slow_precision(precision)
    accelerator = Accelerator(
        cpu=on_cpu,
        mixed_precision=precision,
        dataloader_config=DataLoaderConfiguration(even_batches=False, non_blocking=True),
        rng_types=[],  # each loader has a generator of its own; nothing is to be synchronised
        kwargs_handlers=[
            InitProcessGroupKwargs(timeout=timedelta(seconds=config.run.timeout)),
            # buffers (positions, say) are constants here; the reducer's buckets are views of the gradients
            DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True),
        ],
    )
    wanted = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != wanted:
        raise ConfigError(
            f"the launcher started {wanted} processes but Accelerate sees {accelerator.num_processes}; "
            "use one of accelerate_configs/ (on CPU: distributed_type MULTI_GPU with use_cpu true)"
        )
    supported = (DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU)
    if accelerator.distributed_type not in supported:
        raise ConfigError(
            f"Accelerate's distributed_type {accelerator.distributed_type.value} is not supported; "
            "use MULTI_GPU (DDP) as in accelerate_configs/ddp.yaml"
        )
    return accelerator, Ranks(accelerator, config.run.timeout)


def end_process_group() -> None:
    """Take the process group down, as the last act of a program; nothing where there is none."""
    if dist.is_initialized():
        dist.destroy_process_group()


def lost_contact(error: BaseException) -> bool:
    """Whether a collective failed for want of another rank: one that died, or did not come in time."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error).lower())


def die_with_launcher() -> None:
    """Have Linux kill this rank when its launcher dies: torch's gives each rank a session of its own, and so an orphan
    would train on, with nobody to end it when its peers fail."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def resolve_precision(pinned: str | None, launched: str | None) -> str:
    """The precision: train.precision (None: not pinned) or the launcher's (None: no accelerate launch).

    Raises ConfigError where both are given and differ.
    """
    if pinned is not None and launched is not None and pinned != launched:
        raise ConfigError(
            f"train.precision is {pinned} but Accelerate was launched with mixed_precision {launched}; "
            f"make them equal (accelerate launch --mixed_precision {pinned}) or leave train.precision out"
        )
    return pinned or launched or "no"


def refuse_slow_precision(precision: str, flags: frozenset[str] | None = None) -> None:
    """Raise ConfigError for a precision that this CPU only emulates (bf16 was measured 10 times slower than fp32)."""
    if precision == "no":
        return
    have = cpu_flags() if flags is None else flags
    native = {"bf16": {"avx512_bf16", "amx_bf16", "bf16"}, "fp16": {"avx512_fp16", "amx_fp16"}}.get(precision, set())
    if not have & native:
        raise ConfigError(f"train.precision {precision}: this CPU has no {precision} instructions; use no, or a GPU")


def cpu_flags() -> frozenset[str]:
    """The CPU's features by Linux' names; empty where /proc/cpuinfo is missing."""
    try:
        with open("/proc/cpuinfo") as info:
            for line in info:
                if line.startswith(("flags", "Features")):
                    return frozenset(line.split(":", 1)[1].split())
    except OSError:
        return frozenset()
    return frozenset()
