"""The model of a run: the head that its task asks for, with fp32 weights, whatever its checkpoint was saved in."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from isostep.errors import ConfigError
from isostep.models.pretrained import brief, is_tiny, model_config, options, quiet, refusing
from isostep.models.tiny import tiny_config
from isostep.models.tokenizer import OFFSET_POSITIONS

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from isostep.config import Config
    from isostep.tasks import Task

log = logging.getLogger(__name__)

DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def load_model(config: Config, task: Task, tokenizer: PreTrainedTokenizerBase) -> nn.Module:
    """The model of model.path with the head of `task`, on the CPU, every weight fp32, in train mode.

    A head of the checkpoint of the same size is kept, any other is initialised anew from torch's global generator:
    seed it before the call and every process gets the same head. Raises ConfigError, naming the key, for a model that
    can't be had, can't be trained here, or does not do what model.attention, model.dropout or
    model.activation_checkpointing ask for.
    """
    tiny = is_tiny(config)
    shape = tiny_config(len(tokenizer)) if tiny else model_config(config)
    _check_shape(config, shape)
    for key, value in task.head().items():
        setattr(shape, key, value)
    if config.model.dropout is not None:
        set_dropout(shape, config.model.dropout)

    if tiny:
        model = _build(config, shape, task.auto_class)
    else:
        model, new = _load(config, shape, task.auto_class)
        log.info("%s: %s", config.model.path,
                 f"newly initialised: {', '.join(new)}" if new else "the checkpoint's own head is kept")  # fmt: skip
    _check_model(config, model, tokenizer)
    _set_padding(model, tokenizer)
    if config.model.activation_checkpointing:
        _checkpoint_activations(config, model)
    model.train()
    return model


def _check_shape(config: Config, shape: PretrainedConfig) -> None:
    path = config.model.path
    for part in {id(part): part for part in (shape, shape.get_text_config())}.values():
        if getattr(part, "output_router_logits", False):
            raise ConfigError(
                f"model.path: {path} adds a router loss inside the model (output_router_logits), which would be lost "
                "here; set output_router_logits: false in its config.json"
            )
    if getattr(shape, "quantization_config", None):
        raise ConfigError(f"model.path: {path} is quantized, and quantized weights can't be trained; use the original")


def load_trained(config: Config, auto_class: str) -> PreTrainedModel:
    """The model in the folder or Hub repository model.path as it was exported, fp32, in evaluation mode.

    Raises ConfigError where there is none, also for a model whose head would have to be made up.
    """
    model, new = _load(config, model_config(config), auto_class)
    if new:
        raise ConfigError(
            f"model.path: {config.model.path} is no trained model of this task: it lacks {', '.join(new[:3])}"
        )
    model.train(False)
    return model


def _load(config: Config, shape: PretrainedConfig, auto_class: str) -> tuple[PreTrainedModel, list[str]]:
    """The model with the checkpoint's weights, and the names of those that the checkpoint did not give."""
    import transformers

    _check_safetensors(config)
    with refusing(config), quiet():
        try:
            model, info = getattr(transformers, auto_class).from_pretrained(
                config.model.path,
                config=shape,
                dtype=torch.float32,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # for the head; _new_weights refuses it elsewhere
                output_loading_info=True,
                **_attention(config),
                **options(config),
            )
        except ValueError as error:
            if config.model.attention != "auto" and "attention" in str(error).lower():
                raise ConfigError(
                    f"model.attention: {config.model.path} has no {config.model.attention} attention: {brief(error)}"
                ) from error
            raise
    return model, _new_weights(config, model, info)


def _build(config: Config, shape: PretrainedConfig, auto_class: str) -> PreTrainedModel:
    import transformers

    with quiet():
        model: PreTrainedModel = getattr(transformers, auto_class).from_config(
            shape, dtype=torch.float32, **_attention(config)
        )
    return model


def _attention(config: Config) -> dict[str, str]:
    kind = config.model.attention
    return {} if kind == "auto" else {"attn_implementation": kind}


