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
# # 5 GPipe: micro-batches and the bubble
#
# When you are through, in about 45 minutes (two exercises, of 25 and 40, come on top), you will be able to
#
# - write the schedule of a GPipe pipeline, and say how much of a step its devices are idle;
# - choose the number of micro-batches, from a model of the costs and from a measurement;
# - tell how slow the link between two devices may be;
# - let stages compute gradients apart from each other, and show that they are those of the plain model.

# %%
from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fewgpu import GPipe, ModelParallel, data, get_devices, plot, schedule
from fewgpu.balance import balance_by_time
from fewgpu.models import build
from fewgpu.simulate import Costs, allowed_speed_up, simulate
from fewgpu.trace import WAITS
from fewgpu.workshop import check
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.here import Here
from fewgpu.workshop.lesson import Source, compare
from fewgpu.workshop.measure import gradient_of, measure
from fewgpu.workshop.panel import Panel, Slider

claims = Claims()      # what we find out on the way is noted here

# %% [markdown]
# ## 1 Cut the batch as well
#
# In [lesson 4](04_model_parallelism.ipynb) a model was cut into *stages*, runs of layers that live on one device each.
# A larger model fits, but one device works at a time.
#
# GPipe (Huang et al., arXiv 1811.06965) cuts the *mini-batch*, too: all the images between two optimizer steps become
# several *micro-batches*. When stage 0 is through with the first of them, stage 1 can begin, and stage 0 goes on with
# the second.
#
# Take four stages, and a mini-batch that each of them needs 8 units of time to take forward, and 16 back. In model
# parallelism that is 4 · (8 + 16) = 96 units. Now cut it into 8 micro-batches: 1 unit forward, 2 back.
#
# **Predict:** how many units does the step take, if every device works as soon as it can?

# %%
my_guess = None        # units

whole = simulate(schedule.gpipe(stages=4, micro_batches=1), Costs(F=8, B=16))
cut = simulate(schedule.gpipe(stages=4, micro_batches=8), Costs(F=1, B=2))
compare(my_guess, cut.makespan, ' units')
plot.timelines({'Model parallelism: one piece': whole, 'GPipe: eight micro-batches': cut}, unit='units')

# %% [markdown]
# Grey is a device that is *idle*, and the *makespan* is the length of the whole picture: a step. The work is the same, and
# so is the result: gradients of micro-batches add up to that of the mini-batch, and the optimizer takes one step at the end,
# as ever. Only the waiting has become less: the step takes about a third of the time.
#
# ## 2 A schedule is data
#
# What each device does, in which order, is decided before anything runs. That is the *schedule*. Each device has a row:
# *F3* is the forward of micro-batch 3, *B3* its backward. First all forwards, then all backwards.

# %%
print(schedule.gpipe(stages=4, micro_batches=8))

# %% [markdown]
# All rows are the same, and none says when to wait. A device simply cannot run F3 before the previous stage has sent it
# the output of its own F3, nor B3 before the next stage has sent it a gradient.
#
# Any order of the backwards takes as long. We take the reverse one: with it, lesson 6 need not recompute the last micro-batch.
#
# The rows are all there is. One program draws them, one gives them times (this is what `simulate` did), and one, the
# *interpreter*, runs them on real devices. Here it runs them with a tiny network. Did every device do
# what its row says?

# %%
plan = schedule.gpipe(stages=4, micro_batches=8)
layers = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])
devices = get_devices(4, kind='cpu')
pipe = GPipe(layers, balance=[1, 1, 1, 1], devices=devices, chunks=8, checkpoint='never')
pipe(torch.rand(16, 8)).sum().backward()

for planned, ran in zip(plan.rows, pipe.timeline.rows):
    computed = tuple(span.op for span in ran if span.op.kind not in WAITS)   # leave out messages
    print(*computed, '| as planned:', computed == planned)

# %% [markdown]
# `GPipe` takes an `nn.Sequential`. `balance` is how many layers each stage gets, `chunks` the number of micro-batches.
# (`checkpoint` is for lesson 6.)
#
# ## 3 The bubble
#
# The idle part of a step is called the *bubble*. Here are the forwards alone of the pipeline in section 1:

