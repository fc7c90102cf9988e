# make setup | lint | test | test-slow | test-quantize | processors | faults | demo | real | tasks | feedback-check | tools-check | probe | science | docs | bench | gpu | bench-peers | families
# ARGS="..." gives arguments to the program, e.g. make test ARGS="-k ppo".
SHELL := /bin/bash
STAMP := .venv/.stamp
BIN := .venv/bin
# With tiny models, one thread per process is faster than two.
export OMP_NUM_THREADS ?= 1
# Threads that wait spin briefly, then sleep: see `wait_passively` in fgrlhf/cli/main.py.
ifndef OMP_WAIT_POLICY
export OMP_WAIT_POLICY := passive
export GOMP_SPINCOUNT ?= 1000
endif
export TOKENIZERS_PARALLELISM := false
# Tests start many processes, each of which would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
# Programs run as if the environment were activated.
RUN := PATH="$(CURDIR)/$(BIN):$$PATH" VIRTUAL_ENV="$(CURDIR)/.venv"
TYPES := $(RUN) basedpyright --level error

.PHONY: feedback-check vllm-check tools-check setup lint style test test-slow test-quantize processors faults demo real tasks probe science docs bench gpu gpu-tests bench-peers families

setup: $(STAMP)

$(STAMP): setup.py constraints.txt scripts/setup.sh
	@bash scripts/setup.sh

# Formatting, lint rules and types (configured in pyproject.toml).
lint: style
	@$(TYPES)

style: setup
	@$(RUN) ruff format --check --quiet . || { echo "run: ruff format ." >&2; exit 1; }
	@$(RUN) ruff check --quiet .

# Types are checked while the tests run; their errors are printed after the tests.
# The tests of a file share a process, since they share expensive fixtures. Files keep their order: by default, xdist puts
# those with few tests last. Some of them take long, and the other processes would wait for them. A process that crashes or
# hangs (pytest.ini) is not replaced: xdist would run the same test again. Tests often wait, for a browser or another
# program, so four processes keep two cores busy. WORKERS=0 runs all tests in one process, for a debugger.
WORKERS ?= 4
PYTEST := python -m pytest --dist loadfile --no-loadscope-reorder --max-worker-restart 0
test: style
	@$(RUN) python -m scripts.browser
	@$(TYPES) >.venv/types.log 2>&1 & \
	$(RUN) $(PYTEST) --numprocesses $(WORKERS) $(ARGS); tests=$$?; \
	wait $$! || { cat .venv/types.log >&2; exit 1; }; \
	exit $$tests

test-slow: setup
	@$(RUN) python -m pytest -m slow $(ARGS)

# Layers in 4 bits and the 8-bit optimiser. Installs the extra `quantize`.
test-quantize: setup
	@$(RUN) python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[quantize]'
	@$(RUN) python -m pytest tests/test_quantized.py $(ARGS)

# The tests that compare numbers, as if on other processors. ARGS="only=[avx2,sse] tests='-k gpt2'" selects some.
processors: setup
	@$(RUN) python -m scripts.processors $(ARGS)

# Kills, damaged files, full disks, odd settings; half an hour. See faults/README.md.
# ARGS="kinds=disk seed=1 scale=0.1" runs a part of it.
faults: setup
	@$(RUN) python -m faults $(ARGS)

# SCALE=small runs it with a pretrained language model, in hours.
demo: setup
	@$(RUN) python -m tasks.experiments demo $(if $(SCALE),scale=$(SCALE)) $(ARGS)

# RL on a real pretrained language model: fine-grained beside holistic rewards. ARGS="task=sentiment" selects the task.
real: setup
	@$(RUN) python -m tasks.experiments real $(ARGS)

# Every task at mini scale, and one table. ARGS="only=[hanoi,numbers]" selects tasks.
tasks: setup
	@$(RUN) python -m tasks.experiments mini $(ARGS)

# Probe the reward models of `make demo` with adversarial answers.
probe: setup
	@$(RUN) python -m tasks.experiments.probe data_dir=outputs/qa_feedback/mini/data output_dir=outputs/qa_feedback/mini $(ARGS)

# Reward models and RL with five seeds, on the mini world of `make demo`.
science: setup
	@$(RUN) python -m tasks.experiments science $(ARGS)

# HTML pages of the docstrings of all public modules, in outputs/api. Installs the extra `docs`.
docs: setup
	@$(RUN) python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@$(RUN) python -m pdoc --docformat google -o outputs/api fgrlhf sft reward_modeling interface_html
	@echo "outputs/api/index.html"

# Time and memory of a training step, compared with the published implementation. ARGS="sizes=tiny reps=5"; --help lists
# the keys.
bench: setup
	@$(RUN) python -m benchmarks.bench $(ARGS)

# Everything that must be measured on a GPU, in pieces of at most nine minutes; finished pieces are not run again.
# ARGS="minutes=9" stops after nine minutes, ARGS="rehearsal=true" tries it with tiny models.
gpu: setup
	@$(RUN) python -m benchmarks.gpu $(ARGS)

# The tests of the programs that train and evaluate, on a GPU.
GPU_TESTS = on_gpu test_run_sft test_run_fg_rm test_run_pref_rm test_train_rl test_train_dpo test_generate \
	test_evaluate test_best_of_n test_reward_models
gpu-tests: setup
	@$(RUN) python -c 'import sys, torch; torch.cuda.is_available() or sys.exit("error: PyTorch sees no GPU here")'
	@$(RUN) python -m pytest -n $(WORKERS) $(GPU_TESTS:%=tests/%.py) $(ARGS)

# The long tests of the feedback server: 200 kills, 32 annotators, 5,000 random requests. Installs the extra `check`.
feedback-check: setup
	@$(RUN) python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[check]'
	@FGRLHF_FEEDBACK_CHECK=1 $(RUN) python -m pytest -s tests/test_server_durable.py tests/test_server.py tests/test_served_pages.py $(ARGS)

# Sampling by a real vLLM server: FGRLHF_VLLM names the program `vllm` of an environment of its own (docs/scale.md).
vllm-check: setup
	@$(RUN) python -c 'import os, sys; os.environ.get("FGRLHF_VLLM") or sys.exit("error: FGRLHF_VLLM is not set: set it to the program vllm of its own environment (docs/scale.md)")'
	@$(RUN) python -m pytest -m slow tests/test_real_vllm.py $(ARGS)

# Our exports in real annotation tools, and theirs back. Installs the tools (3 GB) in environments of their own, in the
# folder FGRLHF_TOOLS, and starts their servers on loopback.
tools-check: export FGRLHF_TOOLS ?= $(HOME)/.cache/fgrlhf/tools
tools-check: setup
	@$(RUN) python -m scripts.tools
	@$(RUN) python -m pytest -m slow tests/test_real_tools.py $(ARGS)

# Compare with other packages on equal work; needs the extra `peers`. ARGS="tune=true" first tries all settings of both sides.
bench-peers: setup
	@$(RUN) python -m benchmarks.peers $(ARGS)

# the table of docs/models.md, from tiny random models of every type that transformers knows
families: setup
	@$(RUN) python -m benchmarks.families $(ARGS)
