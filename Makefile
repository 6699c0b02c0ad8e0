# Every target makes .venv by itself when it is missing. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DATA := data/.ready

.DEFAULT_GOAL := help
.PHONY: browser help demo demo-full test check format bench soak data docs clean

help: ## Show what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(DATA): $(READY) $(wildcard src/louver/samples/*.py)
	$(BIN)/louver data data
	@touch $@

demo: $(DATA) ## The main job on real documents, in minutes, with a report
	$(BIN)/louver run recipes/demo.yaml

demo-full: $(DATA) ## The publishable figures on two sets; takes hours on a small machine
	$(BIN)/louver run recipes/demo-full-composite.yaml
	$(BIN)/louver run recipes/demo-full-news.yaml

browser: ## Chromium from Debian, where no browser is found; the page is tested in a real one
	@for name in chromium chromium-browser google-chrome chrome; do command -v $$name >/dev/null && exit 0; done; \
	command -v apt-get >/dev/null || { echo "the page's tests need a browser; install chromium" >&2; exit 1; }; \
	$$([ $$(id -u) = 0 ] || echo sudo) sh -c "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null"

test: $(DATA) browser ## All tests but the soaks; no network, no GPU
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

check: $(READY) ## Format, lint, types, import layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## Write the format and the safe lint fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DATA) ## Attention speed on this machine
	$(BIN)/louver bench attention --lengths 1024,4096,8192 --head-dim 32
	$(BIN)/louver bench attention --lengths 1024,4096,8192 --head-dim 32 --backward

soak: $(DATA) ## Long runs: ten kills of a recipe, memory over thousands of batches
	$(BIN)/python -m pytest -m soak -s

data: $(DATA) ## Real weights and texts for demos and tests

docs: $(READY) ## Redraw the pictures that the docs show
	$(BIN)/python docs/pictures.py

clean: ## Remove what was made, data and environment included
	rm -rf $(VENV) data runs dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
