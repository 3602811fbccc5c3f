"""What the commands share: arguments to a Config."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from isostep.config import flags
from isostep.config.load import resolve
from isostep.config.schema import Config


def parse(argv: Sequence[str], prog: str) -> Config:
    """The Config that `--config FILE ... --section.key value ...` describe.

    `--help` and `--print-config` print on the first rank and raise SystemExit(0). Raises ConfigError, one line for each
    problem of files and arguments together.
    """
    first = os.environ.get("RANK", "0") == "0"
    line = flags.split(argv, prog, show_help=first)
    config = resolve(line.files, line.settings)
    if line.print_config:
        if first:
            sys.stdout.write(config.to_yaml())
        raise SystemExit(0)
    return config
