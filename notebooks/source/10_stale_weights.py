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
# # 10 PipeDream and 2BW: pipelines that never run empty
#
# When you are through, in about 40 minutes (an exercise of 35 comes on top), you will be able to
#
# - say which weights a micro-batch meets in its forward and in its backward, and why it matters;
# - choose between stashing, vertical sync and two versions by what they keep and how late their gradients are;
# - tell from a learning rate and a delay whether training with late gradients will diverge;
# - say what PipeMare does about it without keeping old weights.

# %%
from functools import partial
from statistics import fmean

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from fewgpu import get_devices, plot
from fewgpu.pipeline import Pipeline
from fewgpu.pipemare import delays, rescheduled, stability_limit
from fewgpu.schedule import (one_f_one_b, pipedream, pipemare, two_bw, versions_alive, with_recompute,
                             with_updates)
from fewgpu.schedule.long_runs import following
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop import check
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.demos.pipemare import WAYS, last_quarter, training
from fewgpu.workshop.digits import mini_batches, network, smooth
from fewgpu.workshop.late import gradient_error
from fewgpu.workshop.lesson import Source, compare
from fewgpu.workshop.panel import Panel, Slider
from fewgpu.workshop.panels import staleness

claims = Claims()      # what we find out on the way is noted here

# %% [markdown]
# ## A bubble at every update
#
# In [lesson 9](09_one_f_one_b.ipynb) a pipeline runs empty before each update: it *flushes*. With many micro-batches
# that costs little. But a mini-batch cannot be cut into more micro-batches than it has rows, and tiny ones are slow.
#
# Here are four devices and three mini-batches, each cut into four micro-batches. The number in a bar is the
# micro-batch. It goes on counting: 4 to 7 are the second mini-batch. Updates take no time here, so you do not see
# them.

# %%
flushed = following([with_updates(one_f_one_b(4, 4))] * 3)
plot.timeline(simulate(flushed, Costs(F=1, B=2)), title='1F1B, a flush before each update', unit='units')

# %% [markdown]
# Device 0 begins the next mini-batch as soon as its own update is done. All the same it waits before each update for
# gradients that are still on their way.
#
# *PipeDream* (arXiv 1806.03377) does not flush, and does not cut mini-batches. The next one simply follows. After the
# backward of a mini-batch on a stage, that stage is updated at once, while other mini-batches are on their way.
#
# **Predict:** twelve such mini-batches, each as large as one micro-batch above, on the same four devices. Above,
# devices are idle for 43 % of the time. And now? (Lesson 5 has a formula for the bubble.)

# %%
my_guess = None        # percent

never_empty = simulate(pipedream(4, 12), Costs(F=1, B=2))
idle = {'1F1B': simulate(flushed, Costs(F=1, B=2)).bubble, 'PipeDream': never_empty.bubble}
compare(my_guess, 100 * idle['PipeDream'], ' %')
plot.timeline(never_empty, title='PipeDream, no flush', unit='units')

# %% [markdown]
# What is left is the start and the end of the run. With a thousand mini-batches it is nothing.
#
# ## Which weights?
#
# But look at device 0. Between the forward of mini-batch 4 and its backward, other mini-batches update the weights.
# So the weights that the backward finds are not those that the forward had.
#
# This is the beginning of device 0's row. As before, F4 and B4 are forward and backward of mini-batch 4. U4 is the
# update with its gradient.

# %%
plan = pipedream(4, 12)
row = [op for op in plan.rows[0] if op.kind in 'FBU']
print(*(f'{op.kind}{op.micro_batch}' for op in row[:19]))

# %% [markdown]
# **Predict:** how many updates does stage 0 make between F6 and B6? (The row goes on in the same way.)

# %%
my_guess = None        # updates

kinds = [(op.kind, op.micro_batch) for op in row]
between = kinds[kinds.index(('F', 6)):kinds.index(('B', 6))]
compare(my_guess, sum(kind == 'U' for kind, _ in between), ' updates')

# %% [markdown]
# Three: one for each stage that comes after it. On the last stage a backward follows its forward at once, and there is
# none.
#
# Why does it matter? The backward of a layer y = W x computes the gradient of its input as Wᵀ g. If W is newer than
# in the forward, old activations and new weights are mixed. The result is not the gradient for the old weights, and
# not the one for the new weights. It is wrong for any weights.
#
# How wrong? Here is a small network of four stages. `gradient_error` takes the gradient that stage 0 has used. It
# compares it with the true one: the plain model's, with the same mini-batch, and with the weights that the forward
# had on each stage. (The error is relative to the true gradient, and the mean of twenty mini-batches.)

# %%
errors = {'no stashing': gradient_error(partial(pipedream, stashing=False)),
          'stashing': gradient_error('pipedream')}
