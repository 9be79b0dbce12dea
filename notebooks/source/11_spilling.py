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
# # 11 Hydra: spilling, double buffering, many models at once
#
# When you are through, in about 40 minutes (an exercise of 35 comes on top), you will be able to
#
# - train a model that is ten times as large as its device, and say what then fills the device;
# - tell when a second buffer hides the loading of weights, and when it cannot;
# - share a few devices among many models, and say which of them is next;
# - decide between spilling and a pipeline.

# %%
from statistics import median

import torch
from torch import nn
from torch.nn.functional import mse_loss

from fewgpu import plot
from fewgpu.device import Device, get_devices, one_thread
from fewgpu.plot.looks import label_rows
from fewgpu.spill import Chain, Spilled, plan, shards_that_fit
from fewgpu.spill.units import units
from fewgpu.workshop import check
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.demos.hydra import (hides_transfers, is_that_much_faster, keeps_busy, lanes,
                                         since_start, together, trains_by_shards)
from fewgpu.workshop.lesson import compare
from fewgpu.workshop.measured.hydra import (PACE, even_balance, pipelined, seconds_of, shared, spilled,
                                            tokens, virtual_pipeline)
from fewgpu.workshop.noise import Quiet
from fewgpu.workshop.panel import Choice, Panel, Slider

claims = Claims()      # what we find out on the way is noted here

# %% [markdown]
# ## One device, and a model that does not fit
#
# In lessons [4](04_model_parallelism.ipynb) to [10](10_stale_weights.ipynb) a large model was cut over several
# devices. All of them together have to hold it. What if they do not, or if there is only one?
#
# Here is a model of 64 layers, and a device with a tenth of the memory that the model's weights alone need. (A virtual
# device: its ledger counts every tensor that lives on it, as in [lesson 2](02_memory.ipynb), and refuses what is over
# the limit.)

# %%
def network():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.Tanh()) for _ in range(64)))


x, y = torch.rand(32, 128), torch.zeros(32, 128)     # a mini-batch of 32 rows
model = network()
weights = sum(weight.nbytes for weight in model.parameters())
small = Device(memory_limit=weights // 10)
print(f'{weights / 1e3:,.0f} kB of weights; the device has {small.memory_limit / 1e3:,.0f} kB')
try:
    small.ledger.adopt(model.parameters(), parameters=True)      # as model.to(device) does on a GPU
except torch.OutOfMemoryError as error:
    print(error)

# %% [markdown]
# The *host*, the computer around the device, has much more memory than the device. So let the weights live there.
#
# ## One shard at a time
#
# That is *spilling*, as Hydra does it (arXiv 2110.08633). The layers are cut into *shards*: runs of layers, as the
# stages of a pipeline are, but they all use the same device, one after the other. What is done with one shard while
# it is there is a *unit* of work:
#
# - **F**, the forward of a shard. It keeps the shard's input on the device, and nothing else.
# - **L**, of the last shard: forward, loss and backward, all at once.
# - **B**, the backward of a shard. It first runs the forward again from the input that was kept. That is the
#   recompute of [lesson 6](06_recompute.ipynb).
#
# Before a unit the shard's weights are copied to the device: that is a *load*. After B or L its gradients go to the
# host, where the optimizer works. So the device never holds the optimizer's states. (F2 is the forward of shard 2 here,
# not of a micro-batch.)

# %%
print('A step of four shards:', *(f'{unit.kind}{unit.shard}' for unit in units(4)))

# %% [markdown]
# `Spilled` trains like this. (`prefetch` comes later. Without an optimizer it leaves gradients in `.grad`.)
#
# **Predict:** how many loads are there in a step of four shards, all shards together?

# %%
my_guess = None        # loads

trainer = Spilled(network(), [16] * 4, device=Device(), loss_fn=mse_loss, prefetch=False)
trainer.step(x, y)
loads = [visit.unit.shard for visit in trainer.visits if visit.what == 'load']
compare(my_guess, len(loads), ' loads')
print('shards, in the order in which they came:', *loads)

# %% [markdown]
# Each shard is loaded twice, only the last one once: 2 S - 1 loads for S shards. And does it compute the same as the
# plain model?

# %%
plain = network()
with one_thread():                       # as a virtual device computes
    mse_loss(plain(x), y).backward()


def as_plain(trainer):
    return all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), trainer.parameters()))


print('all gradients are those of the plain model, bit by bit:', as_plain(trainer))

