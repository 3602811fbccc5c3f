"""`isostep COMMAND`: hands the arguments to the command's module, which is imported only then."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version

from isostep.errors import ConfigError, IsostepError

COMMANDS = {
    "train": "fine-tune a model; what train.py does",
    "plan": "show what would run and fill the token cache",
    "predict": "answer the rows of a file with a trained model",
    "export": "write a checkpoint as a Hugging Face folder",
    "doctor": "check environment, devices, ranks, disk, network and tracking",
}
FOLLOWERS_WAIT = 3.0  # seconds
USAGE = "\n".join(
    [
        "usage: isostep COMMAND ...",
        "",
        *(f"  {name:<9} {text}" for name, text in COMMANDS.items()),
        "",
        "  isostep COMMAND --help    the command's arguments",
        "  isostep --version",
    ]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    An error that a user can mend is printed by the first rank alone, without a traceback; every rank returns its code.
    """
    try:
        try:
            return _dispatch(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()  # here, where a reader that left is caught, and not at the interpreter's end
    except BrokenPipeError:  # `isostep ... | head`: it has read what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except IsostepError as error:
        from isostep.track.redaction import redact

        if os.environ.get("RANK", "0") == "0":
            print(redact(str(error)), file=sys.stderr, flush=True)
        else:
            # the launcher ends all others when the first one leaves: that should be the one that has just told why
            time.sleep(FOLLOWERS_WAIT)
        return error.exit_code


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if argv else ConfigError.exit_code
    command, *rest = argv
    if command == "--version":
        print(f"isostep {version('isostep')}")
        return 0
    if command not in COMMANDS:
        raise ConfigError(f"isostep: no command {command!r}; there are {', '.join(COMMANDS)}")
    code: int = importlib.import_module(f"isostep.cli.{command}").run(rest)
    return code