# %%
forwards = replace(cut, rows=tuple(tuple(span for span in row if span.op.kind == 'F') for row in cut.rows))
picture = plot.timeline(forwards, title='The forwards alone', unit='units')
for stage in range(4):
    for start, slots in [(0, stage), (8 + stage, 3 - stage)]:      # before its work, and after it
        if slots:
            picture.axes[0].text(start + slots / 2, stage, f'{slots} idle', ha='center', va='center',
                                 fontsize=9)
picture

# %% [markdown]
# Call the number of stages n, and that of micro-batches m.
#
# - Each device works for m slots of time, one a micro-batch.
# - The last device starts n - 1 slots after the first. So all forwards together take m + n - 1 slots.
# - Each device is idle for n - 1 of them.
#
# The backwards are the same picture, read from right to left, with longer slots. So the bubble is
#
# > **bubble = (n - 1) / (m + n - 1)**
#
# of the step. **Predict:** 8 devices, 32 micro-batches. What percentage of the time are devices idle?

# %%
my_guess = None        # percent

compare(my_guess, 100 * simulate(schedule.gpipe(8, 32), Costs(F=1, B=2)).bubble, ' %')

# %% [markdown]
# Does the formula hold for all sizes? The simulator knows nothing of it: it starts every operation when its device is free
# and its input is there, and adds up the idle time.

# %%
bubble = {(n, m): simulate(schedule.gpipe(n, m), Costs(F=1, B=2)).bubble
          for n in range(1, 17) for m in (*range(1, 17), 32, 64, 128)}
apart = max(abs(idle - (n - 1) / (m + n - 1)) for (n, m), idle in bubble.items())
print(f'{len(bubble)} schedules simulated; the formula agrees with all of them:', apart < 1e-9)

# %%
counts = [1, 2, 4, 8, 16, 32, 64, 128]
idle = {f'{n} devices': [100 * bubble[n, m] for m in counts] for n in (2, 4, 8, 16)}
picture = plot.lines({name: (counts, shares) for name, shares in idle.items()},
                     x='micro-batches', y='bubble (%)', log='x', title='Idle share of the devices')
picture.axes[0].set(xticks=counts, xticklabels=counts, ylim=(0, None))
picture

# %% [markdown]
# The authors of GPipe found the bubble almost negligible with at least four times as many micro-batches as stages (section
# 2.3). We look at four times as many, and at twenty times, and call 5 % almost negligible.

# %%
shrinks = all(bubble[n, 2 * m] < bubble[n, m] for n in range(2, 17) for m in counts[:-1])
four, twenty = ({n: simulate(schedule.gpipe(n, times * n), Costs(F=1, B=2)).bubble for n in (2, 4, 8, 16)}
                for times in (4, 20))
for n in four:
    print(f'{n:2} devices: idle {four[n]:.0%} with {4 * n:2} micro-batches, {twenty[n]:.1%} with {20 * n}')
claims.test('C14', shrinks and max(twenty.values()) <= 0.05,
            f'with 20 n micro-batches, n up to 16 devices are idle for at most {max(twenty.values()):.1%}; '
            f'with 4 n it is still {min(four.values()):.0%} to {max(four.values()):.0%}', by='the simulator')

# %% [markdown]
# Try it. How does the bubble change if a backward takes three times as long as a forward? And if every message has to
# travel for a while? *Latency* is how long even an empty message travels; *link time* is how long the link is
# busy with one message, so that the next has to queue. Messages are not drawn: you see only who waits for them.

# %%
def draw(stages, micro_batches, backward, latency, link_time):
    costs = Costs(F=1, B=backward, latency=latency, message=link_time, bandwidth=1)
    step = simulate(schedule.gpipe(stages, micro_batches), costs)
    ideal = (stages - 1) / (micro_batches + stages - 1)
    said = f'idle {step.bubble:.0%} of the time, the formula says {ideal:.0%}'
    return plot.timeline(step, unit='units'), said


Panel(draw, stages=Slider(4, 1, 8), micro_batches=Slider(8, 1, 24), backward=Slider(2.0, 0.5, 4.0, 0.5),
      latency=Slider(0.0, 0.0, 4.0, 0.5), link_time=Slider(0.0, 0.0, 4.0, 0.5))

# %% [markdown]
# **Your turn.** [exercises/05_gpipe_schedule.py](../exercises/05_gpipe_schedule.py) asks for what you have just seen: which
# forwards run at the same time, the rows, and the idle share. It takes about 25 minutes. Whenever you have saved the file:

