# Every target makes its own virtual environment: on a fresh machine with python3, make and a C++ compiler each is one
# command. CMake and ninja come with the build where they are missing.

PYTHON ?= python3
# SMALL=1 is for a small machine, or one with other things to do: one test at a time, and a tenth of the simulated runs.
SMALL ?=
# Stealing: what is left when one worker has done its share is divided again; the last tenth is simulated runs, one by one.
PYTEST_ARGS ?= -n $(if $(SMALL),1,auto) --dist worksteal
ARGS ?=
export PCCL_TEST_SMALL := $(SMALL)

BIN := .venv/bin
# The package alone, which is enough for most; and what others need besides, by the names that pyproject.toml has for it.
INSTALLED := .venv/.installed
DEV := .venv/.extra-dev
NUMPY := .venv/.extra-numpy
FRAMEWORKS := .venv/.extra-huggingface .venv/.extra-lightning
RAY := .venv/.extra-ray
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Programs in C that are no part of the package: examples, tests, benchmarks.
PROGRAMS := $(sort $(wildcard examples/c/*.c tests/c_api/*.c bench/*.c)) tests/device/device.cpp
NATIVE := $(sort $(wildcard native/*.cpp native/*.hpp native/c_api/*.[ch] include/*.h))

.DEFAULT_GOAL := help
.PHONY: help test test-device test-frameworks test-ray test-hsdp check format demo demo-train bench-train hide-train churn-train intellect sim hostile aimed fuzz stress stress-short sanitize bench clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

test: check ## linters, then all tests (SMALL=1 on a small machine; PYTEST_ARGS='tests/unit -x' for some)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-device: $(DEV) ## tensors on a device of our own; PCCL_TEST_DEVICE=cuda (xpu, mps) for a real one
	$(BIN)/python -m pytest tests/device $(ARGS)

test-frameworks: $(DEV) $(FRAMEWORKS) ## Hugging Face's Trainer and Lightning as peers: installs both, a few minutes
	$(BIN)/python -m pytest tests/frameworks $(ARGS)

test-ray: $(DEV) $(RAY) ## a local Ray cluster whose workers and master are killed: installs Ray, some minutes
	$(BIN)/python -m pytest tests/ray_cluster $(ARGS)

test-hsdp: $(DEV) ## sharded models on nodes of four ranks, and twenty kills of a rank; some minutes
	PCCL_TEST_HSDP=1 $(BIN)/python -m pytest tests/hsdp $(ARGS)

check: $(DEV) ## linters only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(NATIVE) $(PROGRAMS)
	$(BIN)/codespell

format: $(DEV) ## rewrite the sources the way the linters want them
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE) $(PROGRAMS)

demo: $(INSTALLED) ## a master and real peers that train, die and come later
	$(BIN)/pccl demo $(ARGS)

demo-train: $(DEV) ## a char-GPT that three peers train; one is killed, one joins, the loss falls
	$(BIN)/python examples/demo_train.py $(ARGS)

bench-train: $(DEV) ## loss and bytes of each way to train: table and plot; hours, can be stopped and started again
	$(BIN)/python bench/training_loss.py $(ARGS)

hide-train: $(DEV) ## how much of the communication hides behind steps, over an emulated network (root; some minutes)
	$(BIN)/python bench/training_hiding.py $(ARGS)

churn-train: $(DEV) ## training with a kill or a join every 10 s, 5 minutes a mode (ARGS='--help' for one mode, or the master alone)
	$(BIN)/python bench/training_churn.py $(ARGS)

intellect: $(DEV) ## INTELLECT-1 in miniature: 14 peers in three emulated regions come and go (root; ten minutes)
	$(BIN)/python bench/intellect.py $(ARGS)

sim: $(INSTALLED) ## the simulator (ARGS='--help' for its options)
	$(BIN)/python -m tests.simulation $(ARGS)

hostile: $(INSTALLED) ## 10,000 schedules with enemies in each (ARGS='--seeds 500 --first 7000' for others)
	$(BIN)/python -m tests.simulation --hostile --seeds 10000 $(ARGS)

aimed: $(INSTALLED) ## faults at every step of small runs, some 12,000 of them (ARGS='--sample 500' for some)
	$(BIN)/python -m tests.simulation.aimed $(ARGS)

bench: $(INSTALLED) ## cost of a vote round, in JSON lines
	$(BIN)/python bench/control.py $(ARGS)

fuzz: $(NUMPY) ## random and spoiled bytes in front of every parser: 10^6 cases or an hour (ARGS='--seconds 60' for less)
	$(BIN)/python -m tests.fuzz --cases 1000000 --seconds 3600 $(ARGS)

stress: $(NUMPY) ## kills of real peers, every sum checked (ARGS='--help' for its options)
	$(BIN)/python -m tests.stress $(ARGS)

stress-short: $(NUMPY) ## 300 kills, some minutes (ARGS='--seed 7' for others)
	$(BIN)/python -m tests.stress --peers 4 --kills 300 --kill-every 0.2-0.8 --stop --seed 1 $(ARGS)

sanitize: sanitize-address sanitize-thread ## tests of the native part under both sanitizers (some minutes)

# One suppression, of glibc; neither sanitizer has anything to say about CPython or numpy here. Leaks are not looked for,
# because CPython keeps memory until its end. The C++ library is loaded first, or the sanitizer does not find how to throw.
# Reports go to files, for pytest swallows what a test that passes has written; the sanitizer makes the exit code. Under them an abort may take ten times as long.
RUNTIME_address := libasan.so
RUNTIME_thread := libtsan.so
sanitize-%: $(DEV)
	$(PIP) --no-deps --upgrade --target build/sanitize-$* \
	    -C build-dir=build/$* -C cmake.define.PCCL_SANITIZE=$* -C cmake.build-type=RelWithDebInfo -C install.strip=false .
	rm -f build/report-$**
	LD_PRELOAD="$$($(CXX) -print-file-name=$(RUNTIME_$*)) $$($(CXX) -print-file-name=libstdc++.so.6)" \
	    ASAN_OPTIONS=detect_leaks=0:log_path=build/report-address \
	    TSAN_OPTIONS=log_path=build/report-thread:suppressions=$(CURDIR)/tests/native/tsan.supp:print_suppressions=0 \
	    PCCL_TEST_SLOWNESS=10 PCCL_TEST_NATIVE=$$(ls build/sanitize-$*/pccl/_native*.so) \
	    $(BIN)/python -m pytest tests/native tests/security/test_secured_*.py --timeout 600 $(PYTEST_ARGS) || { cat build/report-$**; exit 1; }
	! cat build/report-$** 2>/dev/null

clean: ## remove all that these targets made, the virtual environment too
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# Python sources are used in place; only what is compiled or declared makes an installation stale.
$(INSTALLED): pyproject.toml CMakeLists.txt $(NATIVE)
	$(PYTHON) -m venv .venv
	$(PIP) --editable .
	touch $@

# Not as `.[dev]`, which would build the package once more.
LIST_EXTRA := import sys, tomllib; \
    print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"][sys.argv[1]], sep="\n")
.venv/.extra-%: pyproject.toml | $(INSTALLED)
	$(BIN)/python -c '$(LIST_EXTRA)' $* > .venv/extra-$*.txt
	$(PIP) --requirement .venv/extra-$*.txt
	touch $@
