# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint docs bench results chaos clean

demo: $(VENV)/.installed
	$(BIN)/progfed demo

test: $(VENV)/.installed-dev lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check src tests benchmarks scripts reliability examples
	$(BIN)/ruff check src tests benchmarks scripts reliability examples
	$(BIN)/mypy

# the documentation as a site that needs no network: open site/index.html
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/codec_costs.py
	$(BIN)/python benchmarks/data.py

# a day of training on real data; runs that are complete are not run again, others go on where they stopped
DATA ?= data
results: $(VENV)/.installed-dev
	for seed in 0 1; do \
	  $(BIN)/progfed run writers --seed $$seed --data $(DATA) --out runs/writers --keep 10 && \
	  $(BIN)/progfed run cifar10 --seed $$seed --data $(DATA) --out runs/cifar10 --keep 2 && \
	  $(BIN)/progfed run hippocampus --seed $$seed --data $(DATA) --out runs/hippocampus --keep 1 || exit; done
	$(BIN)/progfed run demo --compare --seeds 11,12,13 --out runs/demo
	$(BIN)/progfed run demo --run small-messages --seeds 11,12,13 --out runs/demo
	$(BIN)/progfed run defaults --seeds 11,12,13 --data $(DATA) --out runs/defaults
	$(BIN)/progfed run small_messages --seeds 0,1,2 --data $(DATA) --out runs/small_messages
	$(BIN)/progfed analyse runs/cifar10/progressive-seed0 runs/cifar10/restart-seed0 --data $(DATA) --examples 2000
	$(BIN)/progfed analyse runs/hippocampus --only slices --data $(DATA)
	$(BIN)/progfed report runs/writers runs/cifar10 runs/hippocampus --out runs/results
	$(BIN)/python scripts/results.py runs

# about three quarters of an hour of trials that try to break a run; see docs/reliability.md
chaos: $(VENV)/.installed-dev
	$(BIN)/python -m reliability.run

# torch first: with it in place no later range can pull in another build
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$$(grep '^torch==' constraints.txt)" -c constraints.txt
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install --quiet -e . -c constraints.txt
	touch $@

$(VENV)/.installed-dev: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install --quiet -e '.[plots,hdf5,medical,simulation,privacy,tensorboard,wandb,mlflow,peft,datasets,onnx,docs,dev]' -c constraints.txt
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) runs dist site .mypy_cache .ruff_cache .hypothesis