# %% tags=["yours"]
check(5)

# %% [markdown]
# (For a hint: `./workshop.py hint 05` in a terminal.) Solved, or put off? This is how the kit makes the rows:

# %%
Source(schedule.gpipe)

# %% [markdown]
# ## 4 On this machine
#
# So much for plans. Now two real devices: GPUs where there are any, else cores that play one.

# %% tags=["measured"]
here = Here(2)
here

# %% [markdown]
# The network is a ResNet-18, cut into two stages that take equally long, and the mini-batch has 64 images of digits.
# (With GPUs: ResNet-50 and 256 images, or they would have nothing to do.)

# %% tags=["measured"]
arch, batch = ('resnet50', 256) if here.on_gpus else ('resnet18', 64)
images, labels = data.subset(data.load('train'), 256, seed=0).tensors
inputs, targets = images[:batch], labels[:batch]


def network():
    torch.manual_seed(0)
    return build(arch)


balance = balance_by_time(2, network(), inputs[:batch // 8])
print('layers per stage:', balance)

# %% [markdown]
# `measure` trains for three steps and notes the speed, and the timeline of the last step. First what lesson 4 had: the
# plain model on one of the two devices, and model parallelism on both.

# %% tags=["measured"]
def pipeline(m):
    return GPipe(network(), balance, devices=here.devices, chunks=m, checkpoint='never')


plain = measure(network(), inputs, targets, here.devices)
model_parallel = ModelParallel(network(), balance, devices=here.devices)
runs = {1: measure(model_parallel, inputs, targets, here.devices)}
print(f'{plain.speed:.1f} samples a second on one device, {runs[1].speed:.1f} on two, in one piece')

# %% [markdown]
# Now with micro-batches. **Predict:** what percentage of the two devices' time is idle with 4 micro-batches? (You may use
# the formula. What could make reality differ from it?) In the picture a thin grey line is a device that *waits for a
# message*.

# %% tags=["measured"]
my_guess = None        # percent

runs |= {m: measure(pipeline(m), inputs, targets, here.devices) for m in (2, 4, 8)}
compare(my_guess, 100 * runs[4].timeline.bubble, ' %', doubt=here.doubt)

# %% tags=["measured"]
plot.timelines({f'{m} micro-batch' + 'es' * (m > 1): run.timeline for m, run in runs.items()})

# %% tags=["measured"]
plot.bars({f'm = {m}': 100 * run.timeline.bubble for m, run in runs.items()}, write='{:.0f} %',
          notes={f'm = {m}': f'(formula {100 / (m + 1):.0f} %)' for m in runs},
          title='Measured bubble: idle share of two devices')

# %% [markdown]
# What is above the formula has three causes. One stage takes longer than the other, which then waits. Between forward and
# backward the loss is computed, while both wait. And other programs use this machine.
#
# It can also be below: on a busy machine operations become longer, and fill the gaps. A small bubble alone does not mean
# fast. Look at the length of the step, too.
#
# ## 5 Too many micro-batches
#
# By the formula, the more micro-batches the better. **Predict:** which number of them gives the most samples a second: 2,
# 4, 8, or 16?

# %% tags=["measured"]
my_guess = None        # micro-batches

runs[16] = measure(pipeline(16), inputs, targets, here.devices)
speed = {m: run.speed for m, run in runs.items()}
best = max(speed, key=speed.get)
compare(my_guess, best, ' micro-batches', doubt=here.doubt)
plot.bars({'plain, one device': plain.speed} | {f'm = {m}': value for m, value in speed.items()},
          title='Samples a second')

# %% [markdown]
# Each operation costs something, however few images it gets, and with few it uses the hardware badly. So the work
# itself grows. These are the seconds in which devices computed, both together, in one step. (In one piece they compute one
# at a time, and do not slow each other down. So we leave m = 1 out.)

# %% tags=["measured"]
work = {m: sum(map(runs[m].timeline.busy, range(2))) for m in (2, 4, 8, 16)}
plot.bars({f'm = {m}': 1e3 * seconds for m, seconds in work.items()}, write='{:.0f} ms',
          title='Work of one step, both devices together')

# %% tags=["measured"]
claims.test('C15', 1 < best < 16 if here.steady else None,
            f'fastest of 1, 2, 4, 8 and 16 is m = {best}; a step with 16 is '
            f'{work[16] / work[2]:.2f} times the work of one with 2' + here.doubt)

# %% [markdown]
# A model of it: an operation takes a fixed overhead, and on top a share of the mini-batch's work. Let the forward
# of a whole mini-batch take 16 units on a stage, its backward 32, and the overhead of each operation be 0.1, 0.5 or 2.
# Small overheads put the optimum far to the right, where you may never look. Large ones bring it near.

# %%
def length(m, overhead, n=4):
    return simulate(schedule.gpipe(n, m), Costs(F=16 / m + overhead, B=32 / m + overhead)).makespan


counts = [1, 2, 4, 6, 8, 12, 16, 24, 32, 64]
steps = {overhead: [length(m, overhead) for m in counts] for overhead in (0, 0.1, 0.5, 2)}
for overhead, lengths in steps.items():
    print(f'overhead {overhead:3}: shortest with {counts[lengths.index(min(lengths))]} micro-batches')
picture = plot.lines({f'overhead {overhead}': (counts, lengths) for overhead, lengths in steps.items()},
                     log='x', x='micro-batches', y='units a step', title='Four devices, with overheads')
picture.axes[0].set_xticks(counts, counts)
picture

# %% [markdown]
# Only the fixed overhead tells where the optimum is, and it differs from machine to machine. So measure with your model and
# your devices, as we just did: a few steps with each of a few numbers.
#
# This is a good place for a break: so far when devices work, from here on what they send, and what they compute.
#
# ## 6 What crosses the link
#
# A pipeline sends the output of a stage to the next device, and the gradient of it back. That is all. We
# compare, for one step of ResNet-18 with 64 images on two devices, the bytes that one device sends:
#
# - **Pipeline:** the activations at the cut (or their gradients).
# - **Data parallelism** ([lesson 3](03_data_parallelism.ipynb)): an all-reduce of all gradients. In a ring of two, a
#   device sends as many bytes as there are.
# - **Tensor parallelism:** every layer is cut in two, and each device computes half of its channels. The halves have to be
#   exchanged after each layer that mixes channels, forward and backward.
#
# **Predict:** how many MB does a device send in a pipeline that is cut after layer 7, where an image is 128 · 14 · 14 numbers?

# %%
my_guess = None        # MB

resnet, image, outputs = build('resnet18').eval(), torch.zeros(1, 1, 28, 28), {}
for name, layer in resnet.named_children():
    image = layer(image)
    outputs[name] = image.nbytes                     # of one image
mixing = [name for name in outputs if name.startswith(('conv', 'block', 'linear'))]
forward_and_back = 2 * sum(outputs[name] for name in mixing)
sent = {'pipeline': 64 * outputs['block2_2'],
        'data parallelism': sum(p.nbytes for p in resnet.parameters()),
        'tensor parallelism': 64 * forward_and_back // 2}      # its half of the channels
compare(my_guess, sent['pipeline'] / 1e6, ' MB')
plot.bars({name: size / 1e6 for name, size in sent.items()}, write='{:.1f} MB',
          title='What one device sends in a step: ResNet-18, 64 images')

# %% [markdown]
# The ratio is no law. What a pipeline sends grows with the batch, what data parallelism sends grows with the model. (And
# each block counts as one layer in the third bar; inside there is more to exchange.)

# %%
equal = sent['data parallelism'] / outputs['block2_2']
print(f'A pipeline sends as much as data parallelism with {equal:.0f} images.')

# %% [markdown]
# Bytes are half of the story. The other half is who waits for them. While a micro-batch is on its way, a pipeline computes
# another one. So how slow may the link be before a step takes 10 % longer? We let a message take more and more time,
# measured in forwards of a micro-batch.

# %%
def longer(link_time, n, m=16):
    """How much a slow link lengthens a step: 0.1 is 10 %."""
    plan = schedule.gpipe(n, m)
    slow = simulate(plan, Costs(F=1, B=2, message=link_time, bandwidth=1))
    return slow.makespan / simulate(plan, Costs(F=1, B=2)).makespan - 1


times = [tenth / 10 for tenth in range(31)]
slack = {n: max(time for time in times if longer(time, n) <= 0.1) for n in (2, 4, 8)}
for n, time in slack.items():
    print(f'{n} devices: a step is at most 10 % longer if a message takes {time} forwards')
curves = {n: [100 * longer(time, n) for time in times[::5]] for n in slack}
picture = plot.lines({f'{n} devices': (times[::5], curve) for n, curve in curves.items()},
                     x='time of a message (forwards)', y='longer (%)', title='A slow link, 16 micro-batches')
picture.axes[0].set_ylim(0)
picture

# %% [markdown]
# With two or four devices a message may take about as long as the forward that made it. Until then the link carries
# one micro-batch while the devices compute the next, and only the first and the last messages are waited for. With
# eight devices there are more of those: seven on the way there, seven on the way back. The lines bend twice: at 1 the link
# becomes slower than a forward, at 2 slower than a backward. Then the devices wait for it again and again.
#
# In tensor parallelism nothing overlaps: a layer needs all of the exchange before it. Take a link so slow that such a step
# takes twice as long: the 62 MB take as long as the 24 units of computing. **Predict:** by how many percent does the same link
# lengthen a step of the pipeline, with two devices and 8 micro-batches?
#
# (A message of the pipeline is 0.8 MB, and its step is 27 units with the bubble. Only two messages are waited for.)

# %%
my_guess = None        # percent

computing = 8 * (1 + 2)                                   # units of a step, on each device
per_byte = computing / sent['tensor parallelism']         # units that the link is busy with a byte
slower = {'tensor parallelism': 1.0,
          'data parallelism': per_byte * sent['data parallelism'] / computing,
          'pipeline': longer(per_byte * sent['pipeline'] / 8, n=2, m=8)}
compare(my_guess, 100 * slower['pipeline'], ' %')
plot.bars({name: 100 * share for name, share in slower.items()}, write='{:.1f} %',
          title='How much the same slow link lengthens a step')

# %% [markdown]
# (Of data parallelism this is the worst case: its all-reduce can begin while the backward still runs.)

# %%
claims.test('C16', sent['pipeline'] < sent['tensor parallelism'] and slower['pipeline'] < 0.1,
            'ResNet-18, 64 images, 2 devices, one cut: a link that doubles the step in tensor parallelism '
            f"lengthens it in a pipeline by {slower['pipeline']:.1%}. But a link can be too slow: "
            f'with 2, 4, 8 devices a step is 10 % longer if a message takes {slack[2]}, {slack[4]}, '
            f'{slack[8]} forwards, and ' + ', '.join(f'{curve[-1]:.0f}' for curve in curves.values())
            + ' % if it takes 3', by='the simulator')

# %% [markdown]
# What does it mean in bytes a second, with the times measured above? The median time of each operation goes
# into the simulator, and a link that gets slower.

# %% tags=["measured"]
first_stage = network().eval()[:balance[0]]
message = batch // 8 * first_stage(images[:1]).nbytes
costs = replace(Costs.measured(runs[8].timeline), message=message)
free = simulate(schedule.gpipe(2, 8), costs).makespan


def lengthened(megabytes):
    step = simulate(schedule.gpipe(2, 8), replace(costs, bandwidth=1e6 * megabytes))
    return 100 * (step.makespan / free - 1)


rates = [2, 5, 10, 20, 50, 100, 200, 500]
picture = plot.lines({'': (rates, [lengthened(rate) for rate in rates])}, log='x', write='{:.1f} %',
                     x='MB/s of the link', y='longer (%)', title='The measured pipeline, a slower link')
picture.axes[0].set(xticks=rates, xticklabels=rates, ylim=(0, None))
picture

# %% [markdown]
# Read it from the right. Where the line begins to rise steeply, a message takes as long as the forward of a micro-batch: a
# link should have more than that. Devices that compute faster need a faster link, too.
#
# ## 7 More devices
#
# With n devices a balanced pipeline is at most m n / (m + n - 1) times as fast as one device: this is n times the busy share.
# Here it is in virtual time, for 1 to 8 devices.
#
# **Predict:** 8 devices with 8 micro-batches. How many times as fast are they as one?

# %%
my_guess = None        # times

sizes = [1, 2, 3, 4, 5, 6, 7, 8]
faster = {m: [n * (1 - simulate(schedule.gpipe(n, m), Costs(F=1, B=2)).bubble) for n in sizes]
          for m in (1, 4, 8, 32)}
compare(my_guess, faster[8][-1], ' times as fast')
plot.lines({'as many times as devices': (sizes, sizes)}
           | {f'{m} micro-batch' + 'es' * (m > 1): (sizes, times) for m, times in faster.items()},
           x='devices', y='times as fast', title='Speed-up in virtual time')

# %% [markdown]
# Both sentences that one hears about pipelines are in this picture. With many micro-batches the speed grows almost linearly.
# With few, devices are badly used, and more devices make it worse.
#
# Published figures: GPipe's table 2 (arXiv 1811.06965) gives speeds on TPUs with 32 micro-batches, as multiples of
# two devices with one micro-batch. In virtual time, two devices with one micro-batch are as fast as one device.

# %%
published = {'Transformer': (1.8, 3.4, 6.3), 'AmoebaNet-D': (1.21, 1.84, 3.48)}
for name, row in published.items():
    for n, found in zip((2, 4, 8), row):
        ideal = allowed_speed_up(32, n)
        print(f'{name:11} {n} devices: {found:4.2f} published, {ideal:4.2f} in virtual time, '
              f'{found / ideal:.0%}')

# %% [markdown]
# A Transformer's layers are all equal, so it is cut into equal stages, and comes near what is possible. AmoebaNet's layers
# differ; uneven stages are one reason to stay behind, and [lesson 7](07_balance.ipynb) is about them. (Do not read too much
# into single cells of the table: batch sizes changed from cell to cell, to fit the memory.)
#
# We call more than 80 % of linear almost linear, and less than half of it poor. The simulator says both for 8 devices; what the
# two devices here do stands beside it.

# %% tags=["measured"]
gain = speed[best] / plain.speed
claims.test('C18', faster[32][-1] > 0.8 * 8 and faster[4][-1] < 0.5 * 8,
            f'8 devices are {faster[32][-1]:.1f} times as fast as one with 32 micro-batches, '
            f'{faster[4][-1]:.1f} with 4. GPipe, table 2, 8 devices with 32: '
            + ' and '.join(f'{row[-1]}' for row in published.values())
            + f'. Measured here, 2 devices, m = {best}: {gain:.2f}' + here.doubt, by='the simulator')

# %% [markdown]
# ## 8 The work of a stage
#
# How can stages compute gradients apart from each other, each on its own device? What crosses a boundary is a bare tensor, without
# the *graph* in which autograd notes how it was made. Each stage has a graph of its own. The gradient at the
# boundary joins them:

# %%
torch.manual_seed(0)
first, last = nn.Linear(4, 8), nn.Linear(8, 1)        # two stages
x = torch.rand(5, 4)

made = first(x)                                       # F on stage 0, which keeps this graph
arrived = made.detach().requires_grad_()              # what stage 1 gets: numbers alone
last(arrived).square().mean().backward()              # F, the loss, and B on stage 1: ends at `arrived`
made.backward(arrived.grad)                           # B on stage 0 goes on from what came back

apart = first.weight.grad.clone()
first.zero_grad()
last(first(x)).square().mean().backward()             # the plain model, in one graph
print('The gradient of the first layer is that of the plain model:', torch.equal(apart, first.weight.grad))

# %% [markdown]
# A stage does this for several micro-batches that are on their way at the same time, so it has to remember, under the number
# of each, what its backward will need. That is its *stash*.
#
# **Your turn.** [exercises/06_pipeline_step.py](../exercises/06_pipeline_step.py) asks for such a stage, and for a step of the
# pipeline with it. It takes about 40 minutes.

# %% tags=["yours"]
check(6)

# %% [markdown]
# (For a hint: `./workshop.py hint 06` in a terminal.)
#
# ## 9 It computes the same
#
# Now the whole gradient, of a small network, cut in several ways, beside that of the plain model.
#
# Are they equal to the last bit, equal up to rounding, or different?

# %%
def gradient(model, x, y):
    model.zero_grad()
    cross_entropy(model(x), y).backward()
    return gradient_of(model)


def difference(one, other):
    return ((one - other).abs().max() / other.abs().max()).item()


torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(),
                    nn.Flatten(), nn.Linear(16 * 24 * 24, 10))
x, y = images[:64], labels[:64]
errors = {}
for cut, m in [((6,), 4), ((3, 3), 1), ((3, 3), 4), ((1, 5), 8), ((2, 2, 2), 5)]:
    piped = GPipe(net, cut, devices=get_devices(len(cut), kind='cpu'), chunks=m)
    errors[cut, m] = difference(gradient(piped, x, y), gradient(net, x, y))
    print(f'balance {cut}, chunks {m}: relative difference below 0.00001: {errors[cut, m] < 1e-5}')

# %% [markdown]
# Equal up to the rounding of 32-bit numbers, because sums are taken in another order. Take them in the *same* order, that is,
# the plain model micro-batch by micro-batch, the last one first:

# %%
def gradient_by_parts(model, x, y):
    """Of the plain model, on one of four micro-batches after the other: gradients add up."""
    model.zero_grad()
    for part, target in reversed(list(zip(x.chunk(4), y.chunk(4)))):
        (cross_entropy(model(part), target) * len(part) / len(x)).backward()
    return gradient_of(model)


def in_a_pipeline(model, cut, x, y):
    return gradient(GPipe(model, cut, devices=get_devices(2, kind='cpu'), chunks=4), x, y)


core, = get_devices(1, kind='cpu')
with core.active():            # on one core, as the stages are
    same = torch.equal(in_a_pipeline(net, (3, 3), x, y), gradient_by_parts(net, x, y))
print('Equal to the last bit:', same)

# %% [markdown]
# There is one catch. *Batch norm* normalises by the mean and variance of the images that it sees together. In a pipeline
# those are the images of one micro-batch. **Predict:** by how many percent does a pipeline's gradient differ from that of the
# plain model, if there is batch norm in the network?

# %%
my_guess = None        # percent

torch.manual_seed(0)
normed = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
                       nn.Flatten(), nn.Linear(8 * 26 * 26, 10))
x, y = images[:32], labels[:32]
with core.active():
    piped = in_a_pipeline(normed, (3, 2), x, y)
    by_parts = difference(piped, gradient_by_parts(normed, x, y))
    at_once = difference(piped, gradient(normed, x, y))
compare(my_guess, round(100 * at_once), ' %')
print('But the same as the plain model on 4 micro-batches, one by one:', by_parts < 1e-5)

# %%
claims.test('C19', max(errors.values()) < 1e-5 and same and by_parts < 1e-5 < at_once,
            f'{len(errors)} ways to cut give the plain gradient up to rounding, to the last bit if '
            f'summed in the same order; with batch norm it differs by {100 * at_once:.0f} %')

# %% [markdown]
# So a pipeline learns from a micro-batch what the plain model learns from it. But wherever there is batch norm, the
# size of a micro-batch becomes a parameter of training.
#
# Batch norm also keeps *running statistics*, for testing. They would be updated once for each micro-batch. `deferred_batch_norm`
# collects them instead, and updates once a mini-batch, as the plain model does:

# %%
def running_mean(chunks, **options):
    normed[1].reset_running_stats()
    model = GPipe(normed, (3, 2), devices=get_devices(2, kind='cpu'), chunks=chunks, **options)
    model(x)
    return model[1].running_mean.clone(), int(model[1].num_batches_tracked)


plainly, deferred = running_mean(chunks=1), running_mean(chunks=4, deferred_batch_norm=True)
normed[1] = nn.BatchNorm2d(8)
each = running_mean(chunks=4)
for name, (mean, updates) in {'one piece': plainly, 'four': each, 'four, deferred': deferred}.items():
    print(f'{name:15} {updates} update(s), as in one piece: {torch.allclose(mean, plainly[0], atol=1e-6)}')

# %% [markdown]
# ## Remember
#
# 1. Micro-batches let devices work at the same time. The bubble is (n - 1) / (m + n - 1) of the step: less than a fifth with
#    m = 4 n, less than 5 % with m = 20 n.
# 2. Small micro-batches use a device badly, so there is a best number of them. Measure it.
# 3. Only activations at the cuts cross the link, while devices compute. The result stays that of the plain model, except
#    that batch norm sees micro-batches.
#
# Next: [lesson 6](06_recompute.ipynb). A stage now keeps the activations of all micro-batches. It need not.
#
# The claims of lectures that this lesson put to the test (C14, C15, C16, C18, C19), as they came out in this run:

# %% tags=["measured"]
claims
