"""Every example keeps the promises: the same curve however it is cut, and across a kill."""

from __future__ import annotations

import pytest
from launch import ROOT
from proofs import Runs, assert_bit_equal, assert_same_curve, short

EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
# torch's Muon orthogonalises in bf16, where a difference in the last digit of fp32 can become one of 0.4 %
NORMS = {"muon": 1e-4}
each = pytest.mark.parametrize("name", EXAMPLES)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    made = {}

    def of(name: str) -> Runs:
        if name not in made:
            config = short(model={"dropout": 0.0}, optim={"lr": 0.05 if name == "bag_of_embeddings" else 1e-3})
            made[name] = Runs(tmp_path_factory.mktemp(name), config, ROOT / "examples" / f"{name}.py")
        return made[name]

    return of


def test_there_are_three_each_under_40_lines():
    assert EXAMPLES == ["bag_of_embeddings", "class_weights", "muon"]
    for name in EXAMPLES:
        assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < 40, name


@each
def test_p1_the_curve_is_the_same_on_any_number_of_ranks_and_any_token_budget(runs, name):
    reference = runs(name).whole(1, 1024)
    for world, budget in ((2, 150), (3, 90)):
        assert_same_curve(reference, runs(name).whole(world, budget), NORMS.get(name, 1e-5))


@each
def test_p3_killed_the_same_command_gives_the_same_weights(runs, name):
    assert_bit_equal(runs(name).whole(2), runs(name).resumed(2))


@each
def test_p4_gone_on_with_on_another_number_of_ranks_it_is_the_same_curve(runs, name):
    assert_same_curve(runs(name).whole(1, 1024), runs(name).resumed(3, 90), NORMS.get(name, 1e-5))
