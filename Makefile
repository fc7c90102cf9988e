# make setup | test | test-slow | demo          ARGS="..." is passed on, e.g. make test ARGS="-k ppo"
SHELL := /bin/bash
STAMP := .venv/.stamp
BIN := .venv/bin
# Tiny models on a shared machine: one thread each is faster than two.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false
# Programs started from here find the environment the way they would with it activated.
RUN := PATH="$(CURDIR)/$(BIN):$$PATH" VIRTUAL_ENV="$(CURDIR)/.venv"

.PHONY: setup test test-slow demo

setup: $(STAMP)

$(STAMP): setup.py constraints.txt scripts/setup.sh
	@bash scripts/setup.sh

test: setup
	@$(RUN) python -m pytest $(ARGS)

test-slow: setup
	@$(RUN) python -m pytest -m slow $(ARGS)

demo: setup
	@$(RUN) python -m tasks.qa_feedback.demo $(ARGS)
