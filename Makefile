# On a fresh machine with Python (3.11 or newer) and make: `make test` does everything.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

LOWEST := .venv-lowest
# A minute or two of what depends on other packages: adapters, tokenizers, files, figures, commands.
FEW    := $(addprefix tests/test_,annotations.py cli.py execute.py lm_cli.py lm_text.py lowest.py maps.py ouro.py placement.py program.py \
            readouts.py report.py smollm2.py stacks.py stats.py store.py zoo.py)

# A check that waits for a process for ever ends with the stacks of its threads.
BOUND  := --timeout-method thread --timeout

# What starts processes on engines: one at a time, as nodes are killed under them.
ENGINES := $(addprefix tests/test_,jobs_faults.py jobs_local.py jobs_ray.py jobs_slurm.py whole_campaign.py)

.PHONY: help setup reproduce test check check-slow check-gpu check-lowest lint types docs notebooks explorer wheel clean

help:            ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: $(READY)  ## create .venv and install loopscope with everything the tests need

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("loopscope needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,plot,lm,tables,view]'
	@touch $@

reproduce: explorer ## run the experiments on the zoo's weights; the report is report/index.html
	$(BIN)/loopscope reproduce

test: setup      ## run the tests but the slow ones
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow"

lint: setup      ## ruff: style and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup     ## mypy, strict
	$(BIN)/mypy

docs: $(VENV)/.docs ## the pages as a site, out/site/index.html; a dead link is an error
	PYTHONPATH=docs NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

explorer: setup  ## the explorer with recorded answers, report/explorer/index.html
	rm -rf report/explorer
	$(BIN)/loopscope view --bundle report/explorer

wheel: setup     ## dist/*.whl, with a part of the zoo
	$(BIN)/python -m hatchling build -t wheel

check: lint types test  ## style, types and tests

check-slow: $(VENV)/.slow ## the slow checks that `make test` leaves out
	$(BIN)/python -m pytest -q -n 2 --dist loadfile $(BOUND) 2400 -m slow $(addprefix --ignore=,$(ENGINES))
	$(BIN)/python -m pytest -q $(BOUND) 900 -m slow $(ENGINES)

notebooks: $(VENV)/.slow ## run the notebooks of examples/ anew and keep what they print and draw
	$(BIN)/python examples/run_notebooks.py

$(VENV)/.slow: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[eval,notebooks,ray,slurm]'
	@touch $@

check-gpu:       ## what computes on a GPU, with the Python and the packages that are there: PYTHON=python3
	$(PYTHON) -m pytest -q -m gpu $(addprefix tests/test_,cuda_graphs.py gpu.py kernels.py)

check-lowest: $(LOWEST)/.ready ## a few tests with the lowest versions that pyproject.toml allows
	$(LOWEST)/bin/python -m pytest -q -m "not slow" $(FEW)

$(LOWEST)/.ready: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt \
	  -e '.[plot,lm,tables]' beartype hypothesis pytest pytest-xdist scipy statsmodels
	@touch $@

clean:           ## remove the environments and caches
	rm -rf $(VENV) $(LOWEST) .pytest_cache .mypy_cache .ruff_cache
