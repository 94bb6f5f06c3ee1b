# Each target first does what it depends on; running one again does no work twice.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
# processes of `make test`: twice the cores of a small machine, as most of its tests wait for something
JOBS ?= 4
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# the processor that `make wheels` is for: aarch64 or x86_64
ARCH ?= $(shell uname -m)
# packages that `make wheels` compiles Vulkan with; empty: without it, as for another machine than this
VULKAN ?= $(if $(filter $(ARCH),$(shell uname -m)),build/vulkan)
# what `make dist` builds first; empty: the wheel has the chat page that is there, else the small one
CHAT ?= chat
# packages to install on Debian and Ubuntu: a compiler, Python's venv, and what tests in network namespaces run.
# miniupnpd-nftables is the program alone: the service that would start it is in the package miniupnpd
PACKAGES := build-essential ca-certificates git iproute2 miniupnpd-nftables nftables python3-venv

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=$(PYTHON) makes .venv; MESHD_CACHE=DIR holds native builds and models, beside other checkouts';"
	@echo "  JOBS=$(JOBS) is the number of processes of make test."

$(INSTALLED): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[build,dev]'
	@touch $@

setup: ## on a fresh Debian or Ubuntu: install compiler, venv and tools of the network tests, then make .venv
	$(if $(filter 0,$(shell id -u)),,sudo) apt-get update -qq
	$(if $(filter 0,$(shell id -u)),,sudo) apt-get install -y -qq --no-install-recommends $(PACKAGES)
	@$(MAKE) $(INSTALLED)

build: $(INSTALLED) ## set up .venv and build llama.cpp into the user's cache
	@$(BIN)/meshd native build

# taken where there is neither a build nor an installed wheel that fits; where none of these fits, the demo compiles
WHEELS = $(wildcard dist/meshd_native-*.whl wheelhouse/meshd_native-*.whl)
INSTALL_WHEEL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall

demo: $(INSTALLED) ## split a real model over two local nodes and answer a chat; takes a wheel of programs, else compiles
	@for wheel in $(WHEELS); do \
		$(BIN)/meshd native info >/dev/null 2>&1 || { echo "installing $$wheel"; $(INSTALL_WHEEL) "$$wheel" || true; }; \
	done
	@$(BIN)/meshd demo

demo-nat: build ## the same between two homes behind NATs, with a relay (root, Linux)
	@$(BIN)/python -m tests.netns.demo

mesh: $(INSTALLED) ## build the backend in native/mesh, with its own tests
	@$(BIN)/python -m tests.native.build

races: $(INSTALLED) ## build the tests of native/mesh with TSan, and run them: what threads do to the same memory
	@$(BIN)/python -m tests.native.races

follow: $(INSTALLED) ## build and test native/mesh on another tree of llama.cpp: make follow SOURCE=DIR
	@$(BIN)/python -m tests.native.follow $(SOURCE)

follow-all: $(INSTALLED) ## the same on the releases of native/FOLLOW.toml and on the pin; run it weekly
	@$(BIN)/python -m tests.native.follow --releases

test: build mesh ## run every test this machine can run, and report what was skipped
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

watch: $(INSTALLED) ## run the unit tests of what differs from the last commit, again whenever a file is saved
	@$(BIN)/python -m tests.watch

