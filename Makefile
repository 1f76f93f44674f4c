# On a fresh machine with Python (3.11 or newer) and make: `make test` does everything.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help setup reproduce test check check-slow lint types clean

help:            ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: $(READY)  ## create .venv and install loopscope with everything the tests need

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("loopscope needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,plot,lm]'
	@touch $@

reproduce: setup ## run the experiments on the zoo's weights; the report is report/index.html
	$(BIN)/loopscope reproduce

test: setup      ## run the tests
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow"

lint: setup      ## ruff: style and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup     ## mypy, strict
	$(BIN)/mypy

check: lint types test  ## everything CI runs

check-slow: setup ## the checks that take minutes
	$(BIN)/python -m pytest -q -m slow

clean:           ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
