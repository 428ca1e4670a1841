# `make demo` and `make test` do all of their own set-up: they need Python 3.11 or newer, and make.
.DEFAULT_GOAL := help
.PHONY: help demo test check lint clean

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMOS  := bank_river walk_near_river_bank attention_kata weighted_sum cat_ate_mouse

help:
	@echo "make demo    the walkthroughs, number by number"
	@echo "make test    the tests, doctests and demos"
	@echo "make check   format, lint and types, then make test"
	@echo "make clean   remove the environment and what the demos left"

# One stamp for each set of extras: nothing is installed again until pyproject.toml changes.
$(VENV)/bin/python:
	@echo "making an environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "make: jattn needs Python 3.11 or newer; say which: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-%: pyproject.toml | $(VENV)/bin/python
	@echo "installing jattn[$*]: jax and what it needs, about 600 MB, once"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --progress-bar on --editable '.[$*]'
	@touch $@

demo: $(VENV)/.ready-demo
	@for name in $(DEMOS); do $(BIN)/python demos/$$name.py || exit; done

test: $(VENV)/.ready-dev
	@$(BIN)/python -m pytest -n auto

lint: $(VENV)/.ready-dev
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy

check: lint test

clean:
	rm -rf $(VENV) out
