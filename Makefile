# On a machine with Python 3.11 or newer and make:
#   make demo     the whole of Dragoman once, on data made on the spot
#   make test     every check that .ci/run runs, the tests in three processes (PROCESSES=3), for they wait now and then
#   make docs     the documentation as pages, in site/: open site/index.html (its search wants a server: python3 -m http.server -d site)
#   make docs-slow  what the pages tell to type and takes minutes: run, compared, its date renewed (PAGES=docs/choosing.md)
# All install into .venv, at the versions of requirements.lock, and install again only when that file or pyproject.toml changes.
# pip's own settings hold (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL …); see README.md for choosing a build of PyTorch.

PYTHON ?= python3
VENV ?= .venv
PROCESSES ?= 3
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint requirements.lock
INPUTS := requirements.lock pyproject.toml

.PHONY: help demo test docs docs-slow format clean

help:
	@sed -n 's/^#   make/make/p' Makefile
	@echo "make format   rewrite the code in the house's layout"
	@echo "make clean    remove .venv and the caches; runs/ stays"

demo: $(VENV)/demo.stamp
	$(BIN)/dragoman demo

test: $(VENV)/test.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder

docs: $(VENV)/test.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-slow: $(VENV)/test.stamp
	$(BIN)/python tests/documents.py $(PAGES)

format: $(VENV)/test.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "dragoman needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# hatchling and editables build the package; installed first so that the lock holds for them too.
$(VENV)/build.stamp: $(BIN)/python $(INPUTS)
	@echo "Installing into $(VENV); PyTorch is the large download."
	$(INSTALL) hatchling editables
	@touch $@

$(VENV)/demo.stamp: $(VENV)/build.stamp
	$(INSTALL) --no-build-isolation --editable '.[demo]'
	@touch $@

$(VENV)/test.stamp: $(VENV)/build.stamp
	$(INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@
