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
# # 14 Which one, and when?
#
# When you are through, in about 45 minutes (two exercises of 40 each come on top), you will be able to
#
# - let a planner choose between data parallelism, pipelines and their mixtures, before anything runs;
# - say of each way that loses what it loses to;
# - put a sentence like "pipelines are only for models that do not fit" to the test, with figures of your own;
# - find in the timeline of a step what is wrong with it.

# %%
from dataclasses import replace

from fewgpu import plot
from fewgpu.planner import Chain, Machines, data_parallel, partition, settings, vgg16_chain, way_pipeline
from fewgpu.planner.cluster import Cluster, preset
from fewgpu.planner.growth import communication_share
from fewgpu.planner.known import KNOWN, known
from fewgpu.planner.search import best
from fewgpu.planner.ways import Knobs, Task
from fewgpu.workshop import check
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.demos.depth_width import chooses_all, grows_and_falls, is_that_much_faster
from fewgpu.workshop.demos.partitioner import (SHIPPED, finds_what_they_ship,
                                               is_shorter_by_faster_gpus)
from fewgpu.workshop.demos.plan import is_better_where_it_fits
from fewgpu.workshop.lesson import compare
from fewgpu.workshop.measured.depth_width import (CLUSTER, MICRO_BATCHES, MODELS, any_recompute,
                                                  blocks, largest_model, rates_of, worth)
from fewgpu.workshop.panel import Choice, Panel, Slider
from fewgpu.workshop.panels import plans

claims = Claims()      # what we find out on the way is noted here

# %% [markdown]
# ## A plan before the run
#
# By now you know a dozen ways to train. Which is the fastest for your model on your machines? To try them all would
# take days. A *planner* asks formulas instead: how long a step takes, and how much memory a device needs. It needs
# figures of the model and of the machines, and looks at thousands of plans in a second.
#
# An early one was PipeDream's (arXiv 1806.03377). Its authors measured every layer of VGG-16: seconds (forward and
# backward), bytes of weights, bytes of outputs. Their figures, with 128 images:

# %%
vgg = vgg16_chain()
halves = {'31 layers, the convolutions': (0, 30), '9 layers, the linear ones': (31, 39)}
for name, (first, last) in halves.items():
    print(f'{name:28} {1e3 * vgg.seconds(first, last):5.0f} ms'
          f' {vgg.weight_bytes(first, last) / 1e6:5.0f} MB of weights')
print(f'between the two: {vgg.layers[30].output_bytes / 1e6:.0f} MB of outputs')

# %% [markdown]
# Nearly all of the time is in the convolutions, and nearly all of the weights are in the linear layers.
#
# PipeDream may give a stage several *replicas*: devices that all hold this stage, and each of which takes another
# mini-batch. They work as in data parallelism ([lesson 3](03_data_parallelism.ipynb)), and have to exchange the
# gradients of that stage.
#
# **Predict:** 16 machines, with links of 1 GB/s. How many of them should hold the convolutions?

# %%
my_guess = None        # machines

machines = Machines(16, 1e9)
found, parallel = partition(vgg, machines), data_parallel(vgg, machines)
compare(my_guess, found.stages[0].replicas, ' machines')
print(f'{found.config} machines, {found.balance} layers: '
      f'a mini-batch every {1e3 * found.slowest_seconds:.0f} ms')

# %% [markdown]
# 15 machines share the convolutions: much work, few gradients to exchange. One machine does all linear layers, and
# exchanges no gradients at all. (33 layers and not 31: the two between only change the shape, and cost nothing.)
#
# What does it gain? In a full pipeline the slowest stage sets the pace, and a stage is as slow as its slowest part:
# computing, the exchange of gradients (*sync*), or the link to the next stage.
#
# All three are counted for each mini-batch. In data parallelism a machine computes its mini-batch for 672 ms, and 16 do
# so at the same time: that is 42 ms a mini-batch. The exchange takes 4 · 15 / 16 times 554 MB over 1 GB/s, so 2.1 s for
# the 16 mini-batches. (The 4 is PipeDream's: what a machine sends and what it receives, one after the other. The ring
# of lesson 3 does both at once, and would need half.) The link carries 13 MB there and 13 MB of gradients back.

# %%
parts = {f'{name}: {part}': 1e3 * max(getattr(stage, part) for stage in plan.stages)
         for name, plan in {'data parallel': parallel, found.config: found}.items()
         for part in ('compute', 'sync', 'link') if name != 'data parallel' or part != 'link'}
plot.bars(parts, write='{:.0f} ms', title='VGG-16 on 16 machines, for each mini-batch')

