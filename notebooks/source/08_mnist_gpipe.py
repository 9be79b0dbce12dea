# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # GPipe, hands on: ResNet on MNIST as a pipeline
#
# When you are through, in about 40 minutes, you will be able to
#
# - tell what fills the memory when a network is trained, and measure it;
# - cut a network into stages, and read the timeline of a pipeline;
# - choose the number of micro-batches, and say what recompute costs and saves;
# - turn a plain PyTorch script into a pipeline, in five steps, and train with it what does not fit one device.
#
# You need no GPU. Without one, each *device* is one core of your machine, with a memory of its own that is counted
# byte by byte. Where a cell asks you to **predict**, write your number in place of `None` before you run it: nobody
# sees it but you, and a wrong prediction is the part of a lesson that stays.
#
# Run the cells from top to bottom with Shift-Enter. (If the first says `No module named 'fewgpu'`, choose the
# kernel *fewgpu* at the top right; `./workshop.py kernel` puts it there.)

# %%
from types import SimpleNamespace

import torch
from matplotlib import pyplot as plt
from torch import nn
from torch.nn.functional import cross_entropy

from fewgpu import GPipe, ModelParallel, data, get_devices, plot, schedule
from fewgpu.balance import balance_by_size, balance_by_time, profile
from fewgpu.models import build
from fewgpu.workshop import check
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.lesson import compare, run
from fewgpu.workshop.machine import cores, two_core_efficiency
from fewgpu.workshop.watch import Watch

claims = Claims()      # what we find out on the way is noted here

# %% [markdown]
# ## 1 The devices of this machine
#
# A *stage* is a run of layers, and it lives on a *device*. `get_devices(2)` gives two: GPUs where there are any
# (a single GPU is shared by both), else two virtual devices, each of which is one core and computes with one thread.

# %%
n = 2                  # devices, and so stages; come back and try 3 or 4 if you have the cores
devices = get_devices(n)
on_gpus = not devices[0].is_virtual
shared = len({device.name for device in devices}) < n
print(*devices, f'on {torch.cuda.device_count()} GPUs and {cores()} cores')
efficiency = 1.0 if on_gpus else two_core_efficiency(n)
steady = not shared and (on_gpus or n <= cores()) and efficiency > 0.7
doubt = '' if steady else ' (but devices are busy or shared)'
print('Stages share a GPU: they fit what one would not, but are no faster.' if shared else
      f'Working at the same time, each device is {efficiency:.0%} as fast as alone.')

# %% [markdown]
# The last line is what this machine lets us expect: a pipeline whose devices slow each other down cannot be faster than
# they allow. If the figure is far below 90 %, other programs keep the cores busy (or there are fewer cores than devices): all
# the times below suffer, in pipelines most, and below 70 % this lesson draws no conclusions from them. Bytes and results
# stay exact.

# %% [markdown]
# ## 2 The plain model, and what fills the memory
#
# MNIST: 60,000 small images of digits. It is easy for a ResNet-50, and that is fine: we are here for the training,
# not for the digits.

# %%
images, labels = data.subset(data.load('train'), 512, seed=0).tensors
figure, axes = plt.subplots(figsize=(8, 1.1), layout='constrained')
axes.imshow(torch.cat(list(images[:10, 0]), dim=1), cmap='gray_r')
axes.set(xticks=[14 + 28 * k for k in range(10)], xticklabels=labels[:10].tolist(), yticks=[])
print(tuple(images.shape), images.dtype)

# %% [markdown]
# The network is an `nn.Sequential`: layer after layer, where each residual block counts as one layer. Of every layer we
# want to know two things: how many parameters it has, and how much it keeps of each image until the backward pass
# (its *activations*).

# %%
model = build('resnet50')
layers = profile(model, images[:4], timeout=0.1, device='cpu')
layers = dict(zip(model._modules, layers))
figure = plot.Picture(figsize=(9, 4.6), layout='constrained')
left, right = figure.subplots(1, 2)
plot.bars({name: layer.parameter_bytes / 1e6 for name, layer in layers.items()}, left,
          title='ResNet-50: parameters, MB')
