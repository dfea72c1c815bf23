# make setup       build .venv (once; needs only Python >= 3.11 with venv and pip)
# make lab         JupyterLab; begin with 00_start_here.ipynb
# make reproduce   the headline notebooks on the bundled models, then a report; ARGS=--resume goes on where it stopped
# make test        lint, types, tests, every notebook in the smoke profile

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Workers x threads must not exceed the cores: oversubscribed, a forward of the tiny model takes 30 times as long.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
THREADS := $(shell echo $$(($(CORES) < 4 ? $(CORES) : 4)))
WORKERS := $(shell echo $$(($(CORES) < 8 ? $(CORES) : 8)))
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --durations 20 --durations-min 5

# Modules are compiled once and kept, whatever the machine's habit is: each of a hundred processes would do it again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup reproduce reproduce-all test unit notebooks test-slow rehearsal lint lines lab slides site sbom advisories clean

help:
	@grep -E '^# make' Makefile | cut -c3-
	@echo 'also: make reproduce-all | test-slow | rehearsal | unit | notebooks | lint | lines | slides | site | sbom | advisories | clean'

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@echo 'Setting up $(VENV): a few minutes and about 3 GB the first time.'
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python >= 3.11 is needed: make setup PYTHON=/path/to/python3.11"'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	@$(BIN)/dynatree fetch smollm2 || echo 'Going on without SmolLM2: notebooks take the bundled pair instead.'
	@touch $@
	@echo 'Set up. To begin: make lab, then run 00_start_here.ipynb.'

reproduce: setup
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$(THREADS)} $(BIN)/dynatree run --profile laptop --headline --report $(ARGS)

reproduce-all: setup
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$(THREADS)} $(BIN)/dynatree run --profile laptop --report $(ARGS)

# Test workers would compile the same machine code each: one core does it while linters, then collection, keep the other busy.
test: setup
	@$(BIN)/python -m tools.compile_kernels & $(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory notebooks

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: setup
	$(PYTEST) -n $(WORKERS) --dist worksteal

notebooks: setup
	DYNATREE_PROFILE=smoke PLOTLY_RENDERER=plotly_mimetype PYDEVD_DISABLE_FILE_VALIDATION=1 $(PYTEST) --nbval-lax --nbval-current-env \
		--nbval-cell-timeout 300 --timeout 600 -n $(WORKERS) --dist loadfile --ignore=notebooks/solutions notebooks/

# Browsers, builds, planted faults, and samples large enough to see a small bias.
test-slow: setup
	$(PYTEST) -m slow --timeout 600 -n $(WORKERS) --dist loadgroup

# Every notebook in the profiles paper and colab, in three dtypes, whole, on stand-ins for the hub's models and data sets.
rehearsal: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.rehearsal --workers $(WORKERS) $(ARGS)

# Lines of code per room of the three packages, without comments, docstrings and blank lines.
lines:
	@$(PYTHON) -m tools.lines

lab: setup
	$(BIN)/jupyter lab notebooks $(if $(filter 0,$(shell id -u)),--allow-root)

# The slides of docs/teaching.md as pages for a browser (with speaker's notes: press S).
slides: setup
	$(BIN)/jupyter nbconvert --to slides --output-dir outputs/slides notebooks/slides/*.ipynb

# The pages of docs/ and the API, in outputs/site. A warning is an error.
site: setup
	rm -rf outputs/api outputs/site
	$(BIN)/python -m sphinx --fail-on-warning --quiet -c docs . outputs/site

# What is installed, as a software bill of materials (CycloneDX).
sbom: setup
	@mkdir -p outputs
	$(BIN)/python -m tools.sbom outputs/sbom.json

# Known security advisories against the pinned packages; says so where they cannot be asked for.
advisories: setup
	$(BIN)/python -m tools.advisories

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache outputs/notebooks outputs/api outputs/site outputs/slides
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