# %% [markdown]
# Data parallelism waits for gradients, by far. In the plan 15-1 computing takes longest, as it should: the exchange and
# the link keep up with it.
#
# How is it found? As in [lesson 7](07_balance.ipynb), by a *dynamic programme*; here it deals out machines, too. The
# best price of all layers from i on, with m machines, is the least that one can get by a choice of the next stage (up
# to layer j) and of its replicas (r):
#
# A(i, m) = the least, over j and r, of max( stage i..j on r machines, link after j, A(j+1, m-r) )
#
# Does it find what the authors found?

# %%
configs = {count: partition(vgg, Machines(count, 1e9)).config for count in SHIPPED}
claims.test('C25', finds_what_they_ship(configs),
            f"from the authors' profile it finds {', '.join(configs.values())} for "
            f"{', '.join(map(str, configs))} machines; their code ships {', '.join(SHIPPED.values())}",
            by='the cost model',
            because='Their paper of 2018 printed 2-1-1 and 9-5-1-1, for other machines and links.')

# %% [markdown]
# ## Faster GPUs
#
# A planner answers questions that you cannot try. Say you buy GPUs that compute twice as fast, and keep the network.
#
# **Predict:** 16 machines. How many times as fast is data parallelism, now?

# %%
my_guess = None        # times

twice = Chain([replace(layer, seconds=layer.seconds / 2) for layer in vgg.layers])


def gain(plan, count):
    """How many times as fast a plan is with the faster GPUs."""
    old, new = (plan(chain, Machines(count, 1e9)).slowest_seconds for chain in (vgg, twice))
    return old / new


compare(my_guess, gain(data_parallel, 16), ' times as fast')

# %%
gains = {plan: [gain(plan, count) for count in SHIPPED] for plan in (partition, data_parallel)}
by_plan = [', '.join(f'{each:.2f}' for each in row) for row in gains.values()]
claims.test('C27', is_shorter_by_faster_gpus(gains[partition]),
            f'GPUs twice as fast make PipeDream {by_plan[0]} times as fast on 4, 8 and 16 machines '
            f'(at least 1.5 is asked for), data parallelism {by_plan[1]} times', by='the cost model',
            because='What waits for a link gains nothing from a faster GPU. The lecture compares 8 '
                    'Titan X with 8 V100, whose links differ, too.')

# %% [markdown]
# Remember this when you read a speed-up. "Times as fast as data parallelism" depends on the network, and on how fast
# the GPUs are that have to wait for it.
#
# The same in another picture: the share of a step in which data-parallel machines wait for the exchange of gradients.
# One V100 a machine, 25 Gbit/s, 32 images each. On the left the exchange follows the backward, and all of it is waited
# for. On the right it goes on beside the backward, and only what is left after that is waited for.
#
# (VGG-16 waits less than above. The network is three times as fast, the exchange is a ring, and layers take what
# follows from their operations and the speed of the GPU, not what PipeDream's authors measured.)

# %%
counts, networks, shares = [1, 2, 4, 8, 16, 32], ('alexnet', 'vgg16', 'resnet50'), {}
picture = plot.Picture(figsize=(9.6, 3.2), layout='constrained')
for ax, overlap in zip(picture.subplots(1, 2), (False, True)):
    shares[overlap] = {name: communication_share(known(name), Cluster(per_server=1), counts,
                                                 overlap=overlap) for name in networks}
    percent = {name: [100 * share for share in row] for name, row in shares[overlap].items()}
    plot.lines({name: (counts, row) for name, row in percent.items()}, ax, x='machines', y='%',
               title=f'Exchange {"beside" if overlap else "after"} the backward')
picture

# %%
after, beside = shares[False], shares[True]
grows = all(row == sorted(row) and row[-1] > row[1] for row in after.values())
told = ', '.join(f'{name} {row[1]:.0%} to {row[-1]:.0%}' for name, row in after.items())
claims.test('C05', grows and all(row == sorted(row) for row in beside.values()),
            f'from 2 to 32 machines: {told}', by='the cost model',
            because='This is the time of the exchange. A step waits for less of it: beside the backward, '
                    f"ResNet-50 on 32 machines for {beside['resnet50'][-1]:.0%}, VGG-16 for "
                    f"{beside['vgg16'][-1]:.0%}.")

# %% [markdown]
# ## Four knobs
#
# A GPT is a chain of equal blocks. So planners for such models, as that of PipeDream-2BW (arXiv 2006.09503), give all
# stages the same number of replicas. Four knobs are left, and each of them pulls in two directions. (A row is one text,
# of 512 tokens here.)
#
# | more ... | gains | costs |
# |:--|:--|:--|
# | stages (*depth*) | fewer weights on each device | more messages, a longer bubble |
# | replicas (*width*) | no messages between them | each holds more; gradients are exchanged |
# | rows of a micro-batch | fewer, larger kernels | activations; fewer micro-batches, so more bubble |
# | recompute | activations are gone | a third more computing |
#
# Formulas for time and memory are short. So the planner simply tries all settings, each as a pipeline with 2BW's two
# versions of the weights ([lesson 10](10_stale_weights.ipynb)), or without a pipeline. A GPT of 2.2 billion parameters,
# 64 devices of 16 GB:
#
# **Predict:** with 512 rows a mini-batch, how many stages does the fastest setting have?

