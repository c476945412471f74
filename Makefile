# Tilescope's front door. `make help` lists what can be typed; .venv is set up by whatever first needs it.
#
# To add a verb of `python -m harness`, add one line `verb: $(ts.base) ; $(ts.run) ## ARGUMENTS | help` below.
# Names here begin with `ts.`, so that none is one that a person gives on the command line.

.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-print-directory
unexport PYTHONHOME PYTHONPATH

# The variables given on the command line, as shell-quoted NAME=VALUE words. Those of the environment do not count.
# They are not exported either: make would expand them for the environment, $(shell ...) included.
ts.given := $(sort $(foreach ts.v,$(filter-out PYTHON SHELL CURDIR MAKE% MFLAGS .%,$(.VARIABLES)),$(if $(filter command,$(origin $(ts.v))),$(ts.v))))
ts.words = $(foreach ts.v,$(ts.given),'$(subst ','\'',$(ts.v)=$(value $(ts.v)))')
unexport $(ts.given)

define ts.newline


endef
$(foreach ts.v,$(ts.given),$(if $(findstring $(ts.newline),$(value $(ts.v))),$(error $(ts.v) holds a line break)))
ts.plain := help setup lab test lint clean distclean
ifeq ($(filter-out $(ts.plain),$(or $(MAKECMDGOALS),help)),)
  $(if $(ts.given),$(error make $(or $(MAKECMDGOALS),help) takes no variables: $(ts.given)))
endif

$(if $(filter command,$(origin PYTHON)),$(if $(strip $(value PYTHON)),,$(error PYTHON= has no value)))
# An unknown notebook is refused before JupyterLab is installed.
ifneq ($(filter notebooks,$(MAKECMDGOALS)),)
  $(if $(filter NAME,$(ts.given)),$(if $(wildcard analysis/$(value NAME)*.ipynb),,$(error no notebook begins with '$(value NAME)': see analysis/)))
endif
ts.python := $(if $(filter command,$(origin PYTHON)),$(value PYTHON))
ts.redo := $(if $(ts.python),ts.always,$(shell [ -x .venv/bin/python ] || echo ts.always))
ts.base := .venv/.ready-dev
# Dask only for more than one worker or a cluster: WORKERS=0 and 1 are this process, and what is no number is refused without it.
ts.workers := $(if $(filter WORKERS,$(ts.given)),$(filter-out 1,$(filter 1% 2% 3% 4% 5% 6% 7% 8% 9%,$(value WORKERS))))
ts.cluster := $(if $(filter SCHEDULER,$(ts.given)),$(value SCHEDULER))
ts.scale := $(if $(ts.workers)$(ts.cluster),.venv/.ready-scale)
ts.run = @.venv/bin/python -m harness $@ $(ts.words)