check: $(INSTALLED) ## format, lint, types (Linux and macOS), layers
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror native/mesh/*.cpp native/mesh/*.h native/mesh/tests/* native/fuzz/*.cpp native/fuzz/*.h wheels/*.cpp
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin
	$(BIN)/lint-imports

reference: $(INSTALLED) ## regenerate the reference in docs/ and configs/: settings, options, log events, limits, status, layers
	@$(BIN)/python -m tests.reference --write

bench: build ## compare meshd with stock llama.cpp, and write docs/lab/performance.md (Linux, two idle cores)
	@$(BIN)/python -m tests.bench.performance --write docs/lab/performance.md

soak: build ## the long runs: workers lost a thousand times, links cut for a thousand tokens, fifty nodes, a thousand on a virtual clock
	MESHD_SOAK=1 $(BIN)/python -m pytest --losses docs/lab/soak.md tests/sim tests/netns/test_traps.py tests/netns/test_ready.py tests/hostile/test_member.py \
		tests/e2e/test_mesh_durable.py tests/e2e/test_mesh_many.py tests/e2e/test_mesh_models.py \
		tests/e2e/test_mesh_losses.py tests/e2e/test_mesh_lost_workers.py tests/e2e/test_mesh_continued.py tests/e2e/test_mesh_open_answers.py tests/e2e/test_mesh_server_sampling.py tests/e2e/test_mesh_structured_answers.py tests/e2e/test_mesh_server_liar.py tests/e2e/test_mesh_hung.py tests/e2e/test_mesh_hostile_requests.py tests/e2e/test_malformed_requests.py tests/e2e/test_templates.py tests/e2e/test_agents.py \
		tests/e2e/test_mesh_push.py tests/e2e/test_mesh_compressed.py tests/e2e/test_mesh_tensor_losses.py \
		tests/e2e/test_mesh_activations.py tests/e2e/test_mesh_weights.py \
		tests/e2e/test_mesh_kept.py
	$(BIN)/python -m tests.sim.scale --members 10 50 200 1000

fuzz: $(INSTALLED) ## hostile input: a million for the parsers, ten million each for nodes, mesh-server and its daemon
	$(BIN)/python -m tests.fuzz
	$(BIN)/python -m tests.hostile --messages 10000000 --jobs 2
	$(BIN)/python -m tests.fuzz.native --frames 10000000 --jobs 2
	$(BIN)/python -m tests.fuzz --inputs 10000000 --target mesh-talk --target mesh-answers \
		--target mesh-view --target mesh-pushed

nat-grid: $(INSTALLED) ## join real nodes behind every pair of NATs, and write docs/lab/nat-grid.md (root, Linux)
	@$(BIN)/python -m tests.netns.grid --write docs/lab/nat-grid.md

chat: $(INSTALLED) ## build the pages that the gateway serves: llama.cpp's web UI, and that of the mesh (Node.js 20 or later, npm)
	@$(BIN)/python -m wheels.mesh_page
	@$(BIN)/python -m wheels.chat_page

dist: $(INSTALLED) $(CHAT) ## build wheel and source archive in dist/, and try the wheel in a new venv
	rm -rf dist build/dist
	$(BIN)/python -m hatchling build
	$(PYTHON) -m venv build/dist
	build/dist/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	build/dist/bin/meshd --version

wheels: $(INSTALLED) $(VULKAN) ## build the wheel of meshd-native in dist/: programs for Linux machines without a compiler
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[build,wheels]'
	$(BIN)/python -m wheels --machine $(ARCH) $(if $(VULKAN),--vulkan $(VULKAN))

cuda-wheel: $(INSTALLED) ## build the wheel of meshd-native-cuda13 in dist/, with NVIDIA's compiler from PyPI
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cuda-build]'
	$(BIN)/python -m wheels.cuda

# from Debian 13, whatever Debian this is: shaders' compiler of older ones knows no cooperative matrices
build/vulkan:
	rm -rf $@.part
	mkdir -p $(@D)
	mmdebstrap --variant=extract --include=glslc,libvulkan-dev,spirv-headers \
		--setup-hook='sed -n "s/^deb /deb-src /p" "$$1/etc/apt/sources.list" > "$$1/etc/apt/sources.list.d/source.list"' \
		--extract-hook='cd "$$1" && APT_CONFIG="$$MMDEBSTRAP_APT_CONFIG" apt-get source --quiet --download-only vulkan-loader' \
		trixie $@.part
	mv $@.part $@

clean: ## remove generated files in this directory (the user's cache stays)
	rm -rf $(VENV) build dist meshd/gateway/chat meshd/gateway/mesh .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help setup build demo demo-nat mesh races follow follow-all test watch check reference bench soak fuzz nat-grid chat dist wheels cuda-wheel clean
