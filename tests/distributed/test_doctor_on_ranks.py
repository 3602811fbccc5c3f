"""`isostep doctor` under accelerate launch: all ranks are looked at together, and what differs is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml
from launch import LAUNCH, ROOT, environment

ACCELERATE = os.path.join(os.path.dirname(sys.executable), "accelerate")


def doctor(tmp_path: Path, *arguments: str, program: tuple[str, ...] = ("-m", "isostep")) -> str:
    launch = tmp_path / "launch.yaml"
    launch.write_text(yaml.safe_dump({**LAUNCH, "num_processes": 2}))
    command = [ACCELERATE, "launch", "--config_file", str(launch), *program, "doctor", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(2), text=True, capture_output=True, timeout=120)
    return f"{done.stdout}\n{'failed' if done.returncode else 'healthy'}"


def test_two_healthy_ranks(tmp_path: Path) -> None:
    config = ["--config", "configs/quickstart.yaml", "--run.root", str(tmp_path / "runs")]
    told = doctor(tmp_path, *config)
    assert told.endswith("healthy") and "FAIL" not in told, told
    for line in ("the same on 2 rank(s)", "2 on 1 host(s), gloo: 64 MiB reduced in", "s apart",
                 "the same content on every rank", "MB/s to the disk", "/dev/shm holds"):  # fmt: skip
        assert told.count(line) == 1, f"{line}: {told}"


def test_ranks_that_differ_in_code_data_clock_and_disk(tmp_path: Path) -> None:
    """One of the two runs other code, on other data, in another time, and sees another disk."""
    data = tmp_path / "own.csv"
    data.write_text("t,y\na,1\nb,0\n")
    program = tmp_path / "sick.py"
    program.write_text(f"""\
import os, sys, time
from pathlib import Path
from isostep.cli import symptoms
from isostep.cli.main import main
if os.environ["RANK"] == "1":
    symptoms.torch.__version__ = "9.9"
    now = time.time
    symptoms.time.time = lambda: now() + 60
    os.chdir({str(tmp_path)!r})
    Path("elsewhere").mkdir()
    os.chdir("elsewhere")
    Path("own.csv").write_text("t,y\\na,1\\nb,1\\n")
    exists = Path.exists
    Path.exists = lambda path: not path.name.startswith(".doctor-") and exists(path)
else:
    os.chdir({str(tmp_path)!r})
sys.exit(main(sys.argv[1:]))
""")
    told = doctor(
        tmp_path, "--model.path", "builtin:tiny", "--data.train", "own.csv", "--data.text", "t", "--data.label", "y",
        "--run.name", "r", program=(str(program),),
    )  # fmt: skip
    assert told.endswith("failed")
    wanted = [
        "FAIL  code           rank 1 runs other code or another torch",
        "warn  clocks         60.0",
        "FAIL  data           ranks see files of other content",
        "is another folder here than on rank 0",
    ]
    for line in wanted:
        assert line in told, f"{line}: {told}"