plot.bars({name: layer.saved_bytes / 4 / 1e6 for name, layer in layers.items()}, right,
          title='activations of one image, MB')
figure

# %% [markdown]
# The early layers keep large images and have few parameters, the late ones are the other way round. Remember
# this picture when it comes to cutting.
#
# A training step needs memory for four things: the weights, their gradients, what the optimizer remembers of each
# weight (SGD with momentum: one number, Adam: two), and the activations.
#
# **Predict:** with a batch of 16 images, how many MB of activations does the forward pass of ResNet-50 leave behind?

# %%
my_guess = None        # MB

device, = get_devices(1, kind='cpu')     # a virtual device, also where there are GPUs
ledger = device.meter()                  # counts every tensor that is made on it, until it dies
ledger.adopt([*model.parameters(), *model.buffers()], parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
with device.active():                    # inside, this cell computes on that device
    weights = ledger.allocated
    loss = cross_entropy(model(images[:16]), labels[:16])
    activations = ledger.allocated - weights
    loss.backward()
    gradients = ledger.allocated - weights
    optimizer.step()
    states = ledger.allocated - weights - gradients
compare(my_guess, activations / 1e6, ' MB')

# %%
plot.bars({'weights': weights / 1e6, 'gradients': gradients / 1e6, 'optimizer states': states / 1e6,
           'activations': activations / 1e6}, write='{:.0f} MB',
          title='ResNet-50, one training step with 16 images')

# %%
per_image = activations / 16
print(f'{per_image / 1e6:.1f} MB an image, so {256 * per_image / 1e9:.1f} GB for a batch of 256.')
print(f'Of weights it is still {weights / 1e6:.0f} MB.')
del model, optimizer, loss     # and with them the memory

# %% [markdown]
# Weights, gradients and states depend on the model alone. Activations grow with the batch, so a larger GPU is soon
# full again. Two things help: to spread the layers over several devices, and not to keep the activations at all.
# GPipe does both.

# %% [markdown]
# ## 3 Cut it, and compute as before
#
# From here on, on a machine without GPUs, we train the smaller ResNet-18 on 64 images at a time, so that each cell takes
# seconds. What you see is the same.
#
# Where to cut? Such that each stage takes as long as the others, or such that each needs as much memory.

# %%
arch, batch = ('resnet50', 128) if on_gpus else ('resnet18', 64)


def new_model():
    torch.manual_seed(0)
    return build(arch)


model, micro_batch = new_model(), images[:batch // 4]
balances = {'time': balance_by_time(n, model, micro_batch),
            'memory': balance_by_size(n, model, images[:batch], chunks=4, param_scale=3)}
balances

# %% [markdown]
# That is how many layers each stage gets. (`param_scale=3`: of each parameter training keeps three numbers, the weight,
# its gradient and its momentum.) What it means for the stages, in milliseconds and megabytes a micro-batch:

# %%
layers = profile(model, micro_batch)
time = torch.tensor([1e3 * (layer.forward + layer.backward) for layer in layers])
size = torch.tensor([(layer.saved_bytes + 3 * layer.parameter_bytes) / 1e6 for layer in layers])
for by, balance in balances.items():
    print(f'by {by:7}', *(f'| {ms.sum():4.0f} ms {mb.sum():4.0f} MB'
                          for ms, mb in zip(time.split(balance), size.split(balance))))

# %% [markdown]
# They differ, as the picture above said they would: time sits in the early layers, parameters in the late ones.
#
# Why is a residual block one layer, and never cut? Because its shortcut needs the block's input again at its end.
# Here is what has to move to the next device for one image, if the cut is before a block, or inside it:

# %%
block, moved = model.block3_2, {}
block.register_forward_hook(lambda _, x, y: moved.update(before=x[0].nbytes))
block.branch[0].register_forward_hook(lambda _, x, y: moved.update(inside=x[0].nbytes + y.nbytes))
model(images[:1])
between, inside = moved['before'], moved['inside']
claims.test('C08', between < inside, f'{between / 1e3:.0f} KB an image cross a cut before a block, '
            f'{inside / 1e3:.0f} KB a cut inside it')

# %% [markdown]
# Now train. `measure` does a few steps as usual, while a `Watch` notes the memory of each device, the speed,
# and what each device did when. First the plain model, on one device:

# %%
def measure(model, steps=3):
    """Some training steps: the first two to count memory, the others to measure speed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    watch = Watch(model, devices, optimizer)
    x = images[:batch].to(watch.stage_devices[0].torch)
    y = labels[:batch].to(watch.stage_devices[-1].torch)
    for _ in range(steps):
        with watch.step(batch):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return SimpleNamespace(speed=watch.samples_per_second, memory=watch.memory(),
                           timeline=watch.timeline)


plain = measure(new_model().to(devices[0].torch))
print(f'{plain.speed:.1f} samples/sec')
print(*plain.memory, sep='\n')

# %% [markdown]
# Then the simplest way to use two devices, *model parallelism*: the first layers on one, the others on the next.
#
# **Predict:** how many times as fast as on one device?

# %%
my_guess = None        # times

balance = balances['time']
naive = measure(ModelParallel(new_model(), balance, devices=devices))
compare(my_guess, naive.speed / plain.speed, ' times as fast')

# %%
plot.timeline(naive.timeline, title='Model parallelism: the number is the micro-batch')

# %%
busy = naive.timeline.busy_share
claims.test('C06', sum(busy) < 1.05,
            f"devices are busy {' and '.join(f'{share:.0%}' for share in busy)} of a step")

# %% [markdown]
# Device 1 waits for the forward of device 0, and device 0 for the backward of device 1. Each has less in its memory,
# so a larger model fits: but nothing is computed at the same time.

# %% [markdown]
# ## 4 Micro-batches
#
# GPipe's idea: cut the mini-batch as well, into *micro-batches*. Device 1 begins as soon as the first micro-batch has
# passed device 0, which meanwhile works on the second. All forwards, then all backwards, and one optimizer step at
# the end, as ever.
#
# What each device does, in which order, is decided before anything runs. It is called the *schedule*: F2 is the forward
# of micro-batch 2, B2 its backward. (In code the number of micro-batches is called `chunks`. With one of them a pipeline is
# model parallelism.)

# %%
print(schedule.gpipe(stages=n, micro_batches=4))

# %% [markdown]
# In code it is one line:

# %%
def pipeline(m, checkpoint='never'):
    return GPipe(new_model(), balance, devices=devices, chunks=m, checkpoint=checkpoint)


# %% [markdown]
# Devices still wait at the beginning, for the first micro-batch to arrive, and at the end. This idle part is the
# *bubble*. With m micro-batches on n devices, and if all stages are equally fast, it is (n - 1) / (m + n - 1) of the
# devices' time.
#
# **Predict:** what percentage of the devices' time is idle with 4 micro-batches? (You may use the formula. What could
# make reality differ from it?)

# %%
my_guess = None        # percent

pipelines = {m: measure(pipeline(m)) for m in (2, 4, 8)}
compare(my_guess, 100 * pipelines[4].timeline.bubble, ' %')

# %%
timelines = {1: naive.timeline} | {m: measured.timeline for m, measured in pipelines.items()}
plot.timelines({f'chunks={m}': timeline for m, timeline in timelines.items()})

# %% [markdown]
# The more micro-batches, the smaller the bubble. Here it is beside the formula:

# %%
bubble = {m: timeline.bubble for m, timeline in timelines.items()}
plot.bars({f'chunks={m}': 100 * idle for m, idle in bubble.items()}, write='{:.0f} %',
          notes={f'chunks={m}': f'(formula {100 * (n - 1) / (m + n - 1):.0f} %)' for m in bubble},
          title='Bubble: idle share of the devices')

# %%
claims.test('C14', bubble[1] > bubble[2] > bubble[4],
            'idle ' + ', '.join(f'{idle:.0%} with {m}' for m, idle in bubble.items()))

# %% [markdown]
# What is above the formula is imbalance (one stage takes longer, the other waits) and other programs on this machine.
#
# So the more micro-batches the better? **Predict:** which number of them gives the most samples per second: 2, 4, 8, or
# 16, where a micro-batch is only one sixteenth of the batch?

# %%
my_guess = None        # micro-batches

pipelines[16] = measure(pipeline(16))
speed = {m: measured.speed for m, measured in pipelines.items()}
best = max(speed, key=speed.get)
compare(my_guess, best, ' micro-batches are fastest')
plot.bars({'plain, one device': plain.speed, 'chunks=1': naive.speed}
          | {f'chunks={m}': value for m, value in speed.items()}, title='Samples a second')

# %% [markdown]
# Each operation costs something however few images it gets, and with few it uses the hardware badly. So the work
# itself grows: these are the seconds in which devices computed, all of them together, in one step.

# %%
timelines[16] = pipelines[16].timeline
work = {m: sum(map(timeline.busy, range(n))) for m, timeline in timelines.items()}
plot.bars({f'chunks={m}': seconds for m, seconds in work.items()}, write='{:.2f} s',
          title='Work of one step, all devices together')

# %%
claims.test('C15', best < 16 if steady else None,
            f'fastest with {best}; a step with 16 is {work[16] / work[1]:.1f} times the work of one with 1'
            + doubt)
speedup = speed[best] / plain.speed
allowed = best * n / (best + n - 1) * efficiency
claims.test('C18', speedup > 0.8 * n if steady else None,
            f'{n} devices are {speedup:.2f} times as fast as one' + (doubt if not steady else
            f'; the bubble and this machine allow {allowed:.2f} times'))

# %% [markdown]
# ## 5 Recompute: less memory for more time
#
# A stage keeps the activations of *all* micro-batches until their backwards come: so far the pipeline has saved nothing
# but what a cut saves. GPipe therefore throws them away. It keeps only the input of the stage, and runs the forward a
# second time (R) just before the backward. `checkpoint='except_last'` spares the last micro-batch, whose
# backward comes at once.

# %%
print(schedule.with_recompute(schedule.gpipe(stages=n, micro_batches=4), 'except_last'))

# %% [markdown]
# A backward takes about twice as long as a forward. **Predict:** by how many percent does recompute make a step longer?

# %%
my_guess = None        # percent

kept, recomputed = pipelines[8], measure(pipeline(8, 'except_last'))
longer = kept.speed / recomputed.speed - 1
compare(my_guess, 100 * longer, ' % longer')
plot.timelines({'Without recompute': kept.timeline, 'With recompute': recomputed.timeline})

# %% [markdown]
# And what it saves:

# %%
plot.memory_bars({'plain': plain.memory, 'pipeline': kept.memory,
                  'with recompute': recomputed.memory}, title=f'Peak memory, {batch} images')

# %%
def on_top(measured):
    """Bytes that a step needs on top of those that stay: weights, gradients, momentum."""
    return sum(memory.peak - memory.allocated for memory in measured.memory)


claims.test('C17', on_top(recomputed) < on_top(kept) / 2,
            f'{on_top(kept) / on_top(recomputed):.1f} times less memory on top of weights, gradients '
            'and momentum' + f', for steps {longer:.0%} longer' * steady)

# %% [markdown]
# With recompute a stage keeps the inputs of its micro-batches, and the activations of one. What the last device still holds
# beside its parameters are mostly gradients and momentum, as it has most of the parameters.

# %% [markdown]
# ## 6 It computes the same
#
# The pipeline reorders the work, but it is still the same work: one batch, one gradient, one update. Let us compare
# gradients with those of the plain model, for a small network without batch norm, cut in several ways.
#
# **Predict:** are they equal to the last bit, equal up to rounding, or different?

# %%
def gradient(model, x, y):
    model.zero_grad()
    cross_entropy(model(x), y).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def difference(one, other):
    return ((one - other).abs().max() / other.abs().max()).item()


net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(),
                    nn.Flatten(), nn.Linear(16 * 24 * 24, 10))
x, y = images[:64], labels[:64]
expected = gradient(net, x, y)
errors = {}
for cut, m in [((3, 3), 1), ((3, 3), 4), ((1, 5), 8), ((2, 2, 2), 5)]:
    piped = GPipe(net, cut, devices=get_devices(len(cut), kind='cpu'), chunks=m)
    errors[cut, m] = difference(gradient(piped, x, y), expected)
    print(f'balance {cut}, chunks {m}: relative difference {errors[cut, m]:.0e}')

# %% [markdown]
# Equal up to the rounding of 32-bit numbers (about 1e-7 an operation), because sums are taken in another order. Take
# them in the *same* order, that is, the plain model micro-batch by micro-batch, the last one first:

# %%
def gradient_by_parts(model, x, y):
    """Of the plain model, on one of four micro-batches after the other: gradients add up."""
    model.zero_grad()
    for part, target in reversed(list(zip(x.chunk(4), y.chunk(4)))):
        (cross_entropy(model(part), target) * len(part) / len(x)).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def in_a_pipeline(model, cut, x, y):
    return gradient(GPipe(model, cut, devices=get_devices(2, kind='cpu'), chunks=4), x, y)


with device.active():
    same = torch.equal(in_a_pipeline(net, (3, 3), x, y), gradient_by_parts(net, x, y))
print('Equal to the last bit:', same)

# %% [markdown]
# There is one catch. *Batch norm* normalises by the mean and variance of the images it sees together: in a pipeline,
# those of a micro-batch. **Predict:** are the gradients of a ResNet-18, which is full of batch norm, still those of the
# plain model?

# %%
resnet, x, y = build('resnet18'), images[:16], labels[:16]
cut = balance_by_time(2, resnet, x[:4], timeout=0.1, device='cpu')
with device.active():
    piped = in_a_pipeline(resnet, cut, x, y)
    by_parts = difference(piped, gradient_by_parts(resnet, x, y))
    at_once = difference(piped, gradient(resnet, x, y))
print('Relative difference from the plain model')
print(f'  on 4 micro-batches, one by one: {by_parts:.0e}')
print(f'  on all 16 images at once:       {at_once:.0e}')

# %%
worst = max(errors.values())
claims.test('C19', worst < 1e-4 and by_parts < 1e-4 < at_once,
            f'gradients differ by {worst:.0e} at most; with batch norm by {by_parts:.0e} from those of the '
            f'micro-batches one by one, but by {at_once:.1g} from those of the whole batch')

# %% [markdown]
# So no pipeline changes what is learned from a micro-batch; but the size of a micro-batch becomes a parameter of
# training, wherever there is batch norm. (Its running averages, used for testing, can be made those of the whole
# batch: `GPipe(..., deferred_batch_norm=True)`.)

# %% [markdown]
# ## 7 Your turn: from a script to a pipeline
#
# Open [exercises/mnist_pytorch.py](../exercises/mnist_pytorch.py) beside this lesson (drag its tab to the right half of
# the window). It is the plain script, a hundred lines. Read `build`, `place` and `train`, then run it from here:

# %%
flags = ('--arch resnet50 --batchsize 128 --samples 5120' if on_gpus else
         '--arch resnet18 --batchsize 64 --samples 192 --test_samples 96')
plain_report = run(f'exercises/mnist_pytorch.py {flags}')

# %% [markdown]
# (In a terminal: `./workshop.py run exercises/mnist_pytorch.py --arch resnet18 ...`, and `--help` lists the flags. On a
# cluster: `sbatch jobs/job_pytorch.sh --arch resnet18 ...`. A few images teach a network next to nothing, as its accuracy
# shows: on a machine with GPUs, or with patience, take more.)
#
# Now open [exercises/09_mnist_gpipe.py](../exercises/09_mnist_gpipe.py). It is the same script, with five places marked
# `TODO STEP`. Four of them are in `build`, and there is little to write:
#
# 1. **Keep it an `nn.Sequential`.** That is the form in which GPipe can cut a model, between its layers. Ours is one.
# 2. **No `model.to(device)` any more.** The model will not live on one device.
# 3. **Choose the balance.** By time or by memory, as `--balance_by` says (it may also give the numbers themselves): section 3 of this lesson has both calls. For the
#    time take a micro-batch as the sample, for the memory a mini-batch.
# 4. **Wrap it in `GPipe`** (`pipeline_of(args.engine)` is the class), with the balance, the devices, `chunks` and `checkpoint`: sections 4 and 5.
# 5. **Input to the first device, target to the last.** The output comes out of the last stage, and is compared with the
#    target there. A pipeline knows its devices: `model.devices`.
#
# The training loop stays as it is: `model(x)`, `loss.backward()`, `optimizer.step()`. Save the file, then run this cell, as
# often as you like. Until the model is wrapped (step 4), it tells you so.

# %%
yours = run(f'exercises/09_mnist_gpipe.py {flags}')

# %% [markdown]
# A script that runs need not be right. This puts your five steps to the test, one by one, and says what is wrong and where
# (in a terminal: `./workshop.py check 09`, and `./workshop.py hint 09` for a hint):

# %%
check(9)

# %% [markdown]
# <details><summary>Stuck at step 3?</summary>
#
# ```python
# stages, sample = len(devices), torch.rand(args.batchsize, 1, 28, 28)
# if args.balance_by == 'time':
#     micro_batch = sample.chunk(args.num_microbatches)[0]
#     balance = balance_by_time(stages, model, micro_batch, device=devices[0])
# elif args.balance_by == 'memory':
#     copies = 3 if args.momentum else 2      # of each parameter: it, its gradient, its momentum
#     balance = balance_by_size(stages, model, sample, chunks=args.num_microbatches,
#                               param_scale=copies, device=devices[0])
# else:
#     balance = args.balance_by               # the numbers themselves
# ```
# </details>
# <details><summary>Stuck at step 4?</summary>
#
# ```python
# GPipe = pipeline_of(args.engine)            # fewgpu.GPipe, or torchgpipe's to compare with
# model = GPipe(model, balance, devices=devices, chunks=args.num_microbatches, checkpoint=args.checkpoint)
# ```
# </details>
# <details><summary>Stuck at step 5?</summary>
#
# ```python
# return x.to(model.devices[0]), y.to(model.devices[-1])
# ```
# </details>
# <details><summary>What if the model is no <code>nn.Sequential</code>?</summary>
#
# Then GPipe says so. A model whose layers do not follow each other has to be rewritten as a sequence first. And no layer
# is ever cut: each must fit one device.
# </details>

# %%
try:
    GPipe(nn.LSTM(8, 8), balance=[1])
except TypeError as error:
    claims.test('C20', True, f'otherwise GPipe says: {error}')

# %% [markdown]
# Compare your pipeline with the plain script. (Where your file is not a pipeline yet, the solution stands in for it from
# here on.)

# %%
solved = yours is not None and yours['engine'] != 'plain'
script = 'exercises/09_mnist_gpipe.py' if solved else 'solutions/09_mnist_gpipe.py'
by_time = yours if solved else run(f'{script} {flags}')
faster = by_time['samples_per_second'] / plain_report['samples_per_second']
print(f'{script} is {faster:.2f} times as fast as the plain script.')
plot.memory_bars({'plain': plain_report.memory, 'pipeline': by_time.memory}, title='Peak memory')

# %%
plot.timeline(by_time.timeline, title=script)

# %%
fullest = max(memory.peak for memory in by_time.memory)
alone = plain_report.memory[0].peak
claims.test('C21', activations > weights and (shared or fullest < alone),
            f'ResNet-50, 16 images: {activations / 1e6:.0f} MB of activations, {weights / 1e6:.0f} MB '
            f'of weights; the fullest of {n} devices holds {fullest / alone:.0%} of what one alone holds')

# %% [markdown]
# ## 8 How high can you go?
#
# First the balance. **Predict:** with `--balance_by memory` instead of time, what happens to the speed, and what to
# the memory of the fullest device?

# %%
by_memory = run(f'{script} {flags} --balance_by memory')

# %%
figure = plot.Picture(figsize=(9, 1.9), layout='constrained')
left, right = figure.subplots(1, 2)
both = {f'by time {by_time["balance"]}': by_time, f'by memory {by_memory["balance"]}': by_memory}
plot.bars({name: report['samples_per_second'] for name, report in both.items()}, left,
          title='Samples a second')
plot.memory_bars({name: report.memory for name, report in both.items()}, right, title='Peak memory')
figure

# %%
change = by_memory['samples_per_second'] / by_time['samples_per_second'] - 1
peak = max(memory.peak for memory in by_memory.memory) / fullest - 1
print(f'By memory instead of time: speed {change:+.0%}, peak of the fullest device {peak:+.0%}.')

# %% [markdown]
# The bytes are exact; the speed was measured over very few steps, and a few percent of it say nothing. Take more
# `--samples` to see it better.
#
# Now give every device little memory. A virtual device with a limit runs out of memory as a GPU does.
# **Predict:** a batch of 128 on 400 MB a device: does it fit plainly? As a pipeline?

# %%
limit = '600MB' if on_gpus else '400MB'
limited = f'--arch {arch} --batchsize 128 --samples 256 --test_samples 32 --memory_limit {limit}'
does_not_fit = run(f'exercises/mnist_pytorch.py {limited}')

# %%
fits = run(f'{script} {limited}')

# %% [markdown]
# How high can you go? `--find_batchsize` tries, and finds the largest batch that fits. First the plain script, with a
# lower limit, so that it does not take long:

# %%
limit = '600MB' if on_gpus else '200MB'
largest = run(f'exercises/mnist_pytorch.py --arch {arch} --find_batchsize --memory_limit {limit}')

# %% [markdown]
# **Predict:** what is the largest batch that fits your pipeline, with as much memory a device? Write your number
# into the next cell, and see whether it fits. Then go higher, or lower.

# %%
my_guess = 4 * largest['find_batchsize']       # images

higher = run(f'{script} --arch {arch} --memory_limit {limit} --test_samples 32 '
             f'--batchsize {my_guess} --samples {2 * my_guess}')

# %% [markdown]
# (`--find_batchsize` does the same for a pipeline. It takes a minute or two on two cores: try it in a terminal.)

# %%
claims.test('C22', abs(peak) > 0.02 and bool(fits) and not does_not_fit and bool(higher),
            f'by memory: fullest device {peak:+.0%}' + f', speed {change:+.0%}' * steady +
            f'; with {limit} a device '
            f"{largest['find_batchsize']} images fit plainly, as a pipeline {my_guess}"
            + ('' if higher else ' do not'))

# %% [markdown]
# Where to go from here, in these cells or in a terminal (`./workshop.py run solutions/09_mnist_gpipe.py ...`):
#
# - `--num_microbatches 2`, 4, 12, 32: speed, and how high the batch can go;
# - `--arch resnet50 --batchsize 128 --samples 256 --memory_limit 600MB`, with both scripts: the larger network
#   of section 2, at a minute or so each on two cores;
# - `--find_depth`: not the largest batch, but the deepest network that fits;
# - `--arch vgg16`: many parameters, few activations. What will the memory bars look like?
# - `./workshop.py compare`: ResNet-50 in six ways, in one table.

# %% [markdown]
# ## 9 Remember
#
# 1. Activations fill the memory: a pipeline spreads the layers over devices, and recompute throws the activations away.
# 2. Micro-batches let devices work at the same time: the bubble is (n - 1) / (m + n - 1) of it. But small
#    micro-batches use a device badly, so there is an optimum.
# 3. The result stays that of the plain model, except that batch norm sees micro-batches; the code changes in five places.
#
# The claims of lectures on this subject that this lesson put to the test, as they came out in this run (the numbers are those
# of one list for all lessons):

# %%
claims
