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
# # 6 Recompute: memory for time
#
# When you are through, in about 40 minutes (an exercise of 35 comes on top), you will be able to
#
# - say what a stage of a pipeline keeps for its backwards, and count it in bytes;
# - tell what recompute saves and what it costs, before you run it;
# - explain why the second forward must draw the same random numbers as the first;
# - choose between recomputing activations and moving them to the memory of the host.

# %%
from dataclasses import replace
from time import perf_counter

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint_sequential

from fewgpu import GPipe, data, get_devices, plot, schedule
from fewgpu.balance import balance_by_time
from fewgpu.models import build
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop import check
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.here import Here
from fewgpu.workshop.lesson import compare
from fewgpu.workshop.measure import gradient_of, measure
from fewgpu.workshop.panel import Choice, Panel, Slider

claims = Claims()      # what we find out on the way is noted here

# %% [markdown]
# ## 1 What a stage keeps
#
# A backward needs the *activations* of its forward: what the layers were given. What a stage keeps of a micro-batch, from
# its forward until its backward, is called a *stash*. In GPipe all forwards come first. How many stashes does each of 4
# stages hold at its peak, with 8 micro-batches?

# %%
plan = schedule.gpipe(stages=4, micro_batches=8)
print(plan)
print(schedule.stashes(plan))

# %% [markdown]
# All of them. Does it help, then, that micro-batches are small? We count bytes. The network is a plain chain of layers, linear
# and GELU in turn (GELU is a smooth kind of ReLU), and each of them keeps exactly its input: 2048 rows of 64 numbers, 0.52 MB.
# It is cut into two stages on virtual devices, which count every tensor.
#
# **Predict:** in one piece, stage 0 with its 32 layers keeps 16.8 MB after the forward. How many MB with 8 micro-batches?

# %%
my_guess = None        # MB

rows, width = 2048, 64


def chain(layers):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.GELU() if k % 2 else nn.Linear(width, width) for k in range(layers)))


def metered(model, stages, **options):
    """A pipeline of equal stages whose devices count bytes."""
    devices, each = get_devices(stages, kind='cpu'), len(model) // stages
    pipe = GPipe(model, [each] * stages, devices=devices, **options)
    for part, device in zip(pipe.partitions, devices):
        device.meter().adopt(part.parameters(), parameters=True)
    return pipe


# %%
def kept(pipe, rows=rows):
    """Bytes that stage 0 keeps after the forward, besides its parameters."""
    output = pipe(torch.rand(rows, width))          # alive, and with it the graph
    ledger = pipe.stage_devices[0].ledger
    return ledger.allocated - ledger.parameters


pieces = {m: kept(metered(chain(64), 2, chunks=m, checkpoint='never')) for m in (1, 2, 4, 8)}
compare(my_guess, pieces[8] / 1e6, ' MB')
plot.bars({f'm = {m}': size / 1e6 for m, size in pieces.items()}, write='{:.2f} MB',
          title='Activations that stage 0 keeps, without recompute')

# %% [markdown]
# The same. Eight stashes of an eighth are one whole mini-batch. So far only the cut has saved memory: a stage has fewer
# layers. A larger mini-batch soon fills the device again.
#
# ## 2 Throw them away, and compute them again
#
# *Recompute* (also called activation checkpointing) keeps only the input of the stage. Its activations are dropped as the
# forward goes on. Just before a backward, the forward of that micro-batch runs a second time: *R* in the schedule.

# %%
print(schedule.with_recompute(schedule.gpipe(stages=4, micro_batches=4), 'always'))

# %% [markdown]
# A backward takes about twice as long as a forward. So a micro-batch now takes 1 + 1 + 2 units on a stage, and not 1 + 2:
# a third more.
#
# **Predict:** by how many percent does recompute lengthen the whole step, with 4 stages and 8 micro-batches? (A hint:
# an R needs no gradient from the next stage. Where can it start early?)

# %%
my_guess = None        # percent

again = schedule.with_recompute(plan, 'always')
costs = Costs(F=1, B=2, stash=8, input=1)           # the stage has 8 layers; its input is one more
direct, recomputed = simulate(plan, costs), simulate(again, costs)
compare(my_guess, 100 * (recomputed.makespan / direct.makespan - 1), ' % longer')
plot.timelines({'Without recompute': direct, 'With recompute': recomputed}, unit='units')

# %% [markdown]
# (Grey is idle; the *makespan* is the length of the whole picture.) A third more would be 44 units. It is 41: on devices 0, 1
# and 2 the first R runs while they wait for a gradient, on the last it does not. With many micro-batches that hardly counts,
# and a third is what remains:

