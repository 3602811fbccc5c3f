"""isostep: fine-tuning whose numbers do not change when the hardware does.

`Config` and `fit` are imported when they are first asked for: a command line that only prints help needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isostep.config import Config as Config
    from isostep.train.fit import fit as fit

__all__ = ["Config", "fit"]


def __getattr__(name: str) -> Any:
    if name == "Config":
        from isostep.config import Config

        return Config
    if name == "fit":
        from isostep.train.fit import fit

        return fit
    raise AttributeError(f"module 'isostep' has no attribute {name!r}")
