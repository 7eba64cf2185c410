# Every target installs what it needs into .venv. A machine needs Python 3.11 or newer, and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# As many test processes as tests/conftest.py says, each with one thread.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal
NUMERICAL := tests/formula tests/engine tests/metrics tests/attacks tests/models

.DEFAULT_GOAL := help
.PHONY: help install test numerical compiled torture check format demo docs bench results clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"robattr needs Python 3.11 or newer, got {v.major}.{v.minor}: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(VENV)/installed  ## install the package and its tools into .venv

test: install  ## run the whole test suite on all cores
	$(PYTEST)

numerical: install  ## run the numerical tests alone
	$(PYTEST) $(NUMERICAL)

compiled: install  ## compile every named objective on the CPU and compare it with the plain formula (minutes)
	$(PYTEST) -m inductor tests/engine/test_inductor.py tests/benchmarks/test_forms.py

torture: install  ## kill every command, damage its files, fill its disk; seeded, prints its figures (minutes)
	PYTHONPATH=tests $(BIN)/python -m torture

check: install  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install  ## format the code and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

demo: install  ## train, attack and measure four small models; writes runs/demo/report.html
	$(BIN)/robattr demo

docs: install  ## build the documentation as a site that needs no network; writes site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: install  ## measure the speed against an eager port; writes runs/bench.json
	@mkdir -p runs
	$(BIN)/python -m benchmarks --json runs/bench.json

results: install  ## render results, leaderboard and cards of the zoo from the records in results/
	$(BIN)/python -m results.render
	$(BIN)/python -m results.leaderboard
	$(BIN)/python -m results.zoo cards

clean:  ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build dist
