"""train.py for a task that is handed in: `tagging.py --config FILE [--section.key value ...]`."""

from __future__ import annotations

import sys

from isostep import Config, fit
from isostep.tasks import TokenClassification

if __name__ == "__main__":
    fit(Config.load(overrides=sys.argv[1:], handed_in=("task",)), task=TokenClassification(), resume=True)