# %% [markdown]
# ## What fills the device?
#
# We ask the ledger for the *peak*, the most bytes that live on the device at once, with 1, 2, 4, ... 64 shards.
#
# **Predict:** as one shard the model needs 8.5 MB: twice the weights (for there are gradients, too), and some more.
# What is the peak with 64 shards of one layer each? Weights of a layer are 66 kB, its input is 16 kB (32 rows of 128
# numbers).

# %%
my_guess = None        # kB


def peak(balance, on_host, limit=None):
    """Bytes, and the trainer, after a step with so many layers a shard."""
    device = Device(memory_limit=limit)
    device.meter()
    trainer = Spilled(network(), balance, device=device, loss_fn=mse_loss, prefetch=False,
                      inputs_on_host=on_host)
    trainer.step(x, y)
    return device.ledger.peak, trainer


counts = [1, 2, 4, 8, 16, 32, 64]
peaks = {name: [peak([64 // n] * n, on_host)[0] / 1e3 for n in counts]
         for name, on_host in (('inputs stay on the device', False), ('inputs go to the host', True))}
compare(my_guess, peaks['inputs stay on the device'][-1], ' kB')
plot.lines({name: (counts, kept) for name, kept in peaks.items()}, x='shards', y='kB', log='xy',
           title='Peak on the device')

# %% [markdown]
# One shard is at its peak near the end of the backward, where nearly all gradients are there, and most activations
# have gone.
#
# If you guessed 200 kB for 64 shards, you counted the weights and gradients of one layer, and its activations. But
# between F and B each shard keeps its input, and 64 inputs of 16 kB are more than a megabyte: with 64 shards the peak
# is *higher* again than with 32. With `inputs_on_host=True` the inputs travel to the host, too, and the peak goes on
# falling.

# %% [markdown]
# ## The pilot run
#
# So into how many shards? As few as fit, for each unit costs some time of its own. How much a layer needs is hard to
# tell from its code. Hydra tries it out: the *pilot run* adds layer after layer to a shard, runs its forward and
# backward on the device, and where torch says out of memory, it cuts.
#
# **Predict:** into how many shards, for the device of 423 kB, a tenth of the weights? Inputs go to the host. Unit B
# of a shard holds its weights and their gradients, 66 + 66 kB for each layer, and beside them some activations of 16
# kB each. (`second_buffer` comes later.)

# %%
my_guess = None        # shards


def cut(limit, second_buffer):
    return shards_that_fit(network(), x, y, mse_loss, Device(memory_limit=limit), inputs_on_host=True,
                           double_buffer=second_buffer)


balance = cut(weights // 10, second_buffer=0)
compare(my_guess, len(balance), ' shards')
print('layers a shard:', *balance)

# %% [markdown]
# Does it fit, and how much memory is left? We train with this cut, and look at the peak. Then we give the device just
# as much as the peak, and a byte less.

# %%
needs, trainer = peak(balance, on_host=True)
print(f'peak {needs / 1e3:.1f} kB of {small.memory_limit / 1e3:.1f} kB')
for limit in needs, needs - 1:
    try:
        peak(balance, on_host=True, limit=limit)
        print(f'{limit:,} bytes: trains')
    except torch.OutOfMemoryError:
        print(f'{limit:,} bytes: out of memory')

# %%
loads = [visit.unit.shard for visit in trainer.visits if visit.what == 'load']
claims.test('C36', trains_by_shards(as_plain(trainer), loads, len(balance), needs, small.memory_limit),
            f'{weights / 1e3:,.0f} kB of weights trained with at most {needs / 1e3:.0f} kB at once, '
            f'where {small.memory_limit / 1e3:.0f} kB were allowed; gradients as those of the plain model, '
            f'bit by bit; {len(loads)} loads of {len(balance)} shards in a step',
            because='The last shard is loaded once: its forward, loss and backward are one unit.')

# %% [markdown]
# ## Waiting for weights
#
# While a shard is on its way the device waits. How long is a step? First in virtual time, with four shards. Let a
# forward of a shard take 1 second, a backward 2, and a load 1. So F takes 1 s, and L and B take 3 s each: a forward
# and a backward. While gradients leave the device, it goes on working, so we do not count that.
#
# `Chain` is such a model, and `plan` tells when each unit would run.

# %%
def chain(load, shards=4, batches=1):
    seconds = [1] * (shards - 1) + [3] * shards       # all F, then L, then all B
    return Chain(seconds, batches, [load] * len(seconds))


one_buffer = plan([chain(load=1)], devices=1, prefetch=False)
print(f'a step: {one_buffer.makespan:g} s; of them the device computes {one_buffer.utilisation:.0%}')

# %% [markdown]
# Now give the device a second *buffer*: memory into which the next shard is copied, while the device computes with
# the one in the first buffer. Then they change places. That is *double buffering*.
#
# **Predict:** the step took 22 s: 15 of work, 7 of loads. How many seconds does it take with two buffers?

# %%
my_guess = None        # s

two_buffers = plan([chain(load=1)], devices=1)
compare(my_guess, two_buffers.makespan, ' s')


def with_link(run, begins, ax, title):
    """A row for the link, where a load takes 1, and one for the device."""
    kinds, shards = 'FFFLBBB', [run.chains[0].shard(one.number) for one in run.done]
    plot.tasks([*(plot.Task(0, 'shard comes', shard, at, at + 1) for at, shard in zip(begins, shards)),
                *(plot.Task(1, {'F': 'forward'}.get(kind, 'backward'), shard, one.start, one.end)
                  for kind, shard, one in zip(kinds, shards, run.done))], ax, title=title, unit='s', span=22)
    label_rows(ax, ['link', 'device'])


figure = plot.Picture(figsize=(8, 3.6), layout='constrained')
upper, lower = figure.subplots(2, 1)
with_link(one_buffer, [one.start - 1 for one in one_buffer.done], upper, 'One buffer')
with_link(two_buffers, [0, *(one.start for one in two_buffers.done[:-1])], lower, 'Two buffers')
figure

# %% [markdown]
# Six of seven loads are *hidden*: they take place while the device computes. The first load of a step cannot be hidden,
# for there is nothing to compute yet. (The number in a bar is the shard. L3 is drawn as a backward.)
#
# What if the link is slower? While the device computes F, for 1 s, it can hide 1 s of a load. Of a longer load it has
# to wait for the rest.

# %%
slow = [0, 0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 6]
lengths = {name: [plan([chain(load)], 1, prefetch=ahead).makespan for load in slow]
           for name, ahead in (('one buffer', False), ('two buffers', True))}
gains = [one / two for one, two in zip(*lengths.values())]
said = [f'{gain:.2f} (load {load:g})' for load, gain in zip(slow, gains)]
print('times as fast with two buffers:', ', '.join(said))
plot.lines({name: (slow, found) for name, found in lengths.items()}, x='a load, in forwards of a shard',
           title='Length of a step, s')

# %% [markdown]
# Two buffers help most where a load takes 3 s, as long as unit B: the step is 1.5 times as fast. If all units took as
# long as a load, and there were many shards, it would be nearly twice as fast. (The authors say 1.5 to 2 times, in the
# README of their code.)

# %% [markdown]
# How long is a load on your GPU? Let P be the number of parameters of a shard, most of them in linear layers. A load
# moves 4 P bytes, and a forward takes 2 P operations (a multiplication and an addition for each parameter) for each
# *row* of the mini-batch. (In a language model a row is a token.) Let the link carry W bytes a second, and the device
# do C operations a second. Load and forward take the same time if
#
# > 4 P / W = 2 P · rows / C, so rows = 2 C / W
#
# **Predict:** a link of 12 GB/s (a figure of a lecture on ZeRO-Infinity, which keeps weights on the host, too), and a
# device of 10 TFLOP/s, 10 · 10¹² operations a second. How many rows does a mini-batch need, so that each forward
# hides a load?

# %%
my_guess = None        # rows

compare(my_guess, 2 * 10e12 / 12e9, ' rows')

# %% [markdown]
# The size of the model is not in the formula. A faster GPU needs *larger* mini-batches. With a link that is twice as
# fast, half as many rows are enough.
#
# The price of the second buffer is memory. In the pilot run 40 % of the device are kept free: half of that for the
# shard that comes, and half for gradients that leave. So the weights of a shard take at most a fifth of the device. In
# the table each row is a device, with a tenth, a sixth or a third of the memory that the model's weights need:

# %%
print('memory, of the weights  shards, one buffer  two buffers')
for part in 10, 6, 3:
    one, two = (len(cut(weights // part, room)) for room in (0, 0.4))
    print(f'{"1/" + str(part):>22} {one:19} {two:12}')

# %% [markdown]
# There are more shards, but each is smaller: the bytes that travel stay nearly the same.
#
# ## Are loads hidden on this machine?
#
# A small GPT in five shards trains on a slow virtual device: it uses a fifth of a core, so that the host's threads find
# a core when they need one. A load of the largest shard takes two fifths of a mean unit. We train with one buffer and
# with two, in turns. (The devices are virtual even if you have a GPU, so that everybody has the same link.)
#
# Now gradients that leave take time as well. When those of a shard are on the host, the host updates the shard. We
# count both as travel. So there are 9 loads in a step, and 5 times gradients leave.
#
# **Predict:** what percentage of all travel time do two buffers hide? (What can never be hidden?)

# %% tags=["measured"]
my_guess = None        # percent

quiet, batch = Quiet(), tokens(4, 32)
trial = spilled(0, even_balance(5), [Device(pace=PACE)])
unit = seconds_of(lambda: trial.step(*batch), 2)[-1] / len(trial.units)
bandwidth = max(shard.bytes for shard in trial.shards) / (0.4 * unit)
trainers = {ahead: spilled(0, even_balance(5), get_devices(1, kind='cpu', pace=PACE, bandwidth=bandwidth),
                           prefetch=ahead) for ahead in (False, True)}
seconds, exposed = {False: [], True: []}, []
for _ in range(4):
    quiet.look()
    for ahead, trainer in trainers.items():
        seconds[ahead] += seconds_of(lambda: trainer.step(*batch), 1)
    computed, travelled = (sum(visit.end - visit.start for visit in trainers[True].visits
                               if (visit.what == 'compute') == computes) for computes in (True, False))
    exposed.append((seconds[True][-1] - computed) / travelled)      # waiting that is left
hidden = 1 - median(exposed[1:])                         # the first round warms up
one, two = (median(seconds[ahead][1:]) for ahead in (False, True))
compare(my_guess, 100 * hidden, ' %')

# %% tags=["measured"]
figure = plot.Picture(figsize=(9, 5), layout='constrained')
longest = max(visit.end for trainer in trainers.values() for visit in since_start(trainer.visits))
for ax, name, trainer in zip(figure.subplots(2, 1), ('One buffer', 'Two buffers'), trainers.values()):
    lanes(ax, since_start(trainer.visits), f'{name}, one step', longest)
figure

# %% tags=["measured"]
claims.test('C37', quiet.verdict(hides_transfers(hidden)),
            f'{hidden:.0%} of the transfers, and of the updates on the host, are hidden; a step takes '
            f'{two:.2f} s instead of {one:.2f}, {one / two:.2f} times as fast{quiet.note}',
            because='How much there is to hide depends on the link: here two fifths of a unit for a shard.')

# %% [markdown]
# The first load and the last update can never be hidden. (The claim counts as confirmed if at least 70 % are hidden.
# With one buffer the device waits for the host's updates, too: that is a part of its longer step.)
#
# ## Many models
#
# Now two devices. One spilled model cannot use the second: each of its units needs the one before. In model
# parallelism, a pipeline without micro-batches, it is the same: all devices but one wait.
#
# But who trains only *one* model? Whoever looks for a good learning rate trains ten. A shard of another model need
# not wait. Hydra's name for it is *SHARP*: a device that is free takes the next shard of some model.
#
# **Predict:** three models of two mini-batches, 30 s of work each, and two devices. A load takes half a second from
# here on. If each model stayed on one device, one device would have two models, and all would be done after 60 s.
# When are they done if a device may change to another model after every unit?

# %%
my_guess = None        # s

three = plan([chain(load=0.5, batches=2)] * 3, devices=2)
compare(my_guess, three.makespan, ' s')
plot.tasks(together(three), title='Three models share two devices (numbers: shards)', unit='s',
           worker='device')

# %% [markdown]
# The work is 90 s, for two devices 45 s each, and little is lost. A model may move to another device, as model 2 does
# in the picture: its weights come from the host anyway, so it does not matter where its last unit ran.
#
# ## Who is next?
#
# Which model does a free device take? Hydra's rule is *Sharded-LRTF* (*longest remaining time first*). Look at all
# models on which no device works now, and take the one with the most work left. For if the longest model comes last,
# all other devices wait for it at the end. We see it with three models of one mini-batch and one model of three:

# %%
group = [chain(load=0.5, batches=batches) for batches in (1, 1, 1, 3)]
work = [sum(model.units) * model.batches for model in group]
both = plan(group, devices=2)
print('work of the models:', *work, '- no order can be done before', max(max(work), sum(work) / 2))
print(f'longest remaining time first: {both.makespan:g} s')
plot.tasks(together(both), title='Three short models and a long one', unit='s', worker='device')

# %% [markdown]
# It takes 1.5 s longer than the 45 s, because three loads of the long model are not hidden: each of its mini-batches
# loads shard 0, and may do so only after the mini-batch before has updated it.
#
# If the devices began with the three short models, those would be done after 22.5 s at the earliest, and the long one
# 45 s later: 67.5 s.
#
# With units of equal length, and no loads, no rule beats this one (Hu, 1961; cited from memory). While a device
# computes, the rule also chooses what it will compute next, and that shard goes into the second buffer. The rule needs
# to know how long units take: on real devices that is measured during training.
#
# ## Write it
#
# [exercises/15_spill.py](../exercises/15_spill.py) asks you for three functions: the cut of a model into shards that
# fit, a training step with one shard at a time on the device, and the rule that you have just seen. Take 35 minutes.

# %% tags=["yours"]
check(15)

# %% [markdown]
# Stuck? `./workshop.py hint 15` in a terminal tells a little more at each call. What follows does not need it.
#
# ## How many models does it take?
#
# **Predict:** eight devices, models of four shards, two mini-batches each. How many models does it take until the
# devices compute for 90 % of the time?

# %%
my_guess = None        # models

numbers = [1, 2, 4, 6, 8, 10, 12, 16, 20, 24]
busy = {f'{devices} devices': [plan([chain(0.5, batches=2)] * n, devices).utilisation for n in numbers]
        for devices in (2, 4, 8)}
compare(my_guess, next(n for n, share in zip(numbers, busy['8 devices']) if share >= 0.9), ' models')
plot.lines({name: (numbers, [100 * share for share in shares]) for name, shares in busy.items()},
           x='models', title='The devices compute, % of the time')

# %% [markdown]
# It takes at least as many models as devices. But ten are worse than eight! While a device computes, its next unit is
# already chosen, for the second buffer. With ten equal models all devices choose at the same moment, and two models
# are free. Device 0 gets one of them, device 1 the other, and so it is every time. So each of these two devices takes
# turns between two models, and the six other devices keep one model each. These six models are done after 31 s. Then
# four half-done models are left for eight devices, and four devices have nothing to do until 46.5 s. (With models of
# different lengths the devices do not choose at the same moment.)
#
# Try it: what do two buffers change with one model on one device, and what with six models on four?

# %%
def draw(models, devices, shards, load, buffers):
    group = [chain(load, shards)] * models
    run, work = plan(group, devices, prefetch=buffers == 'two'), sum(group[0].units)
    rows = [plot.Task(device, 'model 0', 0, 0, 0) for device in range(devices)]   # draw idle ones, too
    return plot.tasks(rows + together(run), unit='s', worker='device'), (
        f'{run.makespan:.4g} s, no order is faster than {max(work, work * models / devices):.4g}; '
        f'the devices compute {run.utilisation:.0%} of the time')


Panel(draw, models=Slider(3, 1, 6), devices=Slider(2, 1, 4), shards=Slider(4, 2, 6),
      load=Slider(1.0, 0.0, 3.0, 0.5), buffers=Choice('two', ('one', 'two')))

# %% [markdown]
# With one model a second buffer hides loads (22 s become 16, if a load takes 1 s); more devices do not help. With six
# models on four devices it helps, too (34 s become 25): the second buffer may then hold a shard of another model.
#
# ## Sharing on this machine
#
# Six small GPTs, one step each, on four virtual devices, each again a fifth of a core. *Model parallelism* cuts each
# model into four stages and trains one model after the other. *Shared*: each model is spilled in three shards, and
# devices take what is next.
#
# **Predict:** how many times as fast is sharing? (In model parallelism one device of four works at a time. So with the
# same work, four would be the most. But a spilled model computes the forwards of all shards but the last twice, and six
# models do not divide evenly among four devices.)

# %% tags=["measured"]
my_guess = None        # times as fast

quiet, ways = Quiet(), {'model parallelism': lambda: pipelined(1), 'shared': shared}
times, results = ({name: [] for name in ways} for _ in range(2))
for _ in range(3):
    quiet.look()
    for name, way in ways.items():
        train = way()
        times[name] += seconds_of(lambda: results[name].append(train()), 1)
naive, spread = (median(times[name][1:]) for name in ways)           # the first round warms up
compare(my_guess, naive / spread, ' times')
run = results['shared'][-1].shared
plot.tasks(together(run), worker='device', title='Six models share four devices (numbers: shards)')

# %% tags=["measured"]
waiting = median(results['model parallelism'][1:])                  # the idle share
busy = median(trained.shared.utilisation for trained in results['shared'][1:])
claims.test('C35', quiet.verdict(keeps_busy(busy, waiting, naive, spread)),
            f'shared by six models, four devices compute {busy:.0%} of the time, in model parallelism '
            f'{1 - waiting:.0%}; all is done {naive / spread:.2f} times as fast{quiet.note}',
            because='One step of each: at the end some devices find no model that is free.')

# %% [markdown]
# ## And against GPipe?
#
# Model parallelism is easy to beat. A pipeline with micro-batches ([lesson 5](05_gpipe.ipynb)) keeps its devices busy
# with a single model. A lecture says that spilling many models takes *up to 90 % less time* than GPipe, and is 4
# times as fast as model parallelism.
#
# In virtual time: 16 models, 5 mini-batches each, on eight devices, all models cut into eight. GPipe trains one model
# after the other. It recomputes, too (only with one micro-batch it does not: that is model parallelism). It needs no
# loads, for its weights stay.
#
# **Predict:** how much less time than GPipe with four micro-batches does sharing take, in percent? (How large is
# GPipe's bubble with 8 stages and 4 micro-batches? Sharing has nearly none.)

# %%
my_guess = None        # percent


def against(devices, micro_batches):
    """Seconds of 16 models, 5 mini-batches each: in a pipeline one after the other, and shared."""
    run = plan([chain(load=0.5, shards=devices, batches=5)] * 16, devices)
    return {m: 80 * virtual_pipeline(devices, m) for m in micro_batches}, run.makespan


pipeline, ours = against(8, (1, 2, 4, 8, 16, 32, 64))
less = {m: 1 - ours / takes for m, takes in pipeline.items()}
compare(my_guess, 100 * less[4], ' %')
print(f'shared: {ours:.0f} s; model parallelism (one micro-batch): {pipeline[1]:.0f}')
plot.lines({'8 devices': (list(less), [100 * share for share in less.values()])}, log='x', write='{:.0f}',
           x="GPipe's micro-batches", title='Sharing takes less time than GPipe, by %')

# %%
faster = pipeline[1] / ours
claims.test('C38', is_that_much_faster(faster, (less[4], less[32])),
            f'on 8 devices {faster:.1f} times as fast as model parallelism; less time than GPipe by '
            f'{less[4]:.0%} with 4 micro-batches, {less[32]:.0%} with 32', by='the simulator',
            because='The four times hold, the 90 % do not: GPipe fills its devices, if it has enough '
                    'micro-batches, which cost nothing here.')

# %% [markdown]
# To be beaten by 90 %, GPipe has to be idle for nine tenths of the time: with one micro-batch, and on more than eight
# devices. The paper's abstract (in its version 7) claims less than the lecture: 50 to 100 % more throughput than
# DeepSpeed and GPipe. That is 33 to 50 % less time, and in our picture about eight micro-batches. We made no
# measurement of such a size here: it would take GPUs, and large models.
#
# So when do you spill?
#
# | you have | take |
# |:--|:--|
# | one device, and a model that does not fit | spilling: it trains at all |
# | several such models to train, and several devices | spilling, shared: no micro-batches, no balance of stages |
# | one model, which fits all devices together | a pipeline with many micro-batches: its weights need not travel |
# | mini-batches of few rows | a pipeline: a short forward hides no load |
# | models that fit a device each | a device for each, nothing to cut |

# %% [markdown]
# ## Remember
#
# 1. Spilled, a model trains on a device that holds one shard at a time: 2 S - 1 loads a step, with recompute, and the
#    same gradients.
# 2. A second buffer hides the loads, if a forward takes at least as long as a load: that depends on the rows of a
#    mini-batch, not on the size of the model.
# 3. One spilled model keeps one device busy. Several devices need at least as many models; begin with the longest.
#
# Next: [lesson 12](12_zero.ipynb), many devices, and each has a part of one model's states.
#
# The claims of lectures that this lesson put to the test (C35, C36, C37, C38), as they came out in this run:

# %% tags=["measured"]
claims
