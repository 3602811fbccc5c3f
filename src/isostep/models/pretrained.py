"""What loading anything pretrained has in common: where it comes from, with which options, and how it fails.

A model is named by `model.path`: a local folder, a Hub id, or `builtin:tiny`. Code that lies beside the weights runs
only if `model.trust_remote_code` says so; weights are read from safetensors alone, so no pickle is ever executed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isostep.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from isostep.config import Config

TINY = "builtin:tiny"


def is_tiny(config: Config) -> bool:
    """Whether the model is the built-in one, which is made on the spot and never loaded."""
    return config.model.path == TINY


def model_config(config: Config) -> PretrainedConfig:
    """The model's own configuration (`config.json`), read without its weights; not for the built-in model.

    Raises ConfigError, naming model.path, where there is none: within seconds, also without a network.
    """
    from transformers import AutoConfig

    check_source(config)
    with refusing(config), quiet():
        shape: PretrainedConfig = AutoConfig.from_pretrained(config.model.path, **options(config))
    return shape


def options(config: Config) -> dict[str, Any]:
    """Keyword arguments of every `from_pretrained` of this run."""
    local = Path(config.model.path).is_dir()
    revision = {} if local or config.model.revision is None else {"revision": config.model.revision}
    # Said outright, since transformers would else ask on the terminal.
    return {"trust_remote_code": bool(config.model.trust_remote_code), "local_files_only": local, **revision}


def check_source(config: Config) -> None:
    """Refuse a model.path that can't be a model, before any library retries or guesses.

    Raises ConfigError for a path that does not exist, a folder without config.json or a Hub id that can't be had.
    """
    path = config.model.path
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"model.path: the folder {path} holds no config.json, so it is no Hugging Face model")
        return
    if folder.exists():
        raise ConfigError(f"model.path: {path} is a file; give the folder that holds config.json and the weights")
    if path.startswith((".", "/", "~")) or path.count("/") > 1 or not path.strip():
        raise ConfigError(f"model.path: there is no folder {path}, and a Hub id has the form owner/name")
    _check_hub(path, config.model.revision)


def _check_hub(path: str, revision: str | None) -> None:
    """One request without retries: a download of an unreachable file would first be tried for half a minute."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        if isinstance(try_to_load_from_cache(path, "config.json", revision=revision), str):
            return
        if HF_HUB_OFFLINE:
            raise ConfigError(f"model.path: {path} is neither a folder nor in the Hub's cache, and the Hub is offline")
        get_hf_file_metadata(hf_hub_url(path, "config.json", revision=revision))
    except ConfigError:
        raise
    except HFValidationError as error:
        raise ConfigError(f"model.path: {path} is neither a folder nor a Hub id (owner/name)") from error
    except GatedRepoError as error:
        raise ConfigError(
            f"model.path: {path} is gated: accept its terms on the Hub and log in (hf auth login)"
        ) from error
    except RevisionNotFoundError as error:
        raise ConfigError(f"model.revision: {path} has no revision {revision}") from error
    except EntryNotFoundError as error:
        raise ConfigError(f"model.path: {path} holds no config.json, so it is no transformers model") from error
    except RepositoryNotFoundError as error:
        raise ConfigError(f"model.path: the Hub has no model {path}, or it is private (hf auth login)") from error
    except Exception as error:
        raise ConfigError(
            f"model.path: {path} is neither a folder nor in the Hub's cache, "
            f"and the Hub can't be reached ({brief(error)})"
        ) from error


@contextlib.contextmanager
def refusing(config: Config) -> Iterator[None]:
    """Turn whatever a `from_pretrained` raises into one line on model.path.

    The libraries raise OSError, ValueError, ImportError, SafetensorError and plain Exception alike for a folder that
    is broken; only running out of memory is no fault of the model's.
    """
    try:
        yield
    except (ConfigError, MemoryError):
        raise
    except Exception as error:
        path = config.model.path
        if "trust_remote_code" in str(error):
            raise ConfigError(
                f"model.path: {path} needs Python code of its own repository; "
                "read that code, then set model.trust_remote_code: true"
            ) from error
        raise ConfigError(f"model.path: {path} can't be loaded: {brief(error)}") from error


def brief(error: BaseException) -> str:
    """First line of an error's text, its class where it has none; at most 200 characters."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars and load report: what matters of it stands in our own log."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