def _check_safetensors(config: Config) -> None:
    folder = Path(config.model.path)
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return
    pickled = sorted(file.name for kind in ("*.bin", "*.pt", "*.pth") for file in folder.glob(kind))
    held = f"only {pickled[0]}, which is pickle and is never read" if pickled else "no weights"
    raise ConfigError(f"model.path: {folder} holds {held}; safetensors are needed (save_pretrained writes them)")


def _new_weights(config: Config, model: PreTrainedModel, info: dict[str, Any]) -> list[str]:
    """The weights that the checkpoint did not give; outside the head only a pooler may be among them.

    Pretraining without a sentence objective (RoBERTa) leaves no pooler; any other missing weight of the encoder means
    that the files do not belong together, and training would go on from noise.
    """
    new = sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])})
    encoder = f"{model.base_model_prefix}."
    broken = [key for key in new if key.startswith(encoder) and "pooler" not in key]
    if broken:
        raise ConfigError(
            f"model.path: {config.model.path} lacks {len(broken)} weights that its config.json asks for, or has them "
            f"in another size: {', '.join(broken[:3])}{', ...' if len(broken) > 3 else ''}"
        )
    return new


def _check_model(config: Config, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    other = {str(weight.dtype) for weight in model.parameters() if weight.dtype != torch.float32}
    if other:
        raise ConfigError(
            f"model.path: {config.model.path} keeps weights in {', '.join(sorted(other))}; fp32 is needed"
        )
    embedding: Any = model.get_input_embeddings()
    rows = embedding.weight.shape[0]
    if rows < len(tokenizer):
        raise ConfigError(
            f"model.path: the tokenizer of {config.model.path} has {len(tokenizer)} tokens and its model only {rows}"
        )
    if config.model.dropout == 0:
        left = [name for name, module in model.named_modules() if isinstance(module, DROPOUT) and module.p > 0]
        if left:
            raise ConfigError(f"model.dropout: it can't be turned off in {config.model.path}: {', '.join(left[:3])}")


def set_dropout(shape: PretrainedConfig, probability: float) -> None:
    """Set every dropout probability of a model's configuration: each number whose key holds "drop".

    None stays (it means: the hidden dropout). Layer and path dropout leave out whole layers, each rank others: that is
    another method, so 0 turns them off and any other value leaves them as they are.
    """
    for part in {id(part): part for part in (shape, shape.get_text_config())}.values():
        for key, value in list(vars(part).items()):
            if "drop" not in key or isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            if probability == 0 or not ("layerdrop" in key or "drop_path" in key):
                setattr(part, key, float(probability))


def _set_padding(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Tell the model which token pads: decoders look for the last other one, and without it refuse a batch."""
    text = model.config.get_text_config()
    if text.model_type not in OFFSET_POSITIONS:  # there the id is part of how positions count, and fixed by training
        text.pad_token_id = tokenizer.pad_token_id


def _checkpoint_activations(config: Config, model: Any) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # its later name is not in all versions that we support
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except ValueError as error:
        raise ConfigError(f"model.activation_checkpointing: {config.model.path} can't: {brief(error)}") from error
    model.config.use_cache = False


def with_trainable_fp32(model: nn.Module) -> nn.Module:
    """The same model in train mode, its trainable weights at least fp32, as those that are loaded here are."""
    low = [
        weight
        for weight in model.parameters()
        if weight.requires_grad and weight.dtype in (torch.bfloat16, torch.float16)
    ]
    for weight in low:
        weight.data = weight.data.float()
    if low:
        log.info("%d trainable weights of the model were of half precision; they are trained in fp32", len(low))
    return model.train()


def freeze_unused(model: nn.Module, run_backward: Callable[[], object]) -> list[str]:
    """Freeze the parameters that a forward and backward never reach; returns their names.

    DistributedDataParallel waits for the gradient of each parameter, so an unused one (a pooler the head ignores)
    stops it. `run_backward` runs one forward and backward of the bare model, best of a loss times zero; gradients are
    None afterwards, as they were before.
    """
    run_backward()
    unused = [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None]
    for name, weight in model.named_parameters():
        weight.grad = None
        if name in unused:
            weight.requires_grad_(False)
    return unused