# %%
my_guess = None        # stages

tried = {name: {batch: settings(blocks(model), CLUSTER, batch, micro_batches=MICRO_BATCHES)
                for batch in (64, 512)} for name, model in MODELS.items()}
all_of_it = tried['2.2B'][512]
compare(my_guess, all_of_it[0].depth, ' stages')
print(f'{len(all_of_it)} settings, {sum(not one.dropped for one in all_of_it)} of them possible')
for one in all_of_it[:4]:
    print(f'   {one.width} replicas of {one.depth} stages, micro-batches of {one.micro_batch}'
          f'{", recompute" * one.recompute}: {one.throughput:.0f} rows/s, {one.memory / 1e9:.1f} GB')

# %% [markdown]
# Is each knob worth turning? Give one of them the same value in all tasks, the one that suits them best, and choose the
# others for each task. Now look at the task that suffers most from it: how much faster is it to choose this knob, too?
# (Width and depth count as one knob here. One setting of both is fixed for all tasks.)
#
# The tasks are two models (of 2.2 and 3.8 billion parameters) and two batches (of 64 and 512 rows), on devices of 16
# GB, and then on devices of 8 GB, too.

# %%
on_16 = [plan for by_batch in tried.values() for plan in by_batch.values()]
less = replace(CLUSTER, memory=8e9)
on_8 = [settings(blocks(model), less, batch, micro_batches=MICRO_BATCHES)
        for model in MODELS.values() for batch in (64, 512)]
gains, with_less = (', '.join(f'{knob} {gain - 1:.0%}' for knob, gain in worth(tasks).items())
                    for tasks in (on_16, on_16 + on_8))
print(f'devices of 16 GB:       {gains}\nof 16 GB, and of 8 GB:  {with_less}')
claims.test('C33', chooses_all(worth(on_16)),
            f'on devices of 16 GB a fixed value in place of a choice costs, at worst: {gains} (5 % of '
            'each are asked for)', by='the cost model',
            because='There all do best with micro-batches of 1 and without recompute. With devices of '
                    f'8 GB among the tasks it is {with_less}.')

# %% [markdown]
# Now write one yourself. [exercises/16_plan.py](../exercises/16_plan.py) asks you for the memory of a plan, for its
# seconds, and for the best of all plans, in 40 minutes.

# %% tags=["yours"]
check(16)

# %% [markdown]
# Stuck? `./workshop.py hint 16` in a terminal tells a little more at each call.
#
# The paper says that 2BW is up to 3.2 times as fast as GPipe, and up to 20 times as model parallelism that splits
# every layer over 64 devices. By the same formulas, with GPipe, with layers that are split, and with layers that are
# dealt out to devices but not pipelined ([lesson 4](04_model_parallelism.ipynb)):

# %%
rates = {name: rates_of(model, tried[name]) for name, model in MODELS.items()}


def most(other):
    """How many times as fast 2BW is, at most."""
    return max(ours / theirs for kinds in rates.values()
               for ours, theirs in zip(kinds['2BW'], kinds[other]) if theirs)


claims.test('C31', is_that_much_faster(most('GPipe'), most('tensors over 64')),
            f"up to {most('GPipe'):.1f} times as fast as GPipe, {most('tensors over 64'):.0f} times as "
            f"layers split over 64 devices, {most('no pipeline'):.1f} times as layers dealt out to them",
            by='the cost model',
            because='Here GPipe has its best setting, too. A bubble of d - 1 of at least d micro-batches '
                    'costs less than a factor of 2; more must come from memory.')

# %% [markdown]
# So the half about GPipe is not what these formulas say. The half about model parallelism is: there it is even more
# than 20 times, since layers that are split over servers wait for a slow network.
#
# ## All ways beside each other
#
# `./workshop.py plan --model gpt-2.2B --gpus 64` knows all ways of these lessons: data parallelism, pipelines, tensor
# ranks ([lesson 13](13_parts_and_skips.ipynb)), ZeRO, offload, and their mixtures. Training in mixed precision by Adam
# takes 16 bytes a parameter ([lesson 2](02_memory.ipynb)).
#
# **Predict:** how many GB of model states does a device have under plain data parallelism?

# %%
my_guess = None        # GB

large = Task(known('gpt-2.2B'), preset('v100-16', devices=64), 512)
one = best('data parallel', large)
states = sum(size for part, size in one.memory.items() if part != 'activations')
compare(my_guess, states / 1e9, ' GB')

