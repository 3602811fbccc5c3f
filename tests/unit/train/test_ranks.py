"""Precision and seeds: what is refused, and what is derived."""

from __future__ import annotations

import pytest
import torch

from isostep.errors import ConfigError
from isostep.train.ranks import lost_contact, refuse_slow_precision, resolve_precision
from isostep.train.resume import seed_rank


@pytest.mark.parametrize(
    ("pinned", "launched", "wanted"),
    [(None, None, "no"), ("bf16", None, "bf16"), (None, "fp16", "fp16"), ("no", "no", "no")],
)
def test_precision_is_pinned_launched_or_fp32(pinned, launched, wanted):
    assert resolve_precision(pinned, launched) == wanted


def test_a_precision_pinned_against_the_launcher_is_refused():
    with pytest.raises(ConfigError, match=r"train.precision is bf16 .* mixed_precision no"):
        resolve_precision("bf16", "no")


@pytest.mark.parametrize(
    ("precision", "flags", "refused"),
    [
        ("no", (), False),
        ("bf16", ("avx2", "avx512f"), True),
        ("bf16", ("avx512_bf16",), False),
        ("fp16", ("avx512_bf16", "f16c"), True),
        ("fp16", ("avx512_fp16",), False),
    ],
)
def test_a_cpu_is_refused_a_precision_that_it_only_emulates(precision, flags, refused):
    if refused:
        with pytest.raises(ConfigError, match=f"train.precision {precision}: this CPU"):
            refuse_slow_precision(precision, frozenset(flags))
    else:
        refuse_slow_precision(precision, frozenset(flags))


def test_ranks_draw_different_numbers_and_the_same_ones_again():
    def draw(seed, rank):
        seed_rank(seed, rank)
        return torch.rand(3).tolist()

    assert draw(1, 0) == draw(1, 0)
    assert len({tuple(draw(seed, rank)) for seed in (1, 2) for rank in (0, 1, 2)}) == 6


def test_contact_is_lost_by_what_collectives_raise_alone():
    gone = RuntimeError("[.../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3210")
    assert lost_contact(gone) and lost_contact(torch.distributed.DistBackendError("NCCL communicator was aborted"))
    for own in (RuntimeError("CUDA out of memory"), ConfigError("gloo is no precision"), ValueError("gloo")):
        assert not lost_contact(own)
