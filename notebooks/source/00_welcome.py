# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: fewgpu
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 0 Welcome
#
# When you are through, in about 20 minutes, you will be able to
#
# - find your way through the lessons, the exercises and their checks;
# - say what this machine offers, and what plays a GPU where there is none;
# - read the picture that all lessons share: who does what, and when.
#
# Run the cells from top to bottom with Shift-Enter. (If the first one says `No module named 'fewgpu'`, choose the kernel
# *fewgpu* at the top right; `./workshop.py kernel` in a terminal puts it there.)

# %%
import torch

from fewgpu import get_devices, plot, schedule
from fewgpu.models import build
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop import check
from fewgpu.workshop.here import Here
from fewgpu.workshop.lesson import compare, workshop
from fewgpu.workshop.panel import Panel, Slider

# %% [markdown]
# ## Two questions
#
# A network may be **too large** for the GPU you have, or **too slow** to train on it. Both times the answer is to use
# several devices at once, and there are a handful of ways to do so. They differ in what they cut: the data, the model,
# the optimizer's memory, a single layer. These lessons build each way from nothing, measure it, and say what it is
# good for.
#
# You need no GPU for it. Where there is none, every core of the machine plays one: a *virtual device*, with a worker
# of its own, and with a memory of its own that is counted byte by byte and can run out.

# %% [markdown]
# ## Is this machine ready?
#
# The doctor looks at everything the kit needs. `ok` is fine, `warn` works but could be better, `BAD` will fail; what to
# do about it stands behind an arrow.

# %% tags=["yours"]
workshop('doctor')

# %% [markdown]
# And these are two devices to work with. The percentage is the speed that each keeps when both compute: 100 % is
# perfect, and at 50 % two together are no faster than one.

# %% tags=["measured"]
Here(2)

# %% [markdown]
# Without a GPU, the memory of a device is whatever you say. This one has 10 MB, and a tensor of 3 million 32-bit
# numbers does not fit. (Some words of the message come in later lessons.)

# %%
small, = get_devices(1, kind='cpu', memory_limit=10_000_000)
with small.active():            # inside, this cell computes on that device
    fits = torch.zeros(2_000_000)
    try:
        torch.zeros(3_000_000)
    except torch.OutOfMemoryError as error:
        print(error)

# %% [markdown]
# ## How lessons work
#
# Each lesson asks you to **predict** before you run a cell. Write your number in place of `None`: nobody sees it but
# you, and a wrong prediction is the part of a lesson that stays.
#
# Lessons also test **claims**: statements that lectures on this subject make, in one list for all lessons
# ([claims.py](../lib/fewgpu/workshop/claims.py)); *C11* is number 11 of it. Each lesson says which it puts to the test,
# and how it came out here: confirmed, not confirmed, or out of reach.
#
# Try a prediction. A number of the kind that fills a network's memory, `torch.float32`, takes 4 bytes.
#
# **Predict:** a ResNet-50 has 23.5 million parameters. How many MB are that?

# %%
my_guess = None          # MB

compare(my_guess, sum(weight.nbytes for weight in build('resnet50').parameters()) / 1e6, ' MB')

# %% [markdown]
# ## The picture that all lessons share
#
# One row a device, time from left to right. A light 2 is the *forward* of piece 2 of the data, a dark 2 its *backward*.
# What is left of a row is idle. At the top right, *makespan* is how long all of it takes, and *bubble* the idle share
# of all devices together.
#
# Here four devices hold a quarter of a network each, and every piece has to pass all of them: a *pipeline*. Nothing ran
# for this. It is computed from a plan, in *virtual time*: a forward takes 1 unit, a backward 2, on every machine.

# %%
timeline = simulate(schedule.gpipe(stages=4, micro_batches=8), Costs(F=1, B=2))
plot.timeline(timeline, title='A plan: four devices, eight pieces', unit='units')

# %% [markdown]
# Move the sliders. (On a page that only shows the lesson there are none: start it with `./workshop.py lab`.) With how
# many pieces are four devices busy for 90 % of the time?

# %%
def draw(devices, pieces):
    plan = simulate(schedule.gpipe(devices, pieces), Costs(F=1, B=2))
    return plot.timeline(plan, unit='units'), f'idle: {plan.bubble:.0%} of the time'


Panel(draw, devices=Slider(4, 1, 8), pieces=Slider(8, 1, 32))

# %% [markdown]
# ## Exercises
#
# In the exercises you write the functions that make all this work, in files in the folder `exercises`. A check tells
# you within seconds whether they are right, and if not, which misunderstanding it is. Open
# [exercises/01_microbatch.py](../exercises/01_microbatch.py), look at what it asks for, and see what the check says while
# it is not solved:

# %% tags=["yours"]
check(1)

# %% [markdown]
# You will solve it in lesson 1. These are all of them. In a terminal the same commands are `./workshop.py list`,
# `./workshop.py check 01`, `./workshop.py hint 01`; `./workshop.py watch` checks a file whenever you save it.

# %% tags=["yours"]
workshop('list')

# %% [markdown]
# ## Remember
#
# 1. Every lesson runs on every machine: a device is a GPU, or a core that plays one.
# 2. Measured times differ from run to run; virtual time, bytes and results do not. Stored outputs of measurements are
#    examples, and say so.
# 3. Predict, run, compare, then build it yourself and let it be checked.
#
# Next: [lesson 1](01_processing_pipelines.ipynb), pipelines without any network.