# %% [markdown]
# That does not fit 16 GB, whatever the batch. And the other ways? Below, each bar is the time of all devices together.
# Its dark part is computing, so that the longest dark bar is the fastest way. The rest is what a way loses to: `stage
# link` is waiting for messages between stages, `tensor link` for those between tensor ranks, `data link` for what
# replicas or ZeRO's ranks exchange. A name with `x data` has several replicas of its pipeline. The line on top counts,
# in brackets, how many ways lose most to what. GPUs are V100s, eight in a server; `link` is the network of a server.
#
# Try: from which `link` on is ZeRO the fastest that needs no late gradients? From how much `memory` on does data
# parallelism fit? What changes with 8 GPUs, all in one server? And is a pipeline any good for `resnet50`?

# %%
Panel(plans.draw, model=Choice('gpt-2.2B', tuple(KNOWN)), gpus=Choice(64, (1, 2, 4, 8, 16, 64, 256)),
      memory=Slider(16, 8, 80, 8, label='memory, GB'),
      link=Choice(25, (1, 10, 25, 100, 400), label='link, Gbit/s'))

# %% [markdown]
# (2BW is ahead in time, but its gradients are one update late: [lesson 10](10_stale_weights.ipynb).) For `gpt-2.2B`,
# ZeRO is ahead of 1F1B with replicas from 100 Gbit/s on, and on a single server of eight, whose links are fast. (At 1
# Gbit/s, too: there the planner takes one server, and leaves the others without work.) Data parallelism fits from 40 GB
# on, and is still slower than the pipeline with replicas: the network has to carry all gradients. For `resnet50` no
# pipeline is as fast as data parallelism: few weights, much computing.
#
# So one and the same model has one winner here and another there. Mostly it is the network that decides.

# %% [markdown]
# ## Six conclusions
#
# The lectures behind this workshop end with conclusions. Each is a sentence about all models and all clusters. So we
# ask the planner about many: all eight models that it knows, on 8 and 64 devices of three clusters. `v100-16` you have
# seen. `a100-80` has fast links everywhere. `rtx3090-24` are workstations of two GPUs each, with 10 Gbit/s from one
# workstation to the next. The number behind the dash is GB of memory.
#
# Gradients are never late in this comparison: it leaves 2BW out.

# %%
from random import Random, randrange
from time import perf_counter

import torch
from torch import nn
from torch.nn.functional import mse_loss

from fewgpu import Device, GPipe, Pipeline, data, get_devices
from fewgpu.balance import balance_by_size, cut
from fewgpu.models import build
from fewgpu.planner.own import own
from fewgpu.schedule import Op, gpipe
from fewgpu.simulate import Costs, simulate
from fewgpu.trace import Span, Timeline
from fewgpu.workshop.measure import measure
from fewgpu.workshop.noise import Quiet
from fewgpu.workshop.practice import faults

# %%
ways = 'data parallel', 'model parallel', 'GPipe', '1F1B', '1F1B x data', 'ZeRO-1', 'ZeRO-2', 'ZeRO-3'
pipelines = 'GPipe', '1F1B', '1F1B x data'


def speeds(name, place, count):
    """Samples a second of every way at its best setting; 0 where nothing fits."""
    task = Task(known(name), preset(place, devices=count), known(name).batch)
    return {way: one.samples_per_second * one.fits for way in ways for one in [best(way, task)]}


cases = {(name, place, count): speeds(name, place, count) for name in KNOWN
         for place in ('v100-16', 'a100-80', 'rtx3090-24') for count in (8, 64)}
print(len(cases), 'cases; in', sum(any(case.values()) for case in cases.values()), 'of them some way fits')

# %% [markdown]
# ### "Pipeline parallelism beats model parallelism"
#
# First a run. Two devices, four equal layers, and a mini-batch in one piece (model parallelism) or in four. The devices
# are slow on purpose (a fifth of a core), so that they do not disturb each other.
#
# **Predict:** how many times as fast is the pipeline?

# %% tags=["measured"]
my_guess = None        # times


def a_step(chunks, quiet):
    """Seconds of a step: the faster of two, after one that warms up."""
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(4)))
    pipeline = Pipeline(layers, [2, 2], schedule='gpipe', chunks=chunks, loss_fn=mse_loss,
                        devices=get_devices(2, kind='cpu', pace=0.2))
    x, seconds = torch.randn(2048, 512), []
    for _ in range(3):
        quiet.look()
        begun = perf_counter()
        pipeline.step(x, x)
        seconds.append(perf_counter() - begun)
    return min(seconds[1:])


quiet = Quiet(threads=1)
compare(my_guess, a_step(1, quiet) / a_step(4, quiet), ' times as fast', quiet.note)

# %% [markdown]
# By the plan it is 2 · 4 / (4 + 1) = 1.6 times. (On a busy machine it is less.) The lecture says more: pipelines train
# large networks faster than data parallelism, too. Now the cases, each way at its best setting. Large is what does not
# fit plain data parallelism: so the pipelines' rival there is ZeRO, data parallelism with states in shares ([lesson
# 12](12_zero.ipynb)).