# %%
def units(m, mode):
    return simulate(schedule.with_recompute(schedule.gpipe(4, m), mode), Costs(F=1, B=2)).makespan


for m in (4, 8, 16, 32, 128):
    always, except_last = (units(m, mode) / units(m, 'never') - 1 for mode in ('always', 'except_last'))
    print(f'm = {m:3}: always {always:.1%} longer, except_last {except_last:.1%} longer')

# %% [markdown]
# And what is gained? This is what lives on device 0, in inputs of a layer, of one micro-batch:

# %%
def live(step, device=0):
    """When something is kept or dropped, and how much is there from then on."""
    ends, amounts = zip(*((span.end, span.live) for span in step.rows[device] if span.live is not None))
    return ends, amounts


picture = plot.lines({'without recompute': live(direct), 'with recompute': live(recomputed)},
                     x='units', y='inputs of a layer', title='What lives on device 0')
for line in picture.axes[0].lines:
    line.set_drawstyle('steps-post')
picture.axes[0].set_ylim(0)
print(f'The peak falls from {direct.peak(0)} to {recomputed.peak(0)}.')
picture

# %% [markdown]
# From eight micro-batches times eight layers to 15: the inputs of seven micro-batches, and the eight layers of the one that
# is recomputed.
#
# *except_last* does not recompute the last micro-batch. Its backward is next in the row after its forward, so its activations
# would be dropped only to be made again. The peak stays the same.
#
# Try it. Numbers are inputs of a layer, of one micro-batch, as before. With more micro-batches each is smaller, so the line
# above the picture also says what the peak is in inputs of the whole mini-batch. (For all of that a layer takes 1 unit
# forward and 2 back.)

# %%
def draw(layers, micro_batches, recompute):
    plan = schedule.with_recompute(schedule.gpipe(4, micro_batches), recompute)
    each = layers / 4 / micro_batches
    step = simulate(plan, Costs(F=each, B=2 * each, stash=layers / 4, input=1))
    peak = max(map(step.peak, range(4)))
    said = (f'peak {peak:g} inputs, as much as {peak / micro_batches:.3g} of the whole mini-batch; '
            f'step {step.makespan:.4g} units')
    return plot.timeline(step, unit='units', counts='inputs'), said


Panel(draw, layers=Slider(32, 4, 64, 4), micro_batches=Slider(8, 1, 16),
      recompute=Choice('except_last', ('never', 'except_last', 'always')))

# %% [markdown]
# ## 3 The same random numbers
#
# The second forward must do exactly what the first did. Dropout draws a random mask. Run it twice, naively:

# %%
torch.manual_seed(0)
layer, x = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)), torch.rand(8, 64)
first = layer(x)                  # what the loss is computed from
second = layer(x)                 # what a naive recompute would compute the gradient from
right, = torch.autograd.grad(first.sum(), layer[0].weight)
naive, = torch.autograd.grad(second.sum(), layer[0].weight)
print('The same numbers are dropped:', torch.equal(first == 0, second == 0))
print('The gradient is that of the loss:', torch.equal(naive, right))

# %% [markdown]
# No error, and a wrong gradient: it belongs to another network than the one whose loss was computed.
#
# In a pipeline it is not enough to set the generator back, because several stages draw at the same time. Here each
# pair of stage and micro-batch has a *random stream* of its own. The recompute opens the same stream again:

# %%
def gradient(mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64), nn.Dropout(0.5))
    pipe = GPipe(model, [2, 2], devices=get_devices(2, kind='cpu'), chunks=4, checkpoint=mode)
    pipe(x).square().sum().backward()
    return gradient_of(model)


for mode in ('except_last', 'always'):
    same = torch.equal(gradient(mode), gradient('never'))
    print(f'{mode:11} gives the gradient of never, to the last bit:', same)

# %% [markdown]
# There is more that a second forward must not change: batch norm's running statistics would count every micro-batch
# twice, and a layer may write over its own input.
#
# **Your turn.** [exercises/07_recompute.py](../exercises/07_recompute.py) asks for both halves: a forward that keeps next to
# nothing, and a backward that runs it again. It takes about 35 minutes.

# %% tags=["yours"]
check(7)

# %% [markdown]
# (For a hint: `./workshop.py hint 07` in a terminal.)
#
# ## 4 On this machine
#
# Two real devices, and a ResNet-18 with 32 images in 8 micro-batches (on GPUs a ResNet-50 with 256), three times.

# %% tags=["measured"]
here = Here(2)
here

