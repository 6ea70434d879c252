# Headrace: everything a developer does, one word each. `make` alone lists the words.
# demo and test work as the first command in a fresh clone: they set up .venv by themselves.
# A word's options go through ARGS, for example: make demo ARGS="--rtt 150ms"

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV ?= .venv
READY := $(VENV)/.ready
PY := $(VENV)/bin/python
ARGS ?=

.PHONY: help setup demo experiment test slow test-slow check lint types arch bench replay fuzz sim chaos release clean

help: ## list these words
	@if [ -t 1 ] && [ -z "$${NO_COLOR:-}" ]; then on=$$'\033[36m' off=$$'\033[0m'; else on= off=; fi
	sed -nE 's/^([a-z]+):[^#]*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r word meaning; do
		printf '  %s%-10s%s  %s\n' "$$on" "$$word" "$$off" "$$meaning"
	done

setup: $(READY) ## make .venv and install what everything below needs
	@echo "setup: $(VENV) is ready"

$(READY): pyproject.toml .ci/setup
	@bash .ci/setup $(VENV)
	touch $@

demo: $(READY) ## real text, a hub, 60 ms, a spoke, a DataLoader: local, cold, warm (ARGS="--small" is quicker)
	@$(PY) -m bench.demo $(ARGS)

experiment: $(READY) ## the same training job beside the data and 60 ms away, all runs, one report (ARGS="--small" tries it)
	@$(PY) -m bench.experiment $(ARGS)

# Two at a time: most of them wait for a timer, a socket or a process. On 2 cores 590 s became 430 s. In the order of the files: sorted
# by their number of tests, those with one long test would come last, when there is nothing left to do beside them.
test: $(READY) ## all tests but the slow ones
	@$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

slow: $(READY) ## the tests that take minutes: several hub processes, doctor, Prometheus, the experiment
	@$(PY) -m pytest -m slow $(ARGS)

test-slow: slow

check: lint types arch ## lint, types and arch

lint: $(READY) ## ruff: rules and formatting
	@$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(READY) ## mypy, strict
	@$(PY) -m mypy
	$(PY) -m mypy -p bench

arch: $(READY) ## import-linter: the arrows between the rooms
	@$(VENV)/bin/lint-imports

bench: $(READY) ## read speed through the mount, as ratios; JSON in bench/out (bench/RESULTS.md)
	@$(PY) -m bench.read_path $(ARGS)

replay: $(READY) ## what fetching ahead is worth: all access patterns x policies, simulated (ARGS="--patterns mds")
	@$(PY) -m bench.replay $(ARGS)

fuzz: $(READY) ## property tests with fresh seeds and FACTOR times their examples (default 50)
	@HEADRACE_FUZZ_FACTOR=$${FACTOR:-50} $(PY) -m pytest -p bench.fuzz -q $(ARGS)

sim: $(READY) ## the whole system in one process, faults and all, seed after seed (SEED=7 replays one; ARGS="--for 5m" or "--seeds 100")
	@$(PY) -m bench.simulation $(if $(SEED),--seed $(SEED)) $(ARGS)

chaos: $(READY) ## everything breaks, every byte is checked: 30 minutes (ARGS="--for 5m --seed 7 --faults wire_reset,hub_killed")
	@$(PY) -m bench.chaos $(ARGS)

release: $(READY) ## source distribution, wheel, notes and sums of the version that CHANGELOG.md begins with, in dist/
	@$(PY) deploy/release.py dist $(ARGS)

clean: ## remove .venv, caches and results
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache bench/out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