# %%
def top(speed, some):
    """Of the fastest of some ways."""
    return max(speed[way] for way in some)


over = [top(speed, pipelines) / speed['model parallel'] for speed in cases.values()
        if speed['model parallel']]
print(f'pipelines are {min(over):.1f} to {max(over):.0f} times as fast as model parallelism')
rivals = {case: (top(speed, pipelines), top(speed, ways[-3:])) for case, speed in cases.items()
          if any(speed.values()) and not speed['data parallel']}
for (name, place, count), (staged, shared) in rivals.items():
    print(f'   {name} on {count:2} {place:10}  pipelines {staged:6.1f}, ZeRO {shared:6.1f} samples/s')

# %%
wins = sum(staged > shared for staged, shared in rivals.values())
claims.test('C46', min(over) > 1 and wins == len(rivals),
            f'the best pipeline is faster than model parallelism in {sum(each > 1 for each in over)} of '
            f'{len(over)} cases, and than ZeRO in {wins} of {len(rivals)} whose models are too large for '
            f'plain data parallelism', by='the planner',
            because='The first half holds. The second half depends on the network: where devices have '
                    'fast links to all others, ZeRO is ahead.')

# %% [markdown]
# ### "Only go pipeline-parallel for models that do not fit"
#
# If a model fits one device, with its gradients and optimizer states, data parallelism has neither bubble nor messages
# between stages. But it sends all gradients.
#
# **Predict:** in how many percent of the cases in which data parallelism fits is it faster than every pipeline?

# %%
my_guess = None        # percent

fit = {case: speed for case, speed in cases.items() if speed['data parallel']}
slower = {case: top(speed, pipelines) / speed['data parallel'] for case, speed in fit.items()
          if top(speed, pipelines) > speed['data parallel']}
compare(my_guess, 100 * (1 - len(slower) / len(fit)), ' %')
for (name, place, count), ratio in slower.items():
    print(f'   {name} on {count} {place}: a pipeline is {ratio:.2f} times as fast')

# %%
claims.test('C23', is_better_where_it_fits(len(fit) - len(slower), len(fit)),
            f'where data parallelism fits, it is faster than all pipelines in {len(fit) - len(slower)} '
            f'of {len(fit)} cases (90 % are asked for)', by='the planner',
            because='The others: BERT, 340 million weights, 4 samples a device, and a slow network.')

# %% [markdown]
# That is one half of the sentence. The other half, that what does not fit wants a pipeline, you have seen above: ZeRO
# trains it, too, and was faster in three of nine cases.
#
# ### "More micro-batches, smaller bubble"
#
# BERT-large, eight stages, 256 rows a mini-batch, cut into 1 to 256 micro-batches. The planner knows that each layer
# takes 0.1 ms to start its kernels.

