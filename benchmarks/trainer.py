"""The peer: transformers' Trainer on local files, set as isostep is by default; one JSON file of what it measured.

    python benchmarks/trainer.py --train train.tsv --validation dev.tsv --text "#1 String" "#2 String" \\
        --label Quality --model FOLDER --epochs 3 --batch 16 --lr 5e-5 --seed 1 --out peer.json

Under torchrun or `accelerate launch` it runs on several ranks; rank 0 writes the file. Trainer's loss and gradient are
those of the mean over a batch on one process with --accumulation 1 only (benchmarks/prove.py shows the other cuts), so
quality is compared there.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

Row = dict[str, Any]
WARMUP = 0.06  # share of the steps
WEIGHT_DECAY = 0.01  # on all but biases and norms: Trainer leaves those out by itself
MAX_GRAD_NORM = 1.0
BETAS = (0.9, 0.999)


def read_rows(path: Path) -> list[Row]:
    """Rows of an unquoted tab-separated file (byte order mark allowed) or of a JSON-lines file.

    Raises ValueError for another kind of file.
    """
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if path.suffix != ".tsv":
        raise ValueError(f"{path}: .tsv or .jsonl is wanted")
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def sorted_labels(values: list[Any]) -> list[Any]:
    """The distinct labels as isostep orders them: numbers by value, texts by code point."""
    try:
        return sorted(set(values), key=float)
    except ValueError:
        return sorted(set(values))


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True, help="tsv (unquoted) or jsonl")
    parser.add_argument("--validation", type=Path, help="no evaluation without it")
    parser.add_argument("--text", nargs="+", required=True, help="one or two columns")
    parser.add_argument("--label", nargs="+", required=True, help="one column, or one of 0 and 1 for each label")
    parser.add_argument("--kind", choices=KINDS, default="classification", help="classification: of two labels")
    parser.add_argument("--model", required=True, help="a local folder in Hugging Face format")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--max-steps", type=int, default=-1, help="wins over --epochs")
    parser.add_argument("--batch", type=int, default=32, help="examples per device and pass")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--dropout", type=float, help="the model's own without it")
    parser.add_argument("--log-every", type=int, default=10, help="optimizer steps between rows of the loss")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(argv)


def number_scores(prediction: Any) -> dict[str, float]:
    """Pearson and Spearman correlation from an EvalPrediction: (N, 1), (N,)."""
    from scipy.stats import pearsonr, spearmanr

    values = prediction.predictions[:, 0]
    return {
        "pearson": float(pearsonr(values, prediction.label_ids).statistic),
        "spearman": float(spearmanr(values, prediction.label_ids).statistic),
    }


def label_scores(prediction: Any) -> dict[str, float]:
    """Micro and macro F1 from an EvalPrediction: logits (N, C), zeros and ones (N, C)."""
    from sklearn.metrics import f1_score

    found = prediction.predictions > 0
    return {
        f"f1_{average}": float(f1_score(prediction.label_ids, found, average=average, zero_division=0))
        for average in ("micro", "macro")
    }


def binary_scores(prediction: Any) -> dict[str, float]:
    """Accuracy and F1 of class 1 from an EvalPrediction: logits (N, 2), labels (N,)."""
    from sklearn.metrics import accuracy_score, f1_score

    predicted = prediction.predictions.argmax(-1)
    return {
        "accuracy": float(accuracy_score(prediction.label_ids, predicted)),
        "f1": float(f1_score(prediction.label_ids, predicted)),
    }


def targets(rows: list[Row], args: argparse.Namespace) -> list[Any]:
    """What is learned of each row. Raises ValueError for a classification that is not of two labels."""
    if args.kind == "regression":
        return [float(row[args.label[0]]) for row in rows]
    if args.kind == "multi_label":
        return [[float(row[column]) for column in args.label] for row in rows]
    labels = sorted_labels([row[args.label[0]] for row in read_rows(args.train)])
    if len(labels) != 2:
        raise ValueError(f"{args.train}: column {args.label[0]} holds {len(labels)} labels; two are wanted")
    return [labels.index(row[args.label[0]]) for row in rows]


def tokenised(path: Path, args: argparse.Namespace, tokenizer: Any) -> Any:
    import datasets

    rows = read_rows(path)
    pieces = tokenizer(
        *[[row[column] for row in rows] for column in args.text], truncation=True, max_length=args.max_length
    )
    return datasets.Dataset.from_dict({**pieces, "labels": targets(rows, args)})


def training_arguments(args: argparse.Namespace, folder: str) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=args.batch,
        per_device_eval_batch_size=args.batch,
        gradient_accumulation_steps=args.accumulation,
        num_train_epochs=args.epochs,
        max_steps=args.max_steps,
        learning_rate=args.lr,
        weight_decay=WEIGHT_DECAY,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        max_grad_norm=MAX_GRAD_NORM,
        lr_scheduler_type="linear",
        warmup_steps=WARMUP,
        seed=args.seed,
        use_cpu=True,
        ddp_backend="gloo" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else None,
        eval_strategy="epoch" if args.validation else "no",
        save_strategy="no",
        logging_steps=args.log_every,
        report_to="none",
        disable_tqdm=True,
    )


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "accelerate", "tokenizers", "datasets")}


def collected(args: argparse.Namespace, trainer: Any, examples: int) -> dict[str, Any]:
    """What one run measured. `seconds` is the time in training steps: Trainer's train_runtime less its evaluations."""
    history = trainer.state.log_history
    timings = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second")
    epochs = [
        {"epoch": row["epoch"], **{key[5:]: row[key] for key in row if key.startswith("eval_") and key not in timings}}
        for row in history
        if "eval_loss" in row
    ]
    total = next(row["train_runtime"] for row in history if "train_runtime" in row)
    seconds = total - math.fsum(row["eval_runtime"] for row in history if "eval_runtime" in row)
    return {
        "seed": args.seed,
        "final": epochs[-1] if epochs else None,
        "epochs": epochs,
        "steps": [
            {"step": row["step"], "loss": row["loss"], "grad_norm": row["grad_norm"], "lr": row["learning_rate"]}
            for row in history
            if "grad_norm" in row
        ],
        "world_size": trainer.args.world_size,
        "optimizer_steps": trainer.state.global_step,
        "examples": examples,
        "seconds": round(seconds, 3),
        "step_seconds": round(seconds / trainer.state.global_step, 4),
        "arguments": {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()},
        "versions": versions(),
    }


KINDS: dict[str, tuple[int | None, str, Any]] = {
    "classification": (2, "single_label_classification", binary_scores),
    "regression": (1, "regression", number_scores),
    "multi_label": (None, "multi_label_classification", label_scores),
}


def main() -> None:
    args = arguments()
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        set_seed,
    )

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    set_seed(args.seed)  # the head is drawn here
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
    dropout = {} if args.dropout is None else dict.fromkeys(names, args.dropout)
    size, problem, scores = KINDS[args.kind]
    model = AutoModelForSequenceClassification.from_pretrained(
        args.model, num_labels=size or len(args.label), problem_type=problem, dtype="float32", **dropout
    )
    train = tokenised(args.train, args, tokenizer)
    validation = tokenised(args.validation, args, tokenizer) if args.validation else None
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model,
            training_arguments(args, folder),
            train_dataset=train,
            eval_dataset=validation,
            data_collator=DataCollatorWithPadding(tokenizer),
            processing_class=tokenizer,
            compute_metrics=scores,
        )
        trainer.train()
    if trainer.is_world_process_zero():
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(collected(args, trainer, len(train)), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
