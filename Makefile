# `make` lists what there is. Everything works on a bare Debian: `setup` installs what is missing.

CARGO ?= cargo
# what `scripts/setup.sh` may have installed
export PATH := $(PATH):$(HOME)/.cargo/bin
PREFIX ?= /usr/local
# where cargo puts what it builds
TARGET := $(or $(CARGO_TARGET_DIR),target)

HOST = $(shell rustc -vV | sed -n 's/^host: //p')

ARGS ?=
MINUTES ?= 10
NODES ?= 5
SEED ?= $(shell date +%s)
KINDS ?=
RUNS ?= 1000000

.DEFAULT_GOAL := help
.PHONY: help setup build static demo test lint fmt bench bench-locality bench-merging bench-peers bench-remote bench-near bench-crowd bench-union bench-workflow bench-adopt suites sim chaos fuzz install clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing, or say what to install
	@scripts/setup.sh build

build: setup ## Build the release binary
	$(CARGO) build --locked --release --package perigee

static: setup ## Build a binary that needs no library of its host, in target/static: what `perigee union` carries runs anywhere
	$(CARGO) build --locked --release --package perigee --target $(HOST) --target-dir $(TARGET)/static \
		--config 'target.$(HOST).rustflags=["-C","target-feature=+crt-static"]'
	cp $(TARGET)/static/$(HOST)/release/perigee $(TARGET)/static/perigee

demo: build ## Three nodes, a mount, a real source tree, and a node killed
	@scripts/setup.sh mount
	@scripts/demo.sh $(TARGET)/release/perigee

test: ## Every test, with real mounts
	@scripts/setup.sh test
	@CARGO="$(CARGO)" scripts/test.sh

lint: setup ## Format, clippy, arrows between rooms, licences, scripts
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- --deny warnings
	$(CARGO) xtask arrows
	$(CARGO) xtask licences
	$(CARGO) xtask promises
	@scripts/lint-scripts.sh

fmt: ## Format the code
	$(CARGO) fmt --all

bench: build ## Measure the mount beside the disk beneath; ARGS go to the benchmark
	@scripts/setup.sh bench
	@scripts/bench.sh $(ARGS)

bench-locality: build ## Measure writes of hosts 1 ms apart: at home, far from the owner, by turns; ARGS
	@scripts/setup.sh test
	@scripts/bench-locality.sh $(ARGS)

bench-merging: build ## Measure small files over links of 1 ms, with messages merged in several ways; ARGS
	@scripts/setup.sh test
	@scripts/bench-merging.sh $(ARGS)

bench-peers: build ## Measure beside the disk, a FUSE file system that does nothing, and installed peers; ARGS
	@scripts/setup.sh bench
	@scripts/bench-peers.sh $(ARGS)

bench-remote: build ## Measure a large file on another host beside one TLS stream; ARGS
	@scripts/setup.sh test
	@scripts/bench-remote.sh $(ARGS)

bench-near: build ## Measure which of two stores serves a host, and how right the map of the network is; ARGS
	@scripts/setup.sh test
	@scripts/bench-near.sh $(ARGS)

bench-crowd: build ## Measure a directory of a million files, and the memory that they need; ARGS
	@scripts/setup.sh test
	@scripts/bench-crowd.sh $(ARGS)

bench-union: build ## Measure the union beside sshfs and mergerfs, and names by many clients at four sites; ARGS
	@scripts/setup.sh test
	@scripts/setup.sh bench
	@scripts/bench-union.sh $(ARGS)

bench-workflow: build ## Measure some 400 tasks over a union, on their data and by turns; ARGS
	@scripts/setup.sh test
	@scripts/bench-workflow.sh $(ARGS)

bench-adopt: build ## Measure how long a directory takes to become one of a cluster; ARGS
	@scripts/setup.sh test
	@scripts/bench-adopt.sh $(ARGS)

suites: build ## Outside suites on the mount: pjdfstest and fsx
	@scripts/setup.sh test
	@scripts/suites.sh $(TARGET)/release/perigee

sim: setup ## Run simulator seeds; ARGS="--seed 41" replays one
	$(CARGO) run --locked --release --package perigee-sim -- $(ARGS)

chaos: build ## Strike a cluster under programs that check every promise; MINUTES (10), NODES (5), SEED, KINDS
	@scripts/setup.sh test
	$(CARGO) build --locked --release --package perigee-testbed
	$(TARGET)/release/perigee-testbed chaos $(MINUTES) $(NODES) $(SEED) $(KINDS)

fuzz: setup ## Give every decoder RUNS (1000000) inputs that nobody would write; SEED
	PERIGEE_FUZZ_RUNS=$(RUNS) PERIGEE_FUZZ_SEED=$(SEED) $(CARGO) test --locked --workspace --exclude perigee-fuzz fuzz_ -- --nocapture

install: build ## Install below PREFIX (/usr/local), with man pages, completions and mount helper
	install -D -m 755 $(TARGET)/release/perigee $(DESTDIR)$(PREFIX)/bin/perigee
	install -d $(DESTDIR)/usr/sbin $(DESTDIR)$(PREFIX)/share/man/man1
	ln -sf $(PREFIX)/bin/perigee $(DESTDIR)/usr/sbin/mount.perigee
	$(TARGET)/release/perigee man $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	$(TARGET)/release/perigee completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/perigee

clean: ## Remove what was built
	$(CARGO) clean
