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
# - choose between recompute, moving activations to host memory, and storing them in fewer bits.

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
from fewgpu.workshop.here import Here, measure
from fewgpu.workshop.lesson import compare
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
# and GELU in turn, and each of them keeps exactly its input: 2048 rows of 64 numbers, 0.52 MB. It is cut into two
# stages on virtual devices, which count every tensor.
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
# an R needs no gradient from downstream. Where can it start early?)

# %%
my_guess = None        # percent

again = schedule.with_recompute(plan, 'always')
costs = Costs(F=1, B=2, stash=8, input=1)           # the stage has 8 layers; its input is one more
direct, recomputed = simulate(plan, costs), simulate(again, costs)
compare(my_guess, 100 * (recomputed.makespan / direct.makespan - 1), ' % longer')
plot.timeline(direct, title='Without recompute', unit='units', counts='layers')

# %%
plot.timeline(recomputed, title='With recompute', unit='units', counts='layers')

# %% [markdown]
# The lower half of a picture shows what lives on each device, in inputs of a layer, of one micro-batch. It falls from 64 to
# 15: the inputs of seven micro-batches, and the eight layers of the one that is recomputed.
#
# And the step is 24 % longer, not 33 %. Devices wait at the turn from forwards to backwards anyway, and there the
# first R costs nothing: it fills a part of the bubble. With many micro-batches the bubble is small, and a third is what
# remains:

# %%
def units(m, mode):
    return simulate(schedule.with_recompute(schedule.gpipe(4, m), mode), Costs(F=1, B=2)).makespan


for m in (4, 8, 16, 32, 128):
    always, except_last = (units(m, mode) / units(m, 'never') - 1 for mode in ('always', 'except_last'))
    print(f'm = {m:3}: always {always:.1%} longer, except_last {except_last:.1%} longer')

# %% [markdown]
# *except_last* does not recompute the last micro-batch. Its backward follows its forward at once, so its activations would
# be dropped only to be made again. The peak stays the same.
#
# Try it. `peak` is in inputs of a layer for the whole mini-batch; a layer takes 1 unit forward and 2 back.

# %%
def draw(layers, micro_batches, recompute):
    plan = schedule.with_recompute(schedule.gpipe(4, micro_batches), recompute)
    each = layers / 4 / micro_batches
    step = simulate(plan, Costs(F=each, B=2 * each, stash=each, input=1 / micro_batches))
    said = f'peak {max(map(step.peak, range(4))):.3g}, step {step.makespan:.4g} units'
    return plot.timeline(step, unit='units', counts='layers'), said


