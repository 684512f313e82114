# Two commands do everything, each with its own set-up: `make demo` and `make test`.
# While working: `make check` (a minute) before a commit, `make docs` after a docstring changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
USABLE := $(VENV)/.usable
READY := $(VENV)/.ready
ONE := OMP_NUM_THREADS=1

# What breaks first and costs little; the battery and the audits are in `make test`.
FAST := tests/test_architecture.py tests/ledger tests/release tests/sampling tests/theory \
	tests/rules/test_discovery.py tests/training/test_loop.py tests/gradients/test_refusals.py \
	tests/core/accounting/test_spending.py tests/core/accounting/test_events.py tests/app/runs/test_config.py

.PHONY: demo test check fast lint types unit docs site examples peers sbom lock hooks install bench-install clean

demo: $(USABLE)
	$(BIN)/python examples/demo.py

test: lint types unit

check: install
	$(MAKE) --no-print-directory -j2 lint types fast

fast: install
	$(ONE) $(BIN)/python -m pytest -q $(FAST)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

unit: install
	.ci/browser
	$(ONE) $(BIN)/python -m pytest -n 2 --dist loadfile -q --durations 25

# Every page that is written from docstrings, results or the source, into build/docs. Not committed,
# but for the names that type checkers see (winsor/rules/_names.pyi).
docs: install
	$(BIN)/python docs/built.py

# The documentation as a site that needs no network: open build/site/index.html.
site: docs
	PYTHONPATH=docs $(BIN)/python -m website.build build/site

# The worked examples, each with its page in build/gallery; FULL=--full for the real ones.
GALLERY := images text claims incomes somebody_elses_training
examples: install
	for name in $(GALLERY); do $(ONE) $(BIN)/python examples/gallery/$$name.py $(FULL) --out build/gallery/$$name || exit 1; done

# The code of other libraries that our pages show, each in an environment of its own (gigabytes).
peers: bench-install
	$(BIN)/python docs/peer_code.py

# What winsor stands on, with versions and licences, as CycloneDX JSON.
sbom: install
	$(BIN)/python docs/licence_page.py --sbom build/sbom.json

# constraints.txt anew, from this environment. Run the tests before you commit it.
lock: install
	$(BIN)/python docs/licence_page.py --lock

hooks: install
	$(BIN)/python -m pip install --quiet -c constraints.txt pre-commit
	$(BIN)/pre-commit install

install: $(READY)

# torch first and pinned: anything else may ask for "torch" and would otherwise bring a CUDA build.
# What a user has, without what only tests need: the demo waits for no more than this.
$(USABLE): pyproject.toml constraints.txt papers/pyproject.toml
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	$(BIN)/python -m pip install --quiet --no-deps -c constraints.txt -e papers
	touch $(USABLE)

$(READY): $(USABLE)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(READY)

bench-install: install
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,bench,scattering]"

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
