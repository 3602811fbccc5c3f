"""The checks of `isostep doctor`: each is called by all ranks together and returns its lines, as many on every rank."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import torch
import torch.distributed as dist
import xxhash
from packaging.requirements import Requirement

from isostep.cli.doctor import Finding, Patient
from isostep.data.sources import resolve
from isostep.durable import sync
from isostep.errors import IsostepError
from isostep.track.wandb import resolve_mode

CLOCKS_APART = 2.0  # seconds; the run folder's lock counts a holder as dead after 90 without a sign
LEAST_DISK = 5e9  # bytes
LEAST_SHM = 1e9  # bytes
PROBE = 64 << 20  # bytes that are written, and that are reduced


def versions(patient: Patient) -> list[Finding]:
    """The packages against the floors that isostep was installed with."""
    low = []
    for text in metadata.requires("isostep") or []:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            have = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            low.append(f"{wanted.name} is not installed")
            continue
        if not wanted.specifier.contains(have, prereleases=True):
            low.append(f"{wanted.name} {have}, wanted {wanted.specifier}")
    shown = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "accelerate"))
    if low:
        return [Finding("packages", "fail", "; ".join(low), "pip install --upgrade what is named")]
    return [Finding("packages", "ok", f"Python {sys.version.split()[0]}, {shown}")]


def same_code(patient: Patient) -> list[Finding]:
    """One version of isostep's own source, by hash, and of torch, on every rank."""
    state = xxhash.xxh3_64(torch.__version__.encode())
    home = Path(__file__).resolve().parents[1]
    for path in sorted(home.rglob("*.py")):
        state.update(path.read_bytes())
    found = patient.ranks.gather((state.hexdigest(), str(home)))
    odd = [rank for rank, (code, _) in enumerate(found) if code != found[0][0]]
    if odd:
        said = f"rank {odd[0]} runs other code or another torch than rank 0 ({found[odd[0]][1]} and {found[0][1]})"
        return [Finding("code", "fail", said, "install the same environment on every node")]
    return [Finding("code", "ok", f"isostep {metadata.version('isostep')}, the same on {len(found)} rank(s)")]


def devices(patient: Patient) -> list[Finding]:
    if patient.device.type == "cuda":
        name = torch.cuda.get_device_name(patient.device)
        memory = torch.cuda.get_device_properties(patient.device).total_memory / 2**30
        return [Finding("device", "ok", f"{name}, {memory:.0f} GiB, CUDA {torch.version.cuda}")]
    if shutil.which("nvidia-smi") and torch.version.cuda is None:
        return [Finding("device", "fail", "this machine has an NVIDIA driver and torch is a build for CPUs",
                        "pip install a CUDA build of torch")]  # fmt: skip
    if shutil.which("nvidia-smi") and os.environ.get("ACCELERATE_USE_CPU", "").lower() not in ("1", "true"):
        return [Finding("device", "fail", f"torch for CUDA {torch.version.cuda} sees no GPU",
                        "nvidia-smi: is the driver new enough for it, and CUDA_VISIBLE_DEVICES right?")]  # fmt: skip
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    said = f"CPU, {threads} thread(s) for each of {local} rank(s) here, {cores} cores"
    if threads * local > cores:
        return [
            Finding("device", "warn", said, f"OMP_NUM_THREADS={max(1, cores // local)}: they get in each other's way")
        ]
    return [Finding("device", "ok", said)]