print(f"newest weights in the backward: off by {errors['no stashing']:.0%}")
print(f"the forward's weights again:    off by less than a millionth: {errors['stashing'] < 1e-6}")

# %% [markdown]
# ## Stashing, and its price
#
# *Weight stashing* is PipeDream's answer: a stage keeps the weights of every mini-batch that is on its way. The
# gradient is then valid, though late: on stage 0 it belongs to weights of three updates ago.
#
# Each set of weights of a stage is called a *version*. Does some mini-batch on its way still need the old one? Then an
# update does not write over it: the new weights get memory of their own. When the last mini-batch that used the old
# version has run its backward, the old memory is free again. (There is a drawing of it at the top of
# `lib/fewgpu/weights.py`.)
#
# **Predict:** four stages. How many versions does each keep at its peak, the newest one included? (Your guess: for
# stage 0.)

# %%
my_guess = None        # versions


def versions_held(schedule, chunks=1):
    """Of every stage, counted in bytes while it trains: a layer of 64 x 64 numbers a stage."""
    devices = get_devices(4, kind='cpu')
    for device in devices:
        device.meter()
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
    pipeline = Pipeline(model, [1] * 4, schedule=schedule, chunks=chunks, loss_fn=mse_loss, devices=devices,
                        optimizer=partial(torch.optim.SGD, lr=0.1))
    rows = torch.zeros(chunks, 64)
    pipeline.train([(rows, rows)] * 12)      # many mini-batches, no flush in between
    return [max(span.live // (4 * 64 * 64) for span in row if span.op.kind == 'U')
            for row in pipeline.trace.rows]


compare(my_guess, versions_alive(pipedream(4, 12))[0], ' versions')
kept = {'plan': versions_alive(pipedream(4, 12)), 'counted': versions_held('pipedream')}
print(kept)

# %%
claims.test('C24', errors['stashing'] < 1e-6 < errors['no stashing']
            and kept['counted'] == kept['plan'] == [4, 3, 2, 1],
            f'with stashing the gradient of stage 0 is that of the weights of its forward, without it is '
            f'off by {errors["no stashing"]:.0%}; the price: {", ".join(map(str, kept["counted"]))} '
            f'versions on stages 0 to 3, where a flush needs one')

# %% [markdown]
# ## The right version, everywhere
#
# With stashing every stage uses weights of its own age: stage 0 those of three updates ago, stage 3 the newest. The
# gradient is right for this mixture, but the model as a whole never had these weights at one time.
#
# *Vertical sync* wants one age for all: a mini-batch takes on every stage the version that stage 0 took for it. Then
# the gradient belongs to the whole model after some number of updates. The price: every stage keeps four versions,
# and all gradients are three updates late.

# %%
for name, rule in {'stashing': pipedream, 'vertical sync': partial(pipedream, vertical_sync=True)}.items():
    plan = rule(4, 12)
    print(f'{name:14} keeps {versions_alive(plan)} versions; stages 0 to 3 are late by',
          *(4 - plan.version(stage, 4) for stage in range(4)))      # for mini-batch 4

# %% [markdown]
# [exercises/11_weight_versions.py](../exercises/11_weight_versions.py) asks you for the version that each rule takes,
# for a stash that keeps no copy too many, and for the training rule of the next section. Take 35 minutes; you may
# want to read on before its last step.

# %% tags=["yours"]
check(11)

# %% [markdown]
# Stuck? `./workshop.py hint 11` in a terminal tells a little more at each call.
#
# ## Two versions are enough
#
# Four stages mean four copies of the weights on stage 0, sixteen stages sixteen. For large models that is too much.
# *PipeDream-2BW* (arXiv 2006.09503) updates less often: once for a group of m micro-batches (a mini-batch, cut as in
# GPipe), with m at least as many as stages. It still does not flush. When a group begins on stage 0, the group before
# it is still on its way, and has not made its update there. So all micro-batches of a group take, on all stages, the
# version from before that update. Count groups and versions from 0. Group t makes version t + 1:
#
# > W(t+1) = W(t) - lr · gradient at W(t-1)
#
# (The first group has only version 0.) So each stage keeps two versions, however many stages there are, and every
# gradient is one update late. 2BW stands for *double-buffered weights*.
#
# **Predict:** four stages, four micro-batches an update. Which version does micro-batch 9 (counted from 0) take?

# %%
my_guess = None        # version

groups = two_bw(4, 16, update_every=4)
taken = [groups.version(0, i) for i in range(16)]
compare(my_guess, taken[9], '')
print('versions of micro-batches 0 to 15:', *taken)
plot.timeline(simulate(groups, Costs(F=1, B=2)), title='2BW: an update after four backwards', unit='units')

# %%
held = versions_held('2bw', chunks=4)
claims.test('C28', taken == [max(i // 4 - 1, 0) for i in range(16)] and held == [2] * 4,
            f'micro-batch i takes version max(i // 4 - 1, 0) on all stages; each stage held {max(held)} '
            f'versions, counted in bytes, PipeDream {max(kept["counted"])}')

# %% [markdown]
# ## Does it learn?
#
# The same network of four stages, the same digits in the same order, the same learning rate: with a flush, by 2BW, by
# PipeDream with stashing. All three update once for each mini-batch. Only PipeDream does not cut it into micro-batches.

# %% tags=["measured"]
def losses(schedule, chunks):
    """Of 240 mini-batches of 64 digits."""
    pipeline = Pipeline(network(4), [1] * 4, schedule=schedule, chunks=chunks, loss_fn=cross_entropy,
                        devices=get_devices(4, kind='cpu'), optimizer=partial(torch.optim.SGD, lr=0.1))
    return [loss.item() for loss in pipeline.train(mini_batches(240, 64))]


curves = {'1F1B, a flush': losses('1f1b', 4), '2BW': losses('2bw', 4), 'PipeDream': losses('pipedream', 1)}
plot.lines({name: ([*range(0, 240, 5)], smooth(found)[::5]) for name, found in curves.items()},
           title='Loss, mean of the last 20', x='mini-batches')

# %% tags=["measured"]
late = {name: fmean(found[-60:]) for name, found in curves.items()}
claims.test('C29', abs(late['2BW'] / late['1F1B, a flush'] - 1) < 0.1,
            f'mean loss of the last quarter: 2BW {late["2BW"]:.2f}, with a flush {late["1F1B, a flush"]:.2f}',
            because='A small network, one seed, and a learning rate that suits 2BW and the flush.')

# %% [markdown]
# (The claim counts as confirmed if the two means differ by less than 10 %. With a flush the result is that of training
# without a pipeline. We compare losses only, no accuracy.)
#
# At this learning rate a delay of one update does little harm. PipeDream is up to three updates late, and learns more
# slowly. And at a higher learning rate?
#
# ## How late is too late?
#
# Take the simplest training that there is: one weight w, and the loss w² / 2. Its gradient is w, and its minimum at 0.
# Here the gradient comes `delay` updates late:

# %%
Source(staleness.descent)

# %% [markdown]
# **Predict:** without delay it converges for learning rates below 2. With a delay of three updates, as on stage 0 of
# four, below which? (You cannot know the formula yet. Guess, or try a few updates on paper.)

# %%
my_guess = None        # learning rate

compare(my_guess, stability_limit(1.0, 3), '')
plot.lines({f'rate {rate}': (range(61), staleness.descent(3, rate)) for rate in (0.2, 0.4, 0.48)},
           title='The weight, its gradient three updates late', x='updates')

# %% [markdown]
# For a delay of d updates the limit is 2 sin(π / (4 d + 2)), divided by the *curvature*, the second derivative of the
# loss: 1 here. It is 2 for d = 0 and 1 for d = 1. For larger d it is a little less than π / (2 d). (The formula is
# from PipeMare, arXiv 1910.05124, cited from memory; a test of the library confirms it.)
#
# Why a limit? A late gradient still pushes w down when w is already below 0. So w swings. Above the limit each swing is
# larger than the one before.
#
# Try it: which learning rate is too high for six updates of delay?

# %%
Panel(staleness.draw, delay=Slider(3, 0, 8), rate=Slider(0.4, 0.05, 1.5, 0.05, label='learning rate'))

# %% [markdown]
# For six updates the limit is 0.241: a learning rate of 0.2 converges, 0.25 does not.
#
# ## PipeMare: no old weights at all
#
# PipeMare keeps one version, as training without a pipeline does, and takes three measures:
#
# - **T1** The learning rate of a stage is lower at first: divided by its delay. Then it goes up to its full value.
# - **T2** A backward does not take the newest weights. It estimates those of its forward: the newest weights, minus the
#   delay times the average change in an update.
# - **T3** Training begins with some mini-batches that flush, so that no gradient is late.

# %%
plan = pipemare(4, 40)
print('updates of delay, stage by stage:', *(round(delay, 2) for delay in delays(plan)))
print('T1, by what stage 0 multiplies the rate in updates 0, 50, 100 of 100:',
      *(f'{rescheduled(3, k, 100):.2f}' for k in (0, 50, 100)))
corrected = gradient_error('pipemare')
print(f"T2: the gradient of stage 0 is off by {corrected:.0%} instead of {errors['no stashing']:.0%}")

# %% [markdown]
# T2 is not free: the average change takes as much memory as the weights, and a backward needs a copy of the weights.
#
# Now a training in which late gradients do harm: a residual network of eight stages, so that the first is seven
# updates late. The learning rate goes down in four parts of 60 mini-batches, from 0.12 to 0.03. T1 is over after
# three of them, and T3 takes the first 20 mini-batches. We compare three ways:
#
# - *synchronous*: 1F1B with a flush, so that no gradient is late;
# - *late, uncorrected*: no flush, and the newest weights in forward and backward;
# - *T1, T2 and T3*: PipeMare.
#
# A line that ends early has diverged: the loss is no number any more.

# %% tags=["measured"]
ways = 'synchronous', 'late, uncorrected', 'T1, T2 and T3'
high = {name: training(WAYS[name], seed=0)[0] for name in ways}
plot.lines({name: ([*range(0, 240, 5)], [min(loss, 3.0) for loss in smooth(found)[::5]])
            for name, found in high.items()},
           title='Eight stages: loss, mean of the last 20 (cut off at 3)', x='mini-batches')

# %% tags=["measured"]
first, late, mare = (last_quarter(high[name]) for name in ways)       # nan: diverged
claims.test('C34', idle['PipeDream'] < idle['1F1B'] and corrected < errors['no stashing']
            and first < mare and not late <= mare,
            f'idle {idle["PipeDream"]:.0%} instead of {idle["1F1B"]:.0%} (virtual time); loss of the last '
            f'quarter: synchronous {first:.2f}, PipeMare {mare:.2f}, late and uncorrected '
            + (f'{late:.2f}' if late == late else 'diverged'), by='this run and the simulator',
            because='One network, one seed. PipeMare is behind: T1 slows the first stages down.')

# %% [markdown]
# Corrected, it learns; but it has not caught up with the pipeline that flushes. `./workshop.py demo pipemare` adds the
# three measures one after the other.

# %% [markdown]
# ## Fast or frugal
#
# Eight devices in virtual time, and eight mini-batches of 16 micro-batches. One version of all weights takes 8 units
# of memory, so a stage's takes 1. A micro-batch's activations take 4 in all, 1/2 on a stage, and its input at a stage
# takes 1. (We leave gradients out.) A whole micro-batch takes 1 unit of time forward and 2 back, so a stage takes 1/8
# and 2/8. 1F1B and 2BW recompute: that makes a backward longer by a forward. PipeDream does not, and updates after
# every micro-batch.

# %%
m, count = 16, 8
costs = Costs(F=1 / 8, B=2 / 8, weights=8 / 8, stash=4 / 8 + 1, input=1)
runs = {'flush': following([with_updates(with_recompute(one_f_one_b(8, m), 'always'))] * count),
        '2BW': with_recompute(two_bw(8, m * count, update_every=m), 'always'),
        'PipeDream': pipedream(8, m * count)}
speed, memory = [], []
for name, run in runs.items():
    timeline = simulate(run, costs)
    speed.append(m * count / timeline.makespan)
    memory.append(max(timeline.peak(device) for device in range(8)))
    print(f'{name:10} {speed[-1]:.2f} micro-batches a unit of time, {memory[-1]:4.1f} units of memory')

# %%
claims.test('C30', speed == sorted(speed) and memory == sorted(memory),
            'flush, 2BW, PipeDream: ' + ', '.join(f'{each:.2f}' for each in speed)
            + ' micro-batches a unit of time, in ' + ', '.join(f'{each:.1f}' for each in memory)
            + ' units of memory', by='the simulator')

# %% [markdown]
# Where does the memory go? Device 0 has eight micro-batches on their way. With a flush it keeps 1 of weights, 8 of
# inputs, and 1/2 of activations, those that it has just recomputed: 9.5. 2BW keeps one more version. PipeDream keeps
# eight versions, and input and activations of all eight: 8 + 8 · 1.5 = 20.
#
# PipeDream is faster than 2BW only because it does not recompute. It could: then it is as fast as 2BW, and still keeps
# eight versions. (GPipe, which the claim names as well, was not run here.)

# %% [markdown]
# ## Remember
#
# 1. Without a flush there is no bubble, but a stage updates its weights while micro-batches are on their way. The
#    backward of each has to meet the weights of its forward again (stashing), or its gradient is wrong.
# 2. In PipeDream stage s of n keeps n - s versions, in 2BW every stage keeps two. Both make gradients late.
# 3. The later a gradient, the lower the learning rate has to be: for a delay of d updates, below about π / (2 d),
#    divided by the curvature.
#
# Next: [lesson 11](11_spilling.ipynb), models that do not fit the devices at all.
#
# The claims of lectures that this lesson put to the test (C24, C28, C29, C30, C34), as they came out in this run:

# %% tags=["measured"]
claims
