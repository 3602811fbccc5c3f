"""P7: what is not finite on one rank is skipped by all, shown, counted, limited, and never best."""

from __future__ import annotations

import pytest
from launch import run_program


@pytest.mark.parametrize("case", ["once", "for ever", "stop"])
def test_p7_a_nonfinite_loss_on_one_rank(tmp_path, case):
    run_program("nonfinite", 2, str(tmp_path), case)  # it asserts on rank 0