def ranks(patient: Patient) -> list[Finding]:
    """An all-reduce over the ranks: its result, and the speed of the third."""
    everybody = patient.ranks.world_size
    if everybody == 1:
        return [Finding("ranks", "ok", "one process")]
    box = torch.empty(PROBE // 4, device=patient.device)
    for _ in range(3):
        box.fill_(float(patient.ranks.rank))
        began = time.perf_counter()
        dist.all_reduce(box)
        if patient.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    hosts = len(set(patient.ranks.gather(socket.gethostname())))
    right = bool((box == everybody * (everybody - 1) / 2).all())
    speed = f"{PROBE / 2**20:.0f} MiB reduced in {seconds:.3f} s ({PROBE / seconds / 1e9:.2f} GB/s)"
    said = f"{everybody} on {hosts} host(s), {dist.get_backend()}: {speed}"
    mend = "the sum is wrong: NCCL_DEBUG=INFO (or GLOO_SOCKET_IFNAME on CPU) tells which interfaces are used"
    return [Finding("ranks", "ok" if right else "fail", said, mend)]


def clocks(patient: Patient) -> list[Finding]:
    patient.ranks.gather(None)  # so that all look at the same moment
    times = patient.ranks.gather(time.time())
    apart = max(times) - min(times)
    state = "ok" if apart < CLOCKS_APART else "warn"
    return [Finding("clocks", state, f"{apart:.2f} s apart", "have the nodes keep time (chrony, ntp)")]


def run_folder(patient: Patient) -> list[Finding]:
    """Rank 0 writes a file where run folders live; the others have to see it."""
    own = patient.root.absolute()
    root, probe, speed, error = patient.ranks.share(_write_probe(own) if patient.ranks.is_main else (own, own, "", ""))
    if error:
        return [Finding("run folder", "fail", f"{root} can't be written: {error}", "run.root: name another folder")]
    seen = probe.exists()
    patient.ranks.gather(None)
    if patient.ranks.is_main:
        probe.unlink()
    if not seen:
        return [Finding("run folder", "fail", f"{root} is another folder here than on rank 0",
                        "run.root: name a folder on a file system that all nodes share")]  # fmt: skip
    free = shutil.disk_usage(root).free
    state = "ok" if free >= LEAST_DISK else "warn"
    mend = "a checkpoint takes 12 bytes a trained parameter, and at times there are checkpoint.keep + 1"
    return [Finding("run folder", state, f"{root}: {free / 1e9:,.0f} GB free, {speed}", mend)]


def _write_probe(root: Path) -> tuple[Path, Path, str, str]:
    """The folder, a file written into it, how fast, and why not."""
    probe = root / f".doctor-{os.getpid()}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        probe.write_bytes(os.urandom(PROBE))
        sync(probe)
    except OSError as error:
        return root, probe, "", error.strerror or str(error)
    return root, probe, f"{PROBE / (time.perf_counter() - began) / 1e6:.0f} MB/s to the disk", ""


def shared_memory(patient: Patient) -> list[Finding]:
    path = Path("/dev/shm")
    if not path.is_dir():
        return [Finding("shared memory", "ok", "no /dev/shm on this system")]
    size = shutil.disk_usage(path).total
    state = "ok" if size >= LEAST_SHM else "warn"
    return [Finding("shared memory", state, f"/dev/shm holds {size / 1e9:.1f} GB",
                    "give the container more (docker run --shm-size=8g), or leave data.workers at 0")]  # fmt: skip


def data(patient: Patient) -> list[Finding]:
    """The configured data have the same content on every rank."""
    if patient.config is None:
        return [Finding("data", "ok", "not looked at: no --config")]
    try:
        own = "".join(split.fingerprint() for split in resolve(patient.config).splits().values())
        error = None
    except IsostepError as caught:
        own, error = "", str(caught).splitlines()[0]
    prints = patient.ranks.gather(own)
    if error is not None:
        return [Finding("data", "fail", error, "the message says how")]
    if len(set(prints)) > 1:
        return [Finding("data", "fail", "ranks see files of other content under the same names",
                        "put the data on a file system that all nodes share, or copy it anew")]  # fmt: skip
    return [Finding("data", "ok", "the same content on every rank")]


def hub(patient: Patient) -> list[Finding]:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return [Finding("hub", "ok", f"offline; what is cached lies in {constants.HF_HUB_CACHE}")]
    host = constants.ENDPOINT.split("//")[-1].split("/")[0]
    try:
        socket.create_connection((host.split(":")[0], 443), timeout=3).close()
    except OSError as error:
        return [Finding("hub", "warn", f"{host} can't be reached ({error})",
                        "download on a node that can, then HF_HUB_OFFLINE=1; local folders need neither")]  # fmt: skip
    return [Finding("hub", "ok", f"{host} can be reached")]


def wandb(patient: Patient) -> list[Finding]:
    wanted = patient.config.track.wandb if patient.config is not None else "auto"
    mode = resolve_mode(wanted)
    told = {"online": "online, with a key", "offline": "offline: runs are kept for wandb sync", "disabled": "disabled"}
    if mode == "online" and wanted == "online" and resolve_mode("auto") == "offline":
        return [Finding("W&B", "warn", "track.wandb is online and there is no key", "wandb login, or WANDB_API_KEY")]
    return [Finding("W&B", "ok", told[mode])]


def slurm(patient: Patient) -> list[Finding]:
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        there = "sbatch is here: slurm/train.sbatch" if shutil.which("sbatch") else "not on this machine"
        return [Finding("SLURM", "ok", there)]
    launched = "TORCHELASTIC_RUN_ID" in os.environ
    if launched and "SIGUSR1" not in os.environ.get("PET_SIGNALS_TO_HANDLE", ""):
        return [Finding("SLURM", "fail", f"job {job}: the launcher would die of SIGUSR1",
                        "export PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGUSR1, as slurm/train.sbatch does")]  # fmt: skip
    return [Finding("SLURM", "ok", f"job {job}, start {int(os.environ.get('SLURM_RESTART_COUNT', '0')) + 1}")]


CHECKS: tuple[Callable[[Patient], list[Finding]], ...] = (
    versions, same_code, devices, ranks, clocks, run_folder, shared_memory, data, hub, wandb, slurm,
)  # fmt: skip
