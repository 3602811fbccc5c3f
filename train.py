"""Fine-tune a model: `accelerate launch train.py --config FILE`, or `python train.py --config FILE` on one device."""

import sys

from isostep.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