# %% tags=["measured"]
arch, batch = ('resnet50', 256) if here.on_gpus else ('resnet18', 32)
images, labels = data.subset(data.load('train'), batch, seed=0).tensors


def network():
    torch.manual_seed(0)
    return build(arch)


balance = balance_by_time(2, network(), images[:batch // 8])
print('layers per stage:', balance)

# %% [markdown]
# **Predict:** by how many percent does `except_last` lengthen the step here? (A thin grey line in the picture is a device that
# *waits for a message*.)

# %% tags=["measured"]
my_guess = None        # percent

modes = {mode: measure(GPipe(network(), balance, devices=here.devices, chunks=8, checkpoint=mode),
                       images, labels, here.devices) for mode in ('never', 'except_last', 'always')}
longer = modes['never'].speed / modes['except_last'].speed - 1
compare(my_guess, 100 * longer, ' % longer', doubt=here.doubt)
plot.timelines({mode: run.timeline for mode, run in modes.items()})

# %% tags=["measured"]
figure = plot.Picture(figsize=(9, 2.4), layout='constrained')
left, right = figure.subplots(1, 2)
plot.bars({mode: run.speed for mode, run in modes.items()}, left, title='Samples a second')
plot.memory_bars({mode: run.memory for mode, run in modes.items()}, right, title='Peak memory')
figure

# %% tags=["measured"]
def on_top(run):
    """MB on top of what stays: weights, gradients, momentum."""
    return sum(memory.peak - memory.allocated for memory in run.memory) / 1e6


for mode, run in modes.items():
    print(f'{mode:11} {on_top(run):5.0f} MB on top, {run.speed:5.1f} samples a second')

# %% [markdown]
# The memory on top of weights, gradients and momentum is a fraction of what it was, with `except_last` as with `always`. What
# fills the bars now are mostly gradients and momentum, above all on the last device, which holds most of the parameters.
#
# ## 5 The formula
#
# The GPipe paper (arXiv 1811.06965, section 2.3) counts in activations of one row and one layer. With N rows in a
# mini-batch, L layers, K stages and M micro-batches, a device needs of the order of
#
# - **N · L / K** without recompute (N · L on a single device);
# - **N + (L / K) · (N / M)** with it: the inputs of all micro-batches, and the activations of one.
#
# We hold the byte counter of stage 0 against it. The network has 64 layers; figures are divided by N, and rounded, because
# small tensors come and go in between.

# %%
def peak(pipe):
    """The most bytes of a step on stage 0, besides parameters and their gradients."""
    ledger = pipe.stage_devices[0].ledger
    pipe(torch.rand(rows, width)).square().mean().backward()
    return ledger.peak - 2 * ledger.parameters


unit = rows * width * 4                              # bytes of one input of a layer, all rows
for K, M in [(2, 8), (2, 16), (4, 8), (4, 16)]:
    without = kept(metered(chain(64), K, chunks=M, checkpoint='never')) / unit
    with_it = peak(metered(chain(64), K, chunks=M, checkpoint='always')) / unit
    print(f'K = {K}, M = {M:2}: without recompute {without:.0f} counted, {64 / K:.0f} by the formula; '
          f'with it {with_it:.0f} and {1 + 64 / K / M:.0f}')

# %% [markdown]
# More micro-batches make it smaller, down to the inputs alone. (On the last device the outputs of the mini-batch come on top.)
#
# ## 6 How much larger a model fits
#
# A device with 2 MB, and mini-batches of 256 rows. How many layers can the chain have, so that one step fits? We try, and
# halve the step of the search until it is one layer.
#
# **Predict:** 24 layers fit plainly. How many fit on the same device with recompute and 8 micro-batches? (An input of a layer is
# 66 kB, weights and gradients of a layer are 17 kB on average. Together that is 83 kB, 24 times in 2 MB.)

# %%
def fits(layers, rows, stages, chunks, mode):
    """Does one step fit? The plain model is one stage, in one micro-batch, without recompute."""
    devices = get_devices(stages, kind='cpu', memory_limit=2_000_000)
    each = [layers // stages + (s < layers % stages) for s in range(stages)]
    try:
        pipe = GPipe(chain(layers), each, devices=devices, chunks=chunks, checkpoint=mode)
        for part, device in zip(pipe.partitions, devices):
            device.ledger.adopt(part.parameters(), parameters=True)
        pipe(torch.rand(rows, width)).square().mean().backward()
        return True
    except torch.OutOfMemoryError:
        return False


def deepest(*how):
    layers, step = 0, 128
    while step:
        layers += step if fits(layers + step, *how) else 0
        step //= 2
    return layers


# %%
my_guess = None        # layers

ways = {'plain': (1, 'never'), 'recompute alone': (1, 'always'),
        '8 micro-batches alone': (8, 'never'), 'both': (8, 'always')}
deep = {name: deepest(256, 1, *how) for name, how in ways.items()}
compare(my_guess, deep['both'], ' layers')
plot.bars(deep, write='{:.0f} layers', title='The deepest chain that fits 2 MB, 256 rows')

# %% [markdown]
# Neither recompute nor micro-batches alone help one device; together they make the model three times as deep. In one piece,
# recompute brings back all activations at once. Micro-batches alone leave all of them there. With both, only those of
# one micro-batch are there, and the inputs of the others: 66 kB, and then 8 + 17 kB a layer.
#
# This depends on what fills the memory. With an eighth of the rows the activations are small, and weights and gradients, which
# recompute cannot drop, fill the device:

# %%
few = {name: deepest(32, 1, *how) for name, how in ways.items()}
plot.bars(few, write='{:.0f} layers', title='The deepest chain that fits 2 MB, 32 rows')

# %% [markdown]
# Here the micro-batches do harm, and recompute makes up for most of it. In the plain model activations go as gradients come.
# With micro-batches all gradients are there after the first backward, and the activations of the others come on top.
#
# And a second device? The cut halves everything, so it doubles each of these numbers:

# %%
two = {name: deepest(256, 2, *ways[name]) for name in ('plain', 'both')}
print('two devices, 256 rows:', two)

# %%
large, small = (found['both'] / found['8 micro-batches alone'] for found in (deep, few))
in_one_piece = deep['recompute alone'] / deep['plain']
slower = recomputed.makespan / direct.makespan - 1
claims.test('C17', large >= 2 and slower > 0,
            f'with 8 micro-batches, {large:.1f} times as many layers fit one device if they are recomputed '
            f'({small:.1f} times where weights fill it); in one piece {in_one_piece:.1f} times. '
            f'In virtual time a step is {slower:.0%} longer')

# %% [markdown]
# Published figures: GPipe's table 1 (arXiv 1811.06965) has the largest models that fit, in parameters, on one device plainly
# (*naive*) and with a pipeline of several.

# %%
table = {'AmoebaNet-D, devices of 8 GB': {'naive, 1': 82e6, '1': 318e6, '2': 542e6, '4': 1.05e9,
                                          '8': 1.8e9},
         'Transformer, devices of 16 GB': {'naive, 1': 282.2e6, '1': 785.8e6, '8': 5.3e9, '32': 21e9,
                                           '128': 83.9e9}}
for name, row in table.items():
    print(f'{name}, parameters as multiples of naive:')
    print('   ', ', '.join(f'{size / row["naive, 1"]:.1f} on {devices}' for devices, size in row.items()
                           if devices != 'naive, 1'))

# %% [markdown]
# On one device, 3.9 and 2.8 times as many parameters fit with recompute and micro-batches. Read the rest with care: the text
# says 25 times for 8 devices, and the table gives 22. AmoebaNet's models also become wider, so it is not depth alone that
# is compared.
#
# ## 7 Recompute, or move to the host?
#
# [Lesson 2](02_memory.ipynb) measured three neighbours of recompute: in one model without a pipeline, activations were recomputed
# in segments, moved to the *host* (the computer that the GPUs are in, with its own, larger memory), and encoded in 16 bits. A
# stage of a pipeline is such a segment. What is new here: how long do these take?
#
# First a check that they work here, too, with a chain of 36 layers on one device, in 6 segments. `step` gives the peak bytes on
# top of the weights, and the gradient. The *hooks* say what is done with a tensor when autograd keeps it, and when it takes it back.

# %%
core, = get_devices(1, kind='cpu')
model, x = chain(36), torch.rand(rows, width)
core.meter().adopt(model.parameters(), parameters=True)
weights = {p.data_ptr() for p in model.parameters()}


def step(forward):
    model.zero_grad()
    with core.active():                    # inside, this cell computes on that device
        core.ledger.reset_peak()
        before = core.ledger.allocated
        forward(x).square().mean().backward()
    return core.ledger.peak - before, gradient_of(model)


def with_hooks(pack, unpack):
    """The forward, with what autograd keeps packed; weights are on the device anyway."""
    def forward(x):
        with saved_tensors_hooks(lambda tensor: tensor if tensor.data_ptr() in weights else (pack(tensor),),
                                 lambda saved: unpack(*saved) if isinstance(saved, tuple) else saved):
            return model(x)
    return forward


# %%
forwards = {'plain': model,
            'recomputed': lambda x: checkpoint_sequential(model, 6, x, use_reentrant=False),
            'moved to the host': with_hooks(lambda tensor: tensor.detach().numpy().copy(),
                                            lambda array: torch.from_numpy(array).clone()),
            'encoded in 16 bits': with_hooks(torch.Tensor.bfloat16, torch.Tensor.float)}
peaks, gradients = zip(*map(step, forwards.values()))
wrong = [((gradient - gradients[0]).norm() / gradients[0].norm()).item() for gradient in gradients]
for name, error in zip(forwards, wrong):
    print(f'{name:18} gradient', 'as before, to the last bit' if error == 0 else 'less than 1 % off'
          if error < 0.01 else 'wrong')
plot.bars({name: peak / 1e6 for name, peak in zip(forwards, peaks)}, write='{:.1f} MB',
          title='Peak of a step, on top of weights')

# %%
claims.test('C45', max(peaks[1:]) < 0.7 * peaks[0] and wrong[1] == wrong[2] == 0 and wrong[3] < 0.01,
            'of the plain peak remain '
            + ', '.join(f'{peak / peaks[0]:.0%} {name}' for name, peak in [*zip(forwards, peaks)][1:])
            + ' (gradient less than 1 % off, that of the others exact); compilers and pruning not tried')

# %% [markdown]
# Now their time. Here host and device share one memory, so to move a tensor is to copy it: once there, and once back.
#
# **Predict:** by how many percent does recompute lengthen a step on this machine?

# %% tags=["measured"]
my_guess = None        # percent

uncounted, = get_devices(1, kind='cpu')    # for counting bytes takes time, too


def seconds(forward):
    return min(timed(forward) for _ in range(5))


def timed(forward):
    start = perf_counter()
    with uncounted.active():
        forward(x).square().mean().backward()
    return perf_counter() - start


took = {name: seconds(forward) for name, forward in forwards.items()}
compare(my_guess, 100 * (took['recomputed'] / took['plain'] - 1), ' % longer', doubt=here.doubt)
plot.bars({name: 1e3 * time for name, time in took.items()}, write='{:.0f} ms', title='One step, 36 layers')

# %% [markdown]
# You may find more or less than a third: a backward need not take twice as long as a forward, and to make and drop tensors takes
# time, too. Nor is a copy free: these layers compute so little that to copy a tensor may take as long as to compute it again.
#
# On a GPU a link lies between device and host, and it can work *while* the device computes. So it is a second worker, who
# takes each layer's activations after the device has made them, and brings them back, last first, before the
# device needs them. You know that picture: it is a pipeline with two stages.
#
# **Predict:** a layer takes 1 unit forward and 2 back, and its activations 1 unit on the link, each way. By how many percent
# is a step of 8 layers longer than without moving?

# %%
my_guess = None        # percent


def with_link(transfer, layers=8):
    step = simulate(schedule.gpipe(2, layers), Costs(F=[1, transfer], B=[2, transfer]))
    return replace(step, names=('device', 'link'))


compare(my_guess, 100 * (with_link(1).makespan / 24 - 1), ' %')
plot.timelines({'A link as fast as a forward': with_link(1), 'Half as fast': with_link(2)}, unit='units')

# %% [markdown]
# (Numbers are layers. On the row of the link "forward" is to the host, and "backward" is from there.)

# %%
times = [0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3]
moved = [100 * (with_link(time).makespan / 24 - 1) for time in times]
picture = plot.lines({'moved to the host': (times, moved), 'recomputed': (times, [100 / 3 for _ in times])},
                     x='time of a transfer (forwards of a layer)', y='longer (%)', title='Move or recompute?')
picture.axes[0].set_ylim(0)
picture

# %% [markdown]
# As long as a transfer takes no longer than the forward of its layer, it is hidden, but for the first and the last, and moving
# is cheaper than recompute. If it takes longer, the device waits. Soon recompute is the cheaper one: it needs no link at all.

# %% [markdown]
# ## Remember
#
# 1. GPipe stashes all micro-batches. Recompute keeps the stage's inputs and the activations of one: N + (L / K) · (N / M)
#    in place of N · L / K, for a third more computing.
# 2. The second forward must be an exact repetition of the first, random numbers and all, or the gradient is silently wrong.
# 3. Recompute needs micro-batches (or segments) to help, and activations that fill the memory. Moving activations is an
#    alternative where the link is fast enough.
#
# Next: [lesson 7](07_balance.ipynb), where to cut.
#
# The claims of lectures that this lesson put to the test (C17, C45), as they came out in this run:

# %%
claims
