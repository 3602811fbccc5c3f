"""Answers to keys that do not exist: the nearest right key, or what a name from another trainer is called here."""

from __future__ import annotations

import difflib

from isostep.config.keys import KEYS, SECTIONS

_BATCH = "is not set here: batch.size = per-device batch x accumulation x ranks (memory: batch.tokens_per_device)"
_LAUNCH = "comes from Accelerate (accelerate launch, its YAML or flags), not from this file"
_PRECISION = "is train.precision here (no, bf16 or fp16)"
_WARMUP = "is optim.warmup here (below 1 a share of the steps, from 1 on steps)"
_EVERY = "is eval.every here (epoch, or N optimizer steps)"
_SAVE = "is checkpoint.every here (epoch, or N optimizer steps)"
_BEST = "is not needed here: best/ always holds the best model"
_GROUP = "is not needed here: each window is cut into parts of similar length, order and numbers unchanged"

# Names of transformers' TrainingArguments and example scripts, of Lightning's Trainer and of Composer's.
FOREIGN = {
    "learning_rate": "is optim.lr here",
    "per_device_train_batch_size": _BATCH,
    "per_gpu_train_batch_size": _BATCH,
    "train_batch_size": _BATCH,
    "micro_batch_size": _BATCH,
    "gradient_accumulation_steps": _BATCH,
    "accumulate_grad_batches": _BATCH,
    "batch_size": "is batch.size here: examples per optimizer step over all ranks",
    "global_train_batch_size": "is batch.size here",
    "per_device_eval_batch_size": "is not needed here: evaluation is cut by batch.tokens_per_device",
    "device_train_microbatch_size": "is batch.tokens_per_device here, in tokens",
    "auto_find_batch_size": "is not needed here: batch.tokens_per_device: null finds what fits, the numbers unchanged",
    "num_train_epochs": "is train.epochs here",
    "max_epochs": "is train.epochs here",
    "num_epochs": "is train.epochs here",
    "max_duration": "is train.epochs or train.max_steps here",
    "max_train_steps": "is train.max_steps here",
    "warmup_ratio": _WARMUP,
    "warmup_steps": _WARMUP,
    "num_warmup_steps": _WARMUP,
    "lr_scheduler_type": "is optim.schedule here (linear, cosine or constant)",
    "scheduler": "is optim.schedule here (linear, cosine or constant)",
    "optimizer": "is AdamW here; another one is handed to fit() from Python",
    "gradient_clip_val": "is optim.max_grad_norm here",
    "adam_beta1": "is the first of optim.betas here",
    "adam_beta2": "is the second of optim.betas here",
    "adam_epsilon": "is optim.eps here",
    "fp16": _PRECISION,
    "bf16": _PRECISION,
    "mixed_precision": _PRECISION,
    "eval_steps": _EVERY,
    "eval_strategy": _EVERY,
    "evaluation_strategy": _EVERY,
    "eval_interval": _EVERY,
    "val_check_interval": _EVERY,
    "check_val_every_n_epoch": _EVERY,
    "do_eval": _EVERY,
    "eval_on_start": "is eval.at_start here",
    "max_eval_samples": "is eval.max_examples here",
    "max_train_samples": "is data.max_train_examples here",
    "metric_for_best_model": "is eval.metric here",
    "greater_is_better": "is eval.mode here (min or max; null: known from the metric)",
    "early_stopping_patience": "is eval.patience here, in evaluations",
    "early_stopping_threshold": "is eval.min_delta here",
    "load_best_model_at_end": _BEST,
    "save_steps": _SAVE,
    "save_strategy": _SAVE,
    "save_interval": _SAVE,
    "save_total_limit": "is checkpoint.keep here",
    "save_top_k": "is checkpoint.keep here",
    "resume_from_checkpoint": "is run.resume here (auto is the default)",
    "ckpt_path": "is run.resume here (auto is the default)",
    "overwrite_output_dir": "does not exist here: choose another run.name",
    "output_dir": "is run.root here, with run.name below it",
    "save_folder": "is run.root here, with run.name below it",
    "default_root_dir": "is run.root here, with run.name below it",
    "run_name": "is run.name here",
    "logging_steps": "is track.log_every here",
    "log_every_n_steps": "is track.log_every here",
    "report_to": "is track.wandb here (auto, online, offline or disabled)",
    "model_name_or_path": "is model.path here",
    "model_name": "is model.path here",
    "attn_implementation": "is model.attention here",
    "gradient_checkpointing": "is model.activation_checkpointing here",
    "max_seq_length": "is data.max_length here",
    "max_seq_len": "is data.max_length here",
    "pad_to_max_length": _GROUP,
    "group_by_length": _GROUP,
    "length_column_name": _GROUP,
    "train_file": "is data.train here",
    "validation_file": "is data.validation here",
    "test_file": "is data.test here",
    "dataset_name": "is data.path here",
    "dataset_config_name": "is data.name here",
    "text_column_name": "is data.text here",
    "label_column_name": "is data.label here",
    "dataloader_num_workers": "is data.workers here",
    "num_workers": "is data.workers here",
    "dataloader_drop_last": "does not exist here: every example counts, the short last window too",
    "drop_last": "does not exist here: every example counts, the short last window too",
    "lora_r": "is lora.r here",
    "lora_alpha": "is lora.alpha here",
    "lora_dropout": "is lora.dropout here",
    "target_modules": "is lora.targets here",
    "modules_to_save": "is lora.save_modules here",
    "load_in_4bit": "is lora.quantization: nf4 here",
    "ddp_find_unused_parameters": _LAUNCH,
    "ddp_timeout": "is run.timeout here, in seconds",
    "fsdp": _LAUNCH,
    "deepspeed": _LAUNCH,
    "strategy": _LAUNCH,
    "accelerator": _LAUNCH,
    "devices": _LAUNCH,
    "num_nodes": _LAUNCH,
    "num_processes": _LAUNCH,
    "local_rank": _LAUNCH,
}


def hint(name: str) -> str:
    """What to write instead of an unknown key: `learning_rate is optim.lr here`; empty if nothing is near."""
    plain = name.replace("-", "_").lower()
    leaf = plain.rpartition(".")[2]
    if name in KEYS:  # in a file, dotted at the top level
        section, _, below = name.partition(".")
        return f"write it as {below}: below {section}:"
    if plain in KEYS:
        return f"did you mean {plain}?"
    if homes := [key for key in KEYS if key.rpartition(".")[2] == leaf]:
        return f"did you mean {' or '.join(homes[:3])}?"
    return _nearest(plain, leaf)


def _nearest(plain: str, leaf: str) -> str:
    """The most alike of all dotted keys, keys without their section, sections, and foreign names."""
    candidates = {key: f"did you mean {key}?" for key in KEYS}
    best = difflib.get_close_matches(plain, candidates, n=1, cutoff=0.75)
    leaves = {key.rpartition(".")[2]: f"did you mean {key}?" for key in KEYS}
    leaves |= {section: f"did you mean {section}?" for section in SECTIONS if "." not in plain}
    leaves |= {foreign: f"{foreign} {answer}" for foreign, answer in FOREIGN.items()}
    other = difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.75)

    def alike(a: str, b: str) -> float:
        return difflib.SequenceMatcher(None, a, b).ratio()

    if best and (not other or alike(plain, best[0]) >= alike(leaf, other[0])):
        return candidates[best[0]]
    return leaves[other[0]] if other else ""
