# make setup | lint | test | test-slow | faults | demo | feedback-check | probe | science | bench | bench-peers | profile   ARGS="..." is passed on, e.g. make test ARGS="-k ppo"
SHELL := /bin/bash
STAMP := .venv/.stamp
BIN := .venv/bin
# Tiny models on a shared machine: one thread each is faster than two.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false
# Programs started from here find the environment the way they would with it activated.
RUN := PATH="$(CURDIR)/$(BIN):$$PATH" VIRTUAL_ENV="$(CURDIR)/.venv"

.PHONY: feedback-check setup lint test test-slow faults demo probe science bench profile bench-peers

setup: $(STAMP)

$(STAMP): setup.py constraints.txt scripts/setup.sh
	@bash scripts/setup.sh

# Format, pyflakes and friends, types (pyproject.toml).
lint: setup
	@$(RUN) ruff format --check --quiet . || { echo "run: ruff format ." >&2; exit 1; }
	@$(RUN) ruff check --quiet .
	@$(RUN) basedpyright --level error

# A file's tests stay in one process, since they share what is costly to make. WORKERS=0: all in this one, for a debugger.
WORKERS ?= 2
test: lint
	@$(RUN) python -m pytest --numprocesses $(WORKERS) --dist loadfile $(ARGS)

test-slow: setup
	@$(RUN) python -m pytest -m slow $(ARGS)

# Kills, damaged files, full disks, hostile folders, nonsense settings: half an hour. ARGS="kinds=rows seed=1 scale=0.1", faults/README.md
faults: setup
	@$(RUN) python -m faults $(ARGS)

demo: setup
	@$(RUN) python -m tasks.qa_feedback.demo $(ARGS)

# What the reward models of `make demo` say of answers that game them.
probe: setup
	@$(RUN) python -m tasks.qa_feedback.data.probe data_dir=outputs/qa_feedback/mini/data output_dir=outputs/qa_feedback/mini $(ARGS)

# Five seeds of reward models and RL on the world of `make demo`.
science: setup
	@$(RUN) python -m tasks.qa_feedback.science $(ARGS)

# A step beside the published way of computing it: seconds, memory. ARGS="sizes=tiny reps=5", --help lists the keys.
bench: setup
	@$(RUN) python -m benchmarks.bench $(ARGS)

# Where a step's time goes. ARGS="size=t5_small prompts=1"
profile: setup
	@$(RUN) python -m benchmarks.profile $(ARGS)

# The long versions of the feedback server's tests: 200 kills, 32 annotators, 5,000 random requests. Installs the extra `check`.
feedback-check: setup
	@$(RUN) python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[check]'
	@FGRLHF_FEEDBACK_CHECK=1 $(RUN) python -m pytest -s tests/test_server_durable.py tests/test_server.py tests/test_served_pages.py $(ARGS)

# Ours beside other packages on equal work; needs the extra `peers`. ARGS="--tune" tries all their settings first.
bench-peers: setup
	@$(RUN) python -m benchmarks.peers $(ARGS)
