# Every command sets up what it needs; `make setup` does nothing when nothing changed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
SECONDS ?= 600
WORKERS ?= 2
FOR ?= everything
ARGS ?=

# CMake takes a compiler cache where the machine has one.
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(shell command -v ccache)

bin := .venv/bin
pip := $(bin)/python -m pip --disable-pip-version-check
# The order of files is that of tests/conftest.py.
pytest := $(bin)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
install := $(pip) install --quiet --progress-bar off
editable := $(install) --no-build-isolation --editable
environment := .venv/.stamp-environment
native := .venv/.stamp-native
spark := .venv/.stamp-spark
peers := .venv/.stamp-peers
# mypy refuses a folder without Python.
checked = $(foreach folder,src tests bench examples scripts,$(if $(shell \
  find $(folder) -name '*.py' -print -quit 2>/dev/null),$(folder)))

.PHONY: help setup installed demo test check bench soak lint docs programs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## create .venv, build the native module, install everything for development
	@mkdir -p build
	@flock build/setup.lock $(MAKE) installed

installed: $(native) $(spark)
	@:

$(environment): pyproject.toml scripts/install_system_packages.sh scripts/install_etcd.sh \
  scripts/install_postgres.sh
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Hawser needs Python 3.11 or newer; '$(PYTHON)' is not. Try: make setup PYTHON=python3.12" >&2; exit 1; }
	@scripts/install_system_packages.sh $(PYTHON)
	@scripts/install_etcd.sh
	@scripts/install_postgres.sh
	@echo "setup: installing the tools into .venv"
	@test -x $(bin)/python || $(PYTHON) -m venv .venv
	@$(install) --upgrade 'pip>=25.1'
	@$(install) --group dev
	@touch $@

# The editable install lists the modules it has found, so the list of them is a source of it. It is written anew only
# when it differs.
modules := build/modules.txt
ifeq ($(wildcard src),src)
$(shell mkdir -p build && find src -name '*.py' | sort > $(modules).new && \
  { cmp --silent $(modules).new $(modules) || cp $(modules).new $(modules); } && rm $(modules).new)
endif

# The folder itself is listed so that a file added or taken away counts as a change.
$(native): $(environment) CMakeLists.txt $(modules) $(wildcard native native/*)
	@echo "setup: building the native module"
	@$(editable) .
	@touch $@

# Spark starts in a third of the time with it, and without it all the same.
$(spark): $(native)
	@echo "setup: keeping the classes of Spark, so that it starts sooner (a minute, once)"
	@$(bin)/python -m hawser.spark.archive || true
	@touch $@

$(peers): $(environment) scripts/install_redis.sh
	@echo "setup: installing the peers that the benchmarks compare with"
	@scripts/install_redis.sh
	@$(editable) '.[bench]'
	@touch $@

demo: setup ## the whole path with kill -9 at each part, and the audit that nothing was lost
	@rm -rf build/demo
	@$(bin)/hawser demo --dir build/demo $(ARGS)

test: setup ## lint, types and every test
	@$(MAKE) --jobs=2 --output-sync lint docs programs
	@$(pytest) $(ARGS)

check: setup ## the quick tests, four minutes at most; FOR=folder or FOR=changes takes those of it, a minute at most
	@files=$$($(bin)/python scripts/tests_of.py $(FOR)) && $(pytest) -m "not slow" $$files $(ARGS)

soak: setup ## the long versions of the attacks: make soak SECONDS=600
	@HAWSER_SOAK_SECONDS=$(SECONDS) $(bin)/python -m pytest -m soak $(ARGS)

bench: setup $(peers) ## speed, as ratios to the peers
	@$(bin)/hawser bench $(ARGS)

lint: setup ## ruff, mypy and the import rules
	@$(bin)/ruff check $(checked)
	@$(bin)/ruff format --check $(checked)
	@$(bin)/mypy $(checked)
	@$(bin)/lint-imports --no-logo

programs: setup ## the C++ programs of the tests, which build what they miss themselves
	@$(bin)/python -m tests.support.prebuild

docs: setup ## links and file names in the documents, and what is drawn in them
	@$(bin)/python scripts/check_docs.py
	@$(bin)/python scripts/draw_protocol.py --check

clean: ## remove everything that was built, .venv too
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
