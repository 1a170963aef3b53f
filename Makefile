# Two commands matter: `make run` and `make test`. Each does its own set-up from a bare clone, and little when it is done.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PY := .venv/bin/python
LIBRARIES := .cache/libraries
PORT ?=
SERVE_SECONDS ?=
WEB ?=
REPOSITORY ?=
SEED ?= 0
VERSIONS ?=
ARGS ?=

.PHONY: help run test test-all lint test-python test-extension test-e2e sweep versions libraries bench docs wheel format clean distclean \
        environment extension editor browser

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

run: environment extension ## check examples/ on the command line, then open the editor on them (PORT=, WEB=1, SERVE_SECONDS=)
	@.venv/bin/fuselens check examples/ || echo "(the check reports errors; the editor opens all the same)"
	@$(PY) scripts/editor.py open examples --vsix extension/dist/fuselens.vsix \
	  $(if $(PORT),--port $(PORT)) $(if $(WEB),--web) $(if $(SERVE_SECONDS),--seconds $(SERVE_SECONDS))

test: environment extension browser editor ## every check, and the tests: Python (a sample, seeded by the commit), TypeScript, end to end
	@$(PY) scripts/run_tests.py

test-all: environment extension browser editor ## the same without sampling
	@$(PY) scripts/run_tests.py --all

lint: environment ## ruff, import contracts, types
	@$(PY) scripts/run_tests.py ruff format imports pyright

test-python: environment ## the Python tests (ARGS="-k name")
	@$(PY) -m pytest -m "not e2e and not sweep" $(ARGS)

test-extension: extension ## types and unit tests of the extension
	@$(PY) scripts/run_tests.py tsc extension

test-e2e: environment extension browser editor ## the tests in a real editor (ARGS="-k name"; FUSELENS_EDITOR=oldest: in the first release that we support)
	@$(PY) -m pytest -m e2e -n 0 $(ARGS) tests/e2e

sweep: environment ## the tests that take minutes: 10,000 random programs, 5,000 random graphs, 2,000 for a GPU, 2,000 that are proved, and the whole standard library (SEED=, ARGS=)
	@FUSELENS_SWEEP_SEED=$(SEED) $(PY) -m pytest -n 2 -v -m sweep $(ARGS)

versions: environment ## the Python tests on each supported torch and Python, whole or in a sample, in one table (VERSIONS="2.11 2.15", SEED=)
	@FUSELENS_SWEEP_SEED=$(SEED) $(PY) scripts/versions.py $(VERSIONS)

libraries: ## install the libraries of docs/guides/libraries.md in an environment of their own, and run tests/libraries there (ARGS="-k name")
	@scripts/environment.sh $(LIBRARIES) constraints/libraries.txt
	@$(LIBRARIES)/bin/python -m pip install --disable-pip-version-check -qq --requirement constraints/libraries.txt
	@$(LIBRARIES)/bin/python -m pytest tests/libraries $(ARGS)

bench: environment ## eager, torch.compile and fuselens, interleaved (ARGS="--help")
	@$(PY) -m benchmarks $(ARGS)

docs: environment ## build the documentation into site/ (ARGS=serve: show it on a local address)
	@.venv/bin/mkdocs $(or $(ARGS),build --strict)

wheel: environment ## build the wheel and the sdist into dist/
	@$(PY) -m build --no-isolation --outdir dist .

format: environment ## format the Python code and fix what ruff can
	@.venv/bin/ruff check --fix --quiet . ; .venv/bin/ruff format .

clean: ## remove what was built
	@rm -rf dist build site extension/dist extension/out tests/e2e/output .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
	@find compiler server tests scripts benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environments too
	@rm -rf .venv .cache extension/node_modules tests/e2e/node_modules

# --- set-up: each is a no-op when nothing changed -----------------------------------------------------------------
environment:
	@scripts/environment.sh

extension: environment
	@$(PY) scripts/extension.py $(if $(REPOSITORY),--repository $(REPOSITORY))

editor: environment
	@$(PY) scripts/editor.py install

browser: environment
	@scripts/browser.sh
	@$(PY) scripts/extension.py --packages tests/e2e
