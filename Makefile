# Two commands do everything, each with its own set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint types unit install bench-install clean

demo: install
	$(BIN)/python examples/demo.py

test: lint types unit

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

unit: install
	.ci/browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -q

install: $(READY)

# torch first and pinned: anything else may ask for "torch" and would otherwise bring a CUDA build.
$(READY): pyproject.toml constraints.txt reproductions/pyproject.toml
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps -c constraints.txt -e reproductions
	touch $(READY)

bench-install: install
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,bench,plots,scattering]"

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