# %%
def in_pieces(m):
    """A step of GPipe, predicted."""
    task = Task(known('bert-large'), preset('v100-16', devices=8), 256)
    return way_pipeline.predict('GPipe', task, Knobs(stages=8, rows=256 // m, schedule='gpipe'))


pieces = [1, 2, 4, 8, 16, 32, 64, 128, 256]
bubbles = [in_pieces(m).parts['bubble'] / in_pieces(m).step for m in pieces]
rows_a_second = [in_pieces(m).samples_per_second for m in pieces]
picture = plot.Picture(figsize=(9.6, 2.9), layout='constrained')
left, right = picture.subplots(1, 2)
plot.lines({'bubble': (pieces, [100 * bubble for bubble in bubbles])}, left, x='micro-batches', log='x',
           title='Bubble, % of a step')
plot.lines({'speed': (pieces, rows_a_second)}, right, x='micro-batches', log='x', title='Rows a second')
picture

# %%
fastest = pieces[rows_a_second.index(max(rows_a_second))]
claims.test('C14', bubbles == sorted(bubbles, reverse=True) and bubbles[pieces.index(128)] < 0.06,
            f'bubble of 8 stages: {bubbles[3]:.0%} with 8 micro-batches, {bubbles[5]:.0%} with 32 (four '
            f'times as many), {bubbles[7]:.0%} with 128', by='the planner')
claims.test('C15', fastest < pieces[-1], f'{fastest} micro-batches: {max(rows_a_second):.0f} rows/s, '
            f'{pieces[-1]}: {rows_a_second[-1]:.0f}', by='the planner')

# %% [markdown]
# The bubble gets smaller and smaller, so the sentence is right. (It is a little less than (n - 1) / (m + n - 1): the
# 26 layers do not divide evenly among eight stages, and what is lost by that is counted apart.) But a small bubble is
# not a fast pipeline: beyond 64 micro-batches the time to start kernels costs more than the bubble.
#
# ### "Deeper pipelines: lower throughput, but larger models"
#
# 2BW for the two GPTs on 64 devices, 512 rows: the fastest setting of each depth, and how large a model fits.

# %%
curves = {name: any_recompute(by_batch[512]) for name, by_batch in tried.items()}
plot.lines({f'GPT {name}': (list(curve), list(curve.values())) for name, curve in curves.items()},
           x='stages', y='rows/s', log='x', title='2BW, 64 devices: the fastest setting of each depth')

# %%
sizes = [largest_model(depth) for depth in (8, 64)]
by_batch = [kinds['2BW'] for kinds in rates.values()]
by_depth = [list(curve.values()) for curve in curves.values()]
told = [f'GPT {name} {row[0]:.0f} and {row[-1]:.0f} rows/s with batches of 64 and 512, from '
        f'{curve[0]:.0f} down to {curve[-1]:.0f} with the depth'
        for name, row, curve in zip(rates, by_batch, by_depth)]
claims.test('C32', grows_and_falls(by_batch, by_depth, sizes),
            f'{"; ".join(told)}; 8 stages hold {sizes[0] / 1e9:.1f} billion parameters, 64 hold '
            f'{sizes[1] / 1e9:.0f}', by='the cost model',
            because='Each depth takes the micro-batch that suits it best. Depths that are missing do not '
                    'fit, or are more than the layers.')

# %% [markdown]
# ### "Models with many weights and few activations gain most"
#
# In memory, that is. What does the fullest device need: on one device plainly; on one device with recompute and
# micro-batches of 8; in a pipeline of four stages with both? The gain *in all* is from the first to the last, that of
# *the cut alone* from the second to the last. *States* are weights, gradients and what Adam keeps.
#
# **Predict:** with 64 samples, 93 % of AlexNet's memory are states. How many times as much does one device need plainly
# as the fullest of four in the pipeline?

# %%
def needs(name, samples, **knobs):
    """What fills the fullest device."""
    task = Task(known(name), preset('v100-16', devices=4), samples)
    return way_pipeline.predict('GPipe', task, Knobs(schedule='gpipe', **knobs))


my_guess = None        # times

gained = {}            # states' share, gain in all, gain by the cut alone
for name, samples in [('unet', 64), ('resnet50', 64), ('bert-large', 64), ('vgg16', 64), ('alexnet', 64),
                      ('gpt-2.2B', 64), ('gpt-2.2B', 8)]:
    plain = needs(name, samples, rows=samples)
    again, both = (needs(name, samples, rows=8, recompute='layers', stages=stages) for stages in (1, 4))
    states = 1 - plain.memory['activations'] / plain.memory_bytes
    gained[name, samples] = (states, plain.memory_bytes / both.memory_bytes,
                             again.memory_bytes / both.memory_bytes)
compare(my_guess, gained['alexnet', 64][1], ' times')

# %%
print('                          states   in all   the cut alone')
for (name, samples), (states, in_all, by_cut) in gained.items():
    print(f'{name:10} {samples:2} samples {states:9.0%} {in_all:8.1f} {by_cut:13.1f} times')
in_order = [by_cut for _, _, by_cut in sorted(gained.values())]      # few states first
claims.test('C21', in_order == sorted(in_order) and all(in_all > 1 for _, in_all, _ in gained.values()),
            'the fullest of four devices needs less, in all of them; but in the order of their states the '
            'cut gains ' + ', '.join(f'{by_cut:.1f}' for by_cut in in_order) + ' times', by='the planner',
            because='A cut divides states only between layers, and one layer of VGG-16 and AlexNet has '
                    'most of them. In equal layers, as of a GPT, more states mean more gain.')

# %% [markdown]
# It is rather the other way round. Where states are less than a fifth, a device needs 6 to 21 times less in all,
# because recompute drops the activations; where they are more than half, 1.1 to 5.2 times less. What the cut alone
# gains depends on how even the layers are. Only within one network of equal layers (the last two lines) do more states
# mean more gain by the cut.
#
# ### "GPipe holds four times the batch in the same memory"
#
# In the lecture's hands-on a ResNet-50 reserved 8.1 GB of one GPU for 256 images, and 4.8 GB of two for 512 ([lesson
# 8](08_mnist_gpipe.ipynb)): for each byte 3.4 times the images. Here we count the bytes of a ResNet-18, plainly, with
# recompute and micro-batches of 2 images on one device, and with both as a pipeline of two.
#
# **Predict:** how many MB does a plain device need for each further image?

# %% tags=["measured"]
images, labels = data.subset(data.load('train'), 8, seed=0).tensors


def megabytes(count, balance):
    """Of every device at its peak, in two training steps; plain training without a balance."""
    devices, model = get_devices(len(balance) or 1, kind='cpu'), build('resnet18')
    if balance:
        model = GPipe(model, balance, devices=devices, chunks=count // 2, checkpoint='always')
    counted = measure(model, images[:count], labels[:count], devices, steps=2).memory
    return [one.peak / 1e6 for one in counted]


my_guess = None        # MB

four, eight = (sum(megabytes(count, [])) for count in (4, 8))
compare(my_guess, (eight - four) / 4, ' MB')

# %% [markdown]
# A pipeline with recompute keeps less of an image: its input at each stage. For the first stage that is the picture of
# 28 x 28 numbers, for the second what crosses the cut. So the bytes of 8 images are counted here, and those of each
# further image calculated.

# %% tags=["measured"]
counted = own(build('resnet18'), images[:2])
by_memory = balance_by_size(2, build('resnet18'), images, chunks=4, param_scale=3, device='cpu')
at_the_cut = 4e-6 * counted.layers[by_memory[0] - 1].output        # MB of an image
pixels = 4e-6 * counted.sample
each = {'plain': (eight - four) / 4, 'one device, recompute': pixels,
        'GPipe, two devices': pixels + at_the_cut}
needed = [eight, *(sum(megabytes(8, balance)) for balance in ([sum(by_memory)], by_memory))]
given, held = eight + 24 * each['plain'], {}      # what 32 images need plainly
for (name, more), mb in zip(each.items(), needed):
    held[name] = 8 + (given - mb) / more
    print(f'{name:22} {mb:4.0f} MB for 8 images, {more:5.3f} MB for each further one: '
          f'{held[name]:6,.0f} images in {given:.0f} MB')

# %% [markdown]
# (These numbers are in proportion: nobody ran thousands of images.) It is far more than four times, and that is not the
# pipeline's doing: one device with recompute and micro-batches holds even more. What does not shrink is what weights
# need, and each micro-batch after the first needs room for its gradients beside the sum. So with less than 160 MB not
# even two micro-batches of 2 images fit GPipe, while plain training holds nine images.
#
# The lecture's hands-on also asks: is it seen whether you balance by time or by memory? FLOPs stand for time here.

# %% tags=["measured"]
flops = [layer.flops for layer in counted.layers]
by_time = cut(flops, 2)


def units(balance):
    """A step of eight micro-batches, in virtual time."""
    works = sum(flops[:balance[0]]), sum(flops[balance[0]:])
    return simulate(gpipe(2, 8), Costs(F=works, B=[2 * work for work in works])).makespan


longer = units(by_memory) / units(by_time) - 1
fullest = [max(megabytes(8, balance)) for balance in (by_time, by_memory)]
claims.test('C22', fullest[1] < fullest[0] and longer > 0
            and held['GPipe, two devices'] > 4 * held['plain'],
            f'fullest device {fullest[0]:.0f} MB by time {by_time}, {fullest[1]:.0f} MB by memory '
            f'{by_memory}, but a step {longer:.0%} longer; in {given:.0f} MB {held["plain"]:.0f} images '
            f'plainly, in proportion {held["GPipe, two devices"]:,.0f} with GPipe',
            by='this run and the simulator',
            because='Recompute and micro-batches do it; one device alone can have them, too.')

# %% [markdown]
# ## What is wrong here?
#
# A plan is one thing, a run another. When a run is slower than its plan, look at the timeline of one step.
#
# Here is the same pipeline four times: six equal layers on three devices, four micro-batches. By the profile a layer
# takes 2 units for the forward of the whole mini-batch, so half a unit for a micro-batch, and twice as long back. One
# run is as it should be. In one a device is slow, in one a link, in one the cut is bad. (The runs are simulated.)

# %%
layer = faults.Layer(seconds=2.0, output=400, stash=800)
good = faults.Machine((layer,) * 6, slowness=(1.0,) * 3, seconds_a_byte=(0.001,) * 2, memory=(10**9,) * 3)
even = faults.Setting((2, 2, 2), chunks=4, schedule='1f1b', loss_scale=1 / 4)


def drawn(record):
    """What a record says of its devices, as a timeline."""
    return Timeline(tuple(tuple(Span(Op(span.kind, device, span.micro_batch), span.start, span.end)
                                for span in row) for device, row in enumerate(record.spans)),
                    tuple(f'device {device}' for device in range(len(record.spans))))


runs = [faults.run(even, good), faults.run(even, replace(good, seconds_a_byte=(0.001, 0.012))),
        faults.run(replace(even, balance=(1, 4, 1)), good),
        faults.run(even, replace(good, slowness=(1.0, 2.0, 1.0)))]
runs = Random(1).sample(runs, 4)      # shuffled
plot.timelines({f'run {number}': drawn(record) for number, record in enumerate(runs, 1)}, unit='units')

# %% [markdown]
# Device 0 on top, as ever; light boxes are forwards, dark ones backwards. **Predict:** in which run is a link slow?

# %%
my_guess = None        # run

waits = [record.spans[2][0].start - record.spans[1][0].end for record in runs]      # of micro-batch 0
compare(my_guess, 1 + waits.index(max(waits)), '')
print('between the first forwards of devices 1 and 2:', ', '.join(f'{wait:.1f}' for wait in waits), 'units')

# %% [markdown]
# Its boxes are as long as in run 3, but there are gaps between the end of a forward and its beginning on the next
# device: a message is on its way. Waiting is between boxes, never in them.
#
# Runs 2 and 4 have a device that all wait for. Which of them has a *slow* device? The picture cannot tell. The profile
# can: what should a box take?

# %%
for number in (2, 4):
    record = runs[number - 1]
    for device, count in enumerate(record.setting.balance):
        box = record.spans[device][0]
        print(f'run {number}, device {device}: a forward takes {box.end - box.start:.1f} units, '
              f'by the profile {count * layer.seconds / record.setting.chunks:.1f} ({count} layers)')

# %% [markdown]
# In run 2 all boxes are as long as the profile says: device 1 has too many layers (*imbalance*). In run 4 its box takes
# twice as long as it should: it is a *straggler*. The one wants another cut; the other a look at the machine, and until
# it is repaired another cut, too.
#
# Run 3 is idle for a third of the time (and a little for messages), and has no fault: (3 - 1) / (4 + 3 - 1) is the
# bubble of three stages and four micro-batches.

# %% [markdown]
# ### A real one
#
# Now on this machine: six equal layers on three slow devices, one of which got half the pace of the others. The cell
# draws lots, so nobody knows which.

# %% tags=["measured"]
slow = randrange(3)
three = [Device('cpu', index=k, pace=0.1 if k == slow else 0.2) for k in range(3)]
six = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(6)))
pipeline = Pipeline(six, [2, 2, 2], schedule='1f1b', chunks=6, loss_fn=mse_loss, devices=three)
rows = torch.randn(1536, 512)
for _ in range(2):      # the first step warms up
    pipeline.step(rows, rows)
plot.timeline(pipeline.trace, title='Which device is slow?')

# %% [markdown]
# **Predict:** which device?

# %% tags=["measured"]
my_guess = None        # device

compare(my_guess, slow, '')

# %% [markdown]
# The slow one has the fewest gaps, and all of its boxes are long. The others wait for it. (A single box that is longer
# than its like is noise: another program had the core.)
#
# ### When it does not end
#
# A run that stops says why, or stands still. Two devices, two micro-batches, and an order of operations that somebody
# wrote by hand. (Simulated again, so that you need not wait for the 30 seconds.)

# %%
rows = (('F0', 'B0', 'F1', 'B1'), ('F0', 'F1', 'B0', 'B1'))
pair = faults.Machine((layer,) * 4, (1.0, 1.0), (0.001,), (10**9, 10**9))
stuck = faults.run(faults.Setting((2, 2), 2, rows, 1 / 2), pair)
print(stuck.error)
for device, (row, spans) in enumerate(zip(stuck.rows, stuck.spans)):
    print(f'device {device} has run {", ".join(row[:len(spans)])}, and next comes {row[len(spans)]}')

# %% [markdown]
# Device 0 waits for the gradient of micro-batch 0, which device 1 will send after its F1, for which it waits for device
# 0: a *deadlock*. So with each device ask: what comes next, and from whom?
#
# In this order you find most faults:
#
# 1. Did it end? If not: who lacks memory, or who waits for whom?
# 2. Are gradients those of one device? A loss that is added up over micro-batches, and not averaged, is fast, and
#    wrong.
# 3. How many times as long as by the profile do the boxes of each device take? Is one device slower than the others by
#    that measure? Does a byte take longer on one link?
# 4. Does the profile give all stages the same work?
# 5. Only then the bubble. Is it larger than (p - 1) / (m + p - 1), for p stages and m micro-batches?
#
# In [exercises/17_diagnose.py](../exercises/17_diagnose.py) you write this down as a program, which then mends the run,
# too (40 minutes).

# %% tags=["yours"]
check(17)

# %% [markdown]
# Stuck? `./workshop.py hint 17` in a terminal tells a little more at each call.

# %% [markdown]
# ## Remember
#
# 1. Ask first what fits. If the model fits one device, with its states, take data parallelism, unless the network is
#    slow for its weights. If it does not fit, shard it or cut it: which of the two is faster, the network decides.
# 2. A speed-up is one over something, on some network, at some setting. Give the other side its best setting, too.
# 3. Idle time is no fault. Compare each box with the profile, each message with its bytes, and the bubble with its
#    formula.
#
# Next: [lesson 15](15_on_a_cluster.ipynb), the same on a cluster.
#
# The claims of lectures that this lesson put to the test (C05, C14, C15, C21, C22, C23, C25, C27, C31, C32, C33, C46),
# as they came out in this run:

# %% tags=["measured"]
claims