Panel(draw, layers=Slider(32, 4, 64, 4), micro_batches=Slider(8, 1, 32),
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
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


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
# **Predict:** by how many percent does `except_last` lengthen the step here?

# %% tags=["measured"]
my_guess = None        # percent

modes = {mode: measure(GPipe(network(), balance, devices=here.devices, chunks=8, checkpoint=mode),
                       images, labels, here.devices) for mode in ('never', 'except_last', 'always')}
longer = modes['never'].speed / modes['except_last'].speed - 1
compare(my_guess, 100 * longer, ' % longer')
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
    print(f'{mode:11} {on_top(run):5.0f} MB on top, {run.speed:5.1f} samples/sec')
print(f'except_last: {longer:+.0%} time' + here.doubt)

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
# **Predict:** 24 layers fit plainly. How many fit on the same device with recompute and 8 micro-batches?

# %%
def fits(layers, rows, stages, mode):
    """Does one step fit? The plain model is one stage, in one micro-batch, without recompute."""
    devices = get_devices(stages, kind='cpu', memory_limit=2_000_000)
    each = [layers // stages + (s < layers % stages) for s in range(stages)]
    try:
        pipe = GPipe(chain(layers), each, devices=devices, chunks=8 if mode else 1,
                     checkpoint=mode or 'never')
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

ways = {'plain, 1 device': (1, ''), 'recompute, 1 device': (1, 'always'),
        'pipeline, 2 devices': (2, 'never'), 'recompute, 2 devices': (2, 'always')}
deep = {name: deepest(256, *how) for name, how in ways.items()}
compare(my_guess, deep['recompute, 1 device'], ' layers')
plot.bars(deep, write='{:.0f} layers', title='The deepest chain that fits 2 MB a device, 256 rows')

# %% [markdown]
# Recompute alone makes the model three times as deep, and each device adds as much again. The cut alone does less.
#
# This depends on what fills the memory. With an eighth of the rows the activations are small, and weights and gradients, which
# recompute cannot drop, fill the device:

# %%
few = {name: deepest(32, *ways[name]) for name in ('plain, 1 device', 'recompute, 1 device')}
plot.bars(few, write='{:.0f} layers', title='The deepest chain that fits 2 MB, 32 rows')

# %% [markdown]
# Here recompute even does harm. In the plain model activations go as gradients come. With micro-batches all gradients are
# there after the first backward, and the activations of the next micro-batch come on top.

# %%
alone = deep['recompute, 1 device'] / deep['plain, 1 device']
both = deep['recompute, 2 devices'] / deep['plain, 1 device']
small = few['recompute, 1 device'] / few['plain, 1 device']
slower = recomputed.makespan / direct.makespan - 1
claims.test('C17', alone >= 2 and slower > 0,
            f'{alone:.1f} times as many layers fit one device with recompute, {both:.0f} times two; but '
            f'{small:.1f} times where weights fill it. In virtual time a step is {slower:.0%} longer')

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
# On one device, 3.9 and 2.8 times as many parameters fit with recompute and micro-batches. Read the rest with care:
#
# - The text says 25 times for 8 devices; the table gives 22.
# - AmoebaNet's models also become wider, so it is not depth that is compared.
# - Two memory figures of the naive Transformer seem to be swapped in the printed table (our inference: 12 bytes a
#   parameter fit the other one). Only parameters are used here.

# %% [markdown]
# ## 7 Other ways to the same memory
#
# Recompute works without a pipeline, too, and it has neighbours. We look at four, with a chain of 36 layers on one
# device. `step` runs one training step and gives the peak bytes on top of the weights, and the gradient.

# %%
core, = get_devices(1, kind='cpu')
model, x = chain(36), torch.rand(rows, width)
core.meter().adopt(model.parameters(), parameters=True)


def step(forward):
    model.zero_grad()
    with core.active():                    # inside, this cell computes on that device
        core.ledger.reset_peak()
        before = core.ledger.allocated
        forward(x).square().mean().backward()
    return core.ledger.peak - before, torch.cat([p.grad.flatten() for p in model.parameters()])


plainly, exact = step(model)
print(f'Plain: {plainly / 1e6:.1f} MB; 36 inputs of layers are {36 * x.nbytes / 1e6:.1f} MB of it')

# %% [markdown]
# **Segments.** Cut the chain into k segments of n / k layers, keep only the input of each, and recompute one segment at a
# time (torch has it ready, as `checkpoint_sequential`). Of the order of k + n / k inputs are kept (Chen et al., arXiv 1604.06174). **Predict:** for which k does a chain of
# 36 layers need least?

# %%
my_guess = None        # segments

cuts = [1, 2, 3, 4, 6, 9, 12, 18, 36]
segments = {k: step(lambda x: checkpoint_sequential(model, k, x, use_reentrant=False))[0] for k in cuts}
best = min(segments, key=segments.get)
compare(my_guess, best, ' segments')
plot.lines({'counted': (cuts, [size / x.nbytes for size in segments.values()]),
            'k + n / k': (cuts, [k + 36 / k for k in cuts])},
           x='segments', y='inputs of a layer', title='Recompute in segments, 36 layers')

# %% [markdown]
# The square root of the number of layers: 6. With fewer segments each is long, with more there are many inputs to keep. (About
# three more are counted than the formula says: what the backward itself makes on its way.) A stage of a pipeline is such a
# segment.
#
# **Moved to the host.** Autograd lets us say what to do with each tensor that it saves: `saved_tensors_hooks` takes a function
# that puts it away, and one that brings it back. Ours copies it into bytes of the host, which the device's memory
# does not count. (Weights stay: they are on the device anyway.)

# %%
weights, moved = {p.data_ptr() for p in model.parameters()}, []


def to_host(tensor):
    if tensor.data_ptr() in weights:
        return tensor
    moved.append(tensor.nbytes)
    return bytearray(tensor.detach().numpy().tobytes())


def to_device(saved):
    if isinstance(saved, torch.Tensor):
        return saved
    return torch.frombuffer(saved, dtype=torch.float32).view(rows, width).clone()


def offloaded(x):
    with saved_tensors_hooks(to_host, to_device):
        return model(x)


# %%
offload, gradients = step(offloaded)
print(f'Peak {offload / 1e6:.1f} of {plainly / 1e6:.1f} MB; {sum(moved) / 1e6:.1f} MB went to the host')
print('The gradient is the same, to the last bit:', torch.equal(gradients, exact))

# %% [markdown]
# **Encoded.** The same hooks can store what is saved in fewer bits, on the device. `bfloat16` has 16 of 32 bits, and about
# three decimal digits. **Predict:** by how many percent is the gradient then wrong?

# %%
my_guess = None        # percent


def encoded(x):
    with saved_tensors_hooks(lambda full: full if full.data_ptr() in weights else full.bfloat16(),
                             lambda saved: saved.float()):      # a weight has 32 bits: it stays as it is
        return model(x)


half, gradients = step(encoded)
wrong = ((gradients - exact).norm() / exact.norm()).item()
compare(my_guess, round(100 * wrong, 2), ' %')
print(f'Peak {half / 1e6:.1f} MB')

# %% [markdown]
# The forward is exact; only the backward sees rounded numbers. Whether such an error matters is for the training to say.
#
# **Never made.** GELU's backward needs its input, and the linear layer after it needs its output: two tensors. ReLU's backward
# needs only its output, which is the next layer's input anyway: one tensor, kept once.

# %%
gelu = model
model = nn.Sequential(*(nn.ReLU() if k % 2 else gelu[k] for k in range(36)))
relu, _ = step(model)
model = gelu
peaks = {'plain': plainly, f'{best} segments, recomputed': segments[best],
         'moved to the host': offload, 'encoded in 16 bits': half, 'ReLU for GELU': relu}
plot.bars({name: size / 1e6 for name, size in peaks.items()}, write='{:.1f} MB',
          title='Peak of a step, on top of weights')

# %%
claims.test('C45', max(segments[best], offload, half, relu) < 0.7 * plainly and wrong < 0.01,
            f'of the plain peak remain {segments[best] / plainly:.0%} with {best} recomputed segments, '
            f'{offload / plainly:.0%} moved to the host, {half / plainly:.0%} in 16 bits (gradient less '
            f'than 1 % off), {relu / plainly:.0%} with ReLU')

# %% [markdown]
# ## 8 What does it cost in time?
#
# Here they are on this machine, in seconds a step. The host and the device share one memory here, so moving is only
# a copy: that is as cheap as it gets.

# %% tags=["measured"]
uncounted, = get_devices(1, kind='cpu')    # for counting bytes takes time, too


def seconds(forward):
    return min(timed(forward) for _ in range(5))


def timed(forward):
    start = perf_counter()
    with uncounted.active():
        forward(x).square().mean().backward()
    return perf_counter() - start


costs = {'plain': model,
         'recomputed': lambda x: checkpoint_sequential(model, best, x, use_reentrant=False),
         'moved to the host': offloaded, 'encoded in 16 bits': encoded}
plot.bars({name: 1e3 * seconds(forward) for name, forward in costs.items()}, write='{:.0f} ms',
          title='One step, 36 layers')

# %% [markdown]
# On a GPU a link lies between device and host, and it can work while the device computes. So it is a second worker, who
# takes each layer's activations after the device has made them, and brings them back, last first, before the
# device needs them. You know that picture: it is a pipeline with two stages. (Numbers are layers; on the row of the link
# "forward" is to the host and "backward" is from there.)
#
# **Predict:** a layer takes 1 unit forward and 2 back, and its activations 1 unit on the link, each way. By how many percent
# is a step of 12 layers longer than without moving?

# %%
my_guess = None        # percent


def with_link(transfer, layers=12):
    step = simulate(schedule.gpipe(2, layers), Costs(F=[1, transfer], B=[2, transfer]))
    return replace(step, names=('device', 'link'))


compare(my_guess, 100 * (with_link(1).makespan / 36 - 1), ' %')
plot.timelines({'A link as fast as a forward': with_link(1), 'Half as fast': with_link(2)}, unit='units')

# %%
times = [0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3]
plot.lines({'moved to the host': (times, [100 * (with_link(time).makespan / 36 - 1) for time in times]),
            'recomputed': (times, [100 / 3 for _ in times])},
           x='time of a transfer (forwards of a layer)', y='longer (%)', title='Move or recompute?')

# %% [markdown]
# As long as a transfer takes no longer than the forward of its layer, it is hidden, and moving is cheaper than recompute. If
# it takes longer, the device waits. Soon recompute is the cheaper one: it needs no link at all.

# %% [markdown]
# ## Remember
#
# 1. GPipe stashes all micro-batches. Recompute keeps the stage's inputs and the activations of one: N + (L / K) · (N / M)
#    in place of N · L / K, for a third more computing.
# 2. The second forward must be the double of the first, random numbers and all, or the gradient is silently wrong.
# 3. How much larger a model fits depends on what fills the memory. Moving and encoding activations are alternatives; the
#    link and the precision decide.
#
# Next: [lesson 7](07_balance.ipynb), where to cut.
#
# The claims of lectures that this lesson put to the test (C17, C45), as they came out in this run:

# %%
claims