list:     $(ts.base) ; $(ts.run) ## | the ladder: every stage, one line each
profile:  $(ts.base) ; $(ts.run) ## KERNEL= | what the hardware does with a stage and why; records the run
verify:   $(ts.base) ; $(ts.run) ## [KERNEL=] | many problems, ragged ones too: on a GPU where there is one, else simulated with every check on
sass:     $(ts.base) ; $(ts.run) ## KERNEL= | the machine code of a stage, with source lines
show:     $(ts.base) ; $(ts.run) ## RUN= | a recorded run, as it was printed
report:   $(ts.base) ; $(ts.run) ## RUN= or NAME= | a recorded run or an experiment as one HTML page that works offline
roofs:    $(ts.base) ; $(ts.run) ## [GPU=] | what this GPU's resources give at most, measured; bounds then use it
ledger:   $(ts.base) ; $(ts.run) ## [OUT=] | every quantitative statement of the articles, with verdict and evidence
bench:    $(ts.base) ; $(ts.run) ## | how long Tilescope itself takes on this machine; records the figures
readme:   $(ts.base) ; $(ts.run) ## | write the profile and the picture in README anew
ncu-command: $(ts.base) ; $(ts.run) ## KERNEL= | the Nsight Compute command for a stage, to use by hand
sanitize: $(ts.base) ; $(ts.run) ## KERNEL= | a stage under compute-sanitizer: memcheck, racecheck, initcheck, synccheck
doctor:   $(ts.base) ; $(ts.run) ## | what works on this machine, what does not, and the remedy
time:     $(ts.base) ; $(ts.run) ## KERNEL= [AGAINST=] | a stage's time beside cuBLAS's or another stage's (GPU)
ladder:   $(ts.base) ; $(ts.run) ## [SIZES=] | every stage and cuBLAS in one table, in README too (GPU)
steps:    $(ts.base) ; $(ts.run) ## [SIZE=] | what each rung of the ladder aimed at, and what moved; README=yes writes it there
compare:  $(ts.base) ; $(ts.run) ## A= B= | which stages are faster or slower in run B than in run A
experiment: $(ts.base) $(ts.scale) ; $(ts.run) ## [NAME=] [WORKERS=] | measure an experiment of experiments/, or list them; goes on after a kill
reproduce: $(ts.base) $(ts.scale) ; $(ts.run) ## EXP= | measure a recorded run of an experiment again; says what differs
index:    $(ts.base) ; $(ts.run) ## | every recorded run in one table
trace:    $(ts.base) ; $(ts.run) ## KERNEL= [TILE=] [SIZE=] | one block, phase by phase: loads, shared tiles, partial sums
setup:    $(ts.base) ## | .venv with the pinned dependencies; PYTHON= chooses the interpreter
	@echo ".venv is ready"

test: $(ts.base) .venv/.ready-tune .venv/.ready-scale ## | the tests that need no GPU; brings Optuna and Dask, which they test too
	@.venv/bin/python -m pytest -q -n auto --maxprocesses 8 -m "not gpu"

lint: $(ts.base) ## | ruff: checks and format
	@.venv/bin/python -m ruff check -q --output-format concise .
	@.venv/bin/python -m ruff format -q --check --output-format concise .

tune: $(ts.base) .venv/.ready-tune ; $(ts.run) ## KERNEL= [SIZE=] | search a stage's tunables: bounds anywhere, times on a GPU
notebooks: $(ts.base) .venv/.ready-lab ; $(ts.run) ## [NAME=] | execute the notebooks of analysis/ on recorded data
lab: $(ts.base) .venv/.ready-lab ## | JupyterLab in analysis/
	@.venv/bin/python -m jupyterlab analysis

clean: ## | remove caches and build leftovers; recorded runs and .venv stay
	@rm -rf .cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	@find . -path ./.venv -prune -o -path ./.git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## | clean, and remove .venv
	@rm -rf .venv

help: ## | this list
	@echo 'Tilescope: what a CUDA matmul kernel does with the hardware, and why.'
	@echo
	@echo '  make profile KERNEL=tiled2d'
	@echo
	@sed -n 's/^\([a-z][a-z-]*\):.* ## \(.*\)| \(.*\)/\1 \2|\3/p' Makefile | while IFS='|' read -r left right; do printf '  %-18s %s\n' "$$left" "$$right"; done
	@echo
	@echo 'Variables count only on the command line. KERNEL is a name that `make list` shows, or a path to a stage file.'
	@echo 'SIZE, or M N K; ALPHA BETA SEED; DEVICE=h200, h100, a100, rtx4090, ...; BACKEND=auto, sim, gpu; NVCC; OUT; JSON;'
	@echo 'any other is a tunable of the stage (TILE=16). All options of a verb: .venv/bin/python -m harness VERB --help'

.venv/.ready-dev .venv/.ready-lab .venv/.ready-scale .venv/.ready-tune: .venv/.ready-%: pyproject.toml constraints.txt $(ts.redo)
	@sh harness/bootstrap.sh '$(subst ','\'',$(ts.python))' $*

.PHONY: ts.always $(shell sed -n 's/^\([a-z][a-z-]*\):.* ## .*/\1/p' Makefile)
