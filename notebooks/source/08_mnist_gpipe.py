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
# # 8 Hands-on: ResNet-50 on MNIST with GPipe
#
# When you are through, in about 40 minutes (exercise 09 is one of its parts), you will be able to
#
# - turn a plain PyTorch script into a pipeline, in five steps;
# - compare both by samples a second and by the memory of every device;
# - balance a pipeline by time or by memory, and find out how large a batch fits;
# - decide whether a network wants a pipeline at all, or data parallelism.
#
# In a slot of 25 minutes do part 1, the script (its cells compute for less than a minute). Part 2 (10 minutes) tries how
# high it can go, and part 3 (10 minutes) asks which models want a pipeline. This lesson stands alone. You need no GPU:
# without one, each *device* is one core of your machine, with a memory of its own that is counted byte by byte, and the
# network is a smaller one, ResNet-18. Where a cell asks you to **predict**, write your number in place of `None` before
# you run it.

# %%
import torch
import torch.distributed as dist
from torch import nn

from fewgpu import DataParallel, GPipe, data, get_devices, launch, plot, schedule
from fewgpu.balance import balance_by_size
from fewgpu.models import build
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop import check
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.here import Here
from fewgpu.workshop.lesson import compare, run
from fewgpu.workshop.measure import measure

claims = Claims()      # what we find out on the way is noted here

# %% [markdown]
# ## A pipeline in one picture
#
# Cut the network into *stages*, and put each on a device of its own. Alone that only spreads the memory: the second
# device waits for the first, and in the backward pass the first waits for the second. So GPipe cuts the mini-batch, too,
# into *micro-batches* (in code: `chunks`). The second device begins as soon as the first micro-batch has passed the first
# device. All gradients add up, and one optimizer step follows, as ever.
#
# Here is the plan of one training step, in *virtual time*, where a forward of a micro-batch takes a stage 1 unit and its
# backward 2. The number is that of the micro-batch.

# %%
one, four = schedule.gpipe(stages=2, micro_batches=1), schedule.gpipe(stages=2, micro_batches=4)
plans = {'one micro-batch': simulate(one, Costs(F=4, B=8)),
         'four micro-batches': simulate(four, Costs(F=1, B=2)),
         'four, with recompute': simulate(schedule.with_recompute(four, 'except_last'), Costs(F=1, B=2))}
plot.timelines(plans, unit='units')

# %% [markdown]
# Grey is idle, and *makespan* is the length of the whole picture. Its idle share is called the *bubble*. The third plan
# is GPipe's own: a stage throws the activations of a micro-batch away, keeps only its input, and computes the forward a
# second time just before the backward. That is *recompute*: less memory for more time. (Not for the last micro-batch,
# whose backward comes at once.)
#
# Each of these ideas has a lesson: what fills the memory [2](02_memory.ipynb), stages
# [4](04_model_parallelism.ipynb), micro-batches [5](05_gpipe.ipynb), recompute [6](06_recompute.ipynb), where to cut
# [7](07_balance.ipynb).

# %% [markdown]
# ## Part 1 (20 minutes): from a script to a pipeline
#
# The network is a ResNet, the data are MNIST's images of digits: 28 x 28, easy to learn, and that is fine, for we watch
# the training and not the digits. Two devices of this machine:

# %% tags=["measured"]
here = Here(2)
arch, batch = ('resnet50', 128) if here.on_gpus else ('resnet18', 64)
images, labels = data.subset(data.load('train'), 2 * batch, seed=0).tensors
here

# %% [markdown]
# Near 100 %: expect the speed-ups of the plan. Near 50 %: both together are no faster than one, so look at the memory.
#
# Without GPUs we take few images, so that each cell takes seconds. (They teach a network next to nothing, as its
# accuracy will show.)
#
# Open [exercises/mnist_pytorch.py](../exercises/mnist_pytorch.py) beside this lesson (drag its tab to the right half of
# the window). It is the plain script, a hundred lines. Read `build`, `place` and `train`, then run it from here:

# %% tags=["measured"]
flags = f'--arch {arch} --batchsize {batch}' + (
    ' --samples 5120' if here.on_gpus else ' --samples 256 --test_samples 32')
plain = run(f'exercises/mnist_pytorch.py {flags}')

# %% [markdown]
# `allocated` is what stays between two steps: weights, their gradients, and the optimizer's momentum. The `peak` is in
# the middle of a step, when all activations are there.
#
# In a terminal the same is `./workshop.py run exercises/mnist_pytorch.py --arch resnet18 ...`, and `--help` lists the
# flags. On a cluster it is `sbatch jobs/job_pytorch.sh --arch resnet18 ...`.
#
# Now open [exercises/09_mnist_gpipe.py](../exercises/09_mnist_gpipe.py). It is the same script, with five places marked
# `TODO STEP`. Four of them are in `build`, and there is little to write.

# %% [markdown]
# ### The five steps
#
# 1. **Keep it an `nn.Sequential`.** GPipe cuts a model between its layers, so it has to know them. Ours is a sequence
#    already; each residual block is one layer.
# 2. **No `model.to(device)` any more.** The model will not live on one device.
# 3. **Choose the balance**, how many layers each stage gets: `balance_by_time` with a micro-batch, or `balance_by_size`
#    with a mini-batch, `chunks=args.num_microbatches` and `param_scale` (3 numbers a parameter with momentum, else 2).
#    `args.balance_by` says which; it may also be the numbers themselves.
# 4. **Wrap it in `GPipe`** (`pipeline_of(args.engine)` is the class), with the balance, the devices,
#    `chunks=args.num_microbatches`, and `checkpoint=args.checkpoint`, which says what is recomputed.
# 5. **Input to the first device, target to the last.** The output comes out of the last stage, and is compared with the
#    target there. A pipeline knows its devices: `model.devices`.
#
# The training loop stays: `model(x)`, `loss.backward()`, `optimizer.step()`. Take 15 to 30 minutes. Save the file,
# then run this cell, as often as you like.

# %% tags=["measured"]
on_two = f'{flags} --devices 2'
yours = run(f'exercises/09_mnist_gpipe.py {on_two}')

# %% [markdown]
# A script that runs need not be right. This puts your five steps to the test, one by one, and says what is wrong and
# where:

# %% tags=["yours"]
check(9)

# %% [markdown]
# In a terminal: `./workshop.py check 09`, and `./workshop.py hint 09` for a hint.
#
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

# %% [markdown]
# ### Is it faster?
#
# (Where your file is not a pipeline yet, the solution stands in for it from here on.)
#
# **Predict:** with two devices, 8 micro-batches and recompute, how many times as fast as the plain script is the
# pipeline?

# %% tags=["measured"]
my_guess = None        # times

solved = yours is not None and yours['engine'] != 'plain'
script = 'exercises/09_mnist_gpipe.py' if solved else 'solutions/09_mnist_gpipe.py'
by_time = yours if solved else run(f'{script} {on_two}')
balance = by_time['balance']
speed_up = by_time['samples_per_second'] / plain['samples_per_second']
compare(my_guess, speed_up, ' times as fast', doubt=here.doubt)

# %% tags=["measured"]
plot.timeline(by_time.timeline, title='One step of your pipeline')

# %% [markdown]
# Not twice as fast. There is a bubble, recompute is extra work, and two devices of this machine may slow each other down.
# The plan knows the first two:

# %%
plan = simulate(schedule.with_recompute(schedule.gpipe(2, 8), 'except_last'), Costs(F=1, B=2))
kept = simulate(schedule.gpipe(2, 8), Costs(F=1, B=2))
work = 2 * 8 * 3       # stages, micro-batches, units of a forward and a backward
print(f'two equal stages, 8 micro-batches: {work / kept.makespan:.2f} times as fast as one device, '
      f'with recompute {work / plan.makespan:.2f} times')

# %% tags=["measured"]
pace = 0.5 if here.shared else here.efficiency or 1      # of a device, while both work
print(f'What this machine allows of that: {pace * work / plan.makespan:.2f} times. '
      f'Found: {speed_up:.2f} times{here.doubt}.')

# %% [markdown]
# What is still missing is mostly the size of the pieces. A stage works on an eighth of the batch at a time, and with few
# images an operation takes longer for each ([lesson 5](05_gpipe.ipynb) measures it). Stages are not quite equal, either.
#
# ### Does it need less?
#
# Two things are new, the cut and recompute. To tell them apart, here is a third run: one device, with micro-batches and
# recompute, but without a cut.

# %% tags=["measured"]
def pipeline(chunks, checkpoint='except_last', balance=balance):
    torch.manual_seed(0)
    devices = here.devices[:len(balance)]
    return GPipe(build(arch), balance, devices=devices, chunks=chunks, checkpoint=checkpoint)


uncut = measure(pipeline(8, balance=[sum(balance)]), images[:batch], labels[:batch], here.devices[:1])
memories = {'plain': plain.memory, 'recompute': uncut.memory, 'pipeline': by_time.memory}
for name, devices in memories.items():
    print(f'{name:9}', *(f'| {one.name}: {one.allocated / 1e6:3.0f} of {one.peak / 1e6:3.0f} MB stay'
                         for one in devices))
plot.memory_bars(memories, title=f'Peak memory, {batch} images')

# %% [markdown]
# Recompute with micro-batches saves activations, on one device too. The pipeline splits weights, gradients and momentum.
# What is left of its fullest device is mostly these: they stay from step to step, as the lines above say.
#
# Together they give the large batch. Micro-batches are then larger, too, which helps where they were too small for a
# device:

# %% tags=["measured"]
twice = measure(pipeline(8), images, labels, here.devices, steps=4)
speeds = {f'plain, {batch}': plain['samples_per_second'],
          f'pipeline, {batch}': by_time['samples_per_second'], f'pipeline, {2 * batch}': twice.speed}
figure = plot.Picture(figsize=(9, 2.3), layout='constrained')
left, right = figure.subplots(1, 2)
plot.bars(speeds, left, title='Samples a second' + here.doubt)
memories = zip(speeds, [plain.memory, by_time.memory, twice.memory])
plot.memory_bars(dict(memories), right, title='Peak memory')
figure

# %% [markdown]
# ### The figures of a lecture
#
# The lecture that this hands-on comes from did it on two large GPUs, with a ResNet-50 on all of MNIST. It published:

# %%
published = {'plain, batch 256': (256, 718.463, [8.074]),
             'GPipe, batch 512': (512, 961.705, [3.221, 1.596])}
for name, (size, speed, reserved) in published.items():
    print(f'{name}: {speed:.0f} samples a second, {speed / len(reserved):.0f} a GPU; reserved '
          f'{" + ".join(map(str, reserved))} GB, {1e3 * sum(reserved) / size:.1f} MB an image')
print(f'GPipe is {961.705 / 718.463:.2f} times as fast; allocated 0.270 GB plain, '
      f'{0.015 + 0.256:.3f} = 0.015 + 0.256 with GPipe')

# %% [markdown]
# (*Reserved* is what PyTorch's allocator holds.) So 34 % more speed for twice the GPUs. Our plan says 1.41, but for the
# same batch and 8 micro-batches; the lecture had twice the batch and names no number of micro-batches, so that they are
# near may be chance. A GPU does *less* per second than alone.
#
# What is gained is memory. The parameters are split (unevenly: the late layers have most). An image takes less than a third
# of it; a cut alone would leave that sum as it is, so most of this comes from recompute.

# %% [markdown]
# ## Part 2 (10 minutes): how high can you go?
#
# First the balance. So far we cut by time. Where are the parameters?

# %%
for name in ('resnet18', 'resnet50'):
    groups = {}
    for layer, module in build(name).named_children():
        group = layer.split('_')[0] if layer.startswith(('block', 'linear')) else 'first layers'
        groups[group] = groups.get(group, 0) + sum(map(torch.numel, module.parameters()))
    print(name, *(f'| {group} {count / 1e6:.2f}' for group, count in groups.items() if count), 'million')

# %% [markdown]
# Each takes 12 bytes: weight, gradient, momentum. **Predict:** with `--balance_by memory`, how many MB is the peak of the
# fullest device? And does the pipeline become faster or slower?

# %% tags=["measured"]
alone, fullest = plain.memory[0].peak, max(memory.peak for memory in by_time.memory)
print(f'by time {balance}: {fullest / 1e6:.0f} MB')
my_guess = None        # MB

by_memory = (run(f'{script} {on_two} --balance_by memory')
             or run(f'solutions/09_mnist_gpipe.py {on_two} --balance_by memory'))
change = by_memory['samples_per_second'] / by_time['samples_per_second'] - 1
fullest_now = max(memory.peak for memory in by_memory.memory)
peak = fullest_now / fullest - 1
compare(my_guess, fullest_now / 1e6, ' MB')
print(f'The peak changes by {peak:+.0%}, the speed by {change:+.0%}{here.doubt}.')

# %% tags=["measured"]
figure = plot.Picture(figsize=(9, 1.9), layout='constrained')
left, right = figure.subplots(1, 2)
both = {f'time {balance}': by_time, f'memory {by_memory["balance"]}': by_memory}
plot.bars({name: report['samples_per_second'] for name, report in both.items()}, left,
          title='Samples a second' + here.doubt)
plot.memory_bars({name: report.memory for name, report in both.items()}, right, title='Peak memory')
figure

# %% [markdown]
# All blocks of a ResNet take time ([lesson 7](07_balance.ipynb) measures it), but the last ones have the parameters. So one
# cut cannot balance both. (The bytes of a cut are exact. But the cut by time is measured, and may move by a layer from run
# to run.)
#
# ### Micro-batches
#
# With more micro-batches the bubble is smaller, and so is what a stage recomputes at a time. But small pieces use a
# device badly. **Predict:** which is the fastest, 2, 8 or 16 micro-batches?

# %% tags=["measured"]
my_guess = None        # micro-batches

tried = {m: measure(pipeline(m), images[:batch], labels[:batch], here.devices, steps=4)
         for m in (2, 8, 16)}
compare(my_guess, max(tried, key=lambda m: tried[m].speed), ' micro-batches', doubt=here.doubt)
figure = plot.Picture(figsize=(9, 2.4), layout='constrained')
left, right = figure.subplots(1, 2)
plot.bars({f'chunks={m}': run.speed for m, run in tried.items()}, left,
          title='Samples a second' + here.doubt)
plot.memory_bars({f'chunks={m}': run.memory for m, run in tried.items()}, right, title='Peak memory')
figure

# %% [markdown]
# With 2, half of the batch is a micro-batch: a large bubble, and many activations at a time. With 16, a micro-batch
# is so small that each operation has hardly anything to do. (Devices that slow each other down gain nothing by a smaller
# bubble: there 2 may be the fastest.) The device with the late layers hardly shrinks: its weights, gradients and
# momentum stay.

# %% [markdown]
# ### The batch
#
# Now give every device little memory. A virtual device with a limit runs out of memory as a GPU does. `--find_batchsize`
# tries batches, and finds the largest that fits. First the plain script:

# %% tags=["measured"]
limited = f'--arch {arch} --memory_limit ' + ('600MB' if here.on_gpus else '200MB')
largest = run(f'exercises/mnist_pytorch.py {limited} --find_batchsize')

# %% [markdown]
# **Predict:** what is the largest batch that fits your pipeline, with as much memory a device? Run the cell with your
# number (with `None` it tries six times the plain batch). Does it fit? Then go higher, or lower.

# %% tags=["measured"]
my_guess = None        # images

size = my_guess or 6 * largest['find_batchsize']
higher = run(f'{script} {limited} --devices 2 --test_samples 32 --batchsize {size} --samples {2 * size}')

# %% [markdown]
# (Without GPUs, `--find_batchsize` found 21 images for the plain script, 120 for one device with micro-batches and
# recompute (`--devices 1`), and 432 for two devices cut as [8, 6]. For a pipeline this takes a minute or two on two cores:
# try it in a terminal.)

# %% tags=["measured"]
larger = size > largest['find_batchsize']
decided = here.steady and bool(higher) and larger
claims.test('C22', peak < -0.02 and change < 0 if decided else None,
            f'by memory instead of time: peak of the fullest device {peak:+.0%}, speed {change:+.0%}; '
            f"under a limit {largest['find_batchsize']} images fit plainly, and {size} "
            + ('fit the pipeline' if higher else 'do not fit the pipeline: try a smaller number')
            + ', no more: try a larger number' * (not larger) + here.doubt)

# %% [markdown]
# ## Part 3 (10 minutes): for which models?
#
# ### When it cannot be done
#
# Steps 1 and 3 hide a condition. A model whose layers do not follow each other has to be rewritten as a sequence
# first. And no layer is ever cut, so each must fit one device. This one does not: 3 million weights on devices of 10 MB.

# %%
small, said = get_devices(2, kind='cpu', memory_limit=10_000_000), []
wide = nn.Sequential(nn.Linear(1000, 3000), nn.ReLU())
try:
    GPipe(nn.LSTM(8, 8), balance=[1])
except TypeError as error:
    said.append(f'{error}')
try:
    measure(GPipe(wide, [1, 1], devices=small), torch.rand(8, 1000), torch.zeros(8).long(), small)
except torch.OutOfMemoryError as error:
    said.append(f'{error}'.split('. Use')[0])
claims.test('C20', len(said) == 2, f"GPipe as built here refuses an LSTM: '{said[0]}'; a layer of 12 MB "
            f"on devices of 10 MB: '{said[1]}'")

# %% [markdown]
# ### Many weights, few activations
#
# The lecture expects that models with many weights and few activations gain *more*, and proposes to test it with VGG-16:
# 134 million weights, where a ResNet-50 has 23.5 million.
#
# **Predict:** on two devices, balanced by memory, with 4 images: what percentage of the memory that one device needs will
# the fullest device need?

# %% tags=["measured"]
my_guess = None        # percent

x, y, vgg = images[:4], labels[:4], build('vgg16')
weights_of = {name: sum(map(torch.numel, layer.parameters())) for name, layer in vgg.named_children()}
cut = balance_by_size(2, vgg, x, chunks=2, param_scale=3)
on_one = measure(vgg, x, y, here.devices, steps=2).memory
del vgg                # and with it half a gigabyte
on_both = GPipe(build('vgg16'), cut, devices=here.devices, chunks=2)
on_both = measure(on_both, x, y, here.devices, steps=2).memory
vgg_share = max(one.peak for one in on_both) / on_one[0].peak
compare(my_guess, 100 * vgg_share, ' %')
most = max(weights_of, key=weights_of.get)
print(f'balance {cut}; {most} alone has {weights_of[most] / sum(weights_of.values()):.0%} of all weights')
plot.memory_bars({'plain': on_one, 'pipeline': on_both}, title='VGG-16, 4 images: peak memory')

# %% [markdown]
# Nothing is gained. One layer has most of the weights, and no layer is cut. What is more, each micro-batch adds its own
# gradient, as large as the weights, and needs room for it beside the sum: so the fullest device may need more than one
# device alone. Many weights gain where they are spread over many layers, as in the equal layers below.

# %% tags=["measured"]
weights = plain.memory[0].parameters
activations = plain.memory[0].peak - plain.memory[0].allocated
share = fullest / alone
parts = {'activations fill the memory': activations > weights, 'the fullest device holds less': share < 1,
         'many weights gain more': vgg_share < share}
failed = [name for name, holds in parts.items() if not holds]
claims.test('C21', not failed if not here.shared else None,
            f'{arch}, {batch} images: {activations / 1e6:.0f} MB of activations, '
            f'{weights / 1e6:.0f} MB of weights; the fullest device holds {share:.0%} of what one alone '
            f'holds (recompute alone: {uncut.memory[0].peak / alone:.0%}), with VGG-16 {vgg_share:.0%}'
            + f"; what does not hold: '{', '.join(failed)}'" * bool(failed))

# %% [markdown]
# ### Or rather data parallelism?
#
# There is another way to use two devices: each has the whole model and half of the rows, and the gradients are averaged
# over the devices. That is *data parallelism* ([lesson 3](03_data_parallelism.ipynb)). A device is a process there,
# called a *rank*; `launch` starts both.

# %% tags=["measured"]
def train(steps=4):
    """What every rank runs: its half of the batch; samples a second of both together."""
    rank, device = dist.get_rank(), get_devices(2)[dist.get_rank()]
    torch.manual_seed(0)
    model = DataParallel(build(arch).to(device.torch))
    x, y = images[:batch].chunk(2)[rank], labels[:batch].chunk(2)[rank]
    return 2 * measure(model, x, y, [device], steps=steps).speed

# %% [markdown]
# **Predict:** the same network and batch as a pipeline of two devices, without recompute (there is memory enough) and
# with 8 micro-batches: how many times as fast is data parallelism?

# %% tags=["measured"]
my_guess = None        # times

x, y = images[:batch], labels[:batch]
alone_now = measure(build(arch), x, y, here.devices, steps=4).speed
piped = measure(pipeline(8, 'never'), x, y, here.devices, steps=4).speed
side_by_side = min(launch(train, ranks=2))
compare(my_guess, side_by_side / piped, ' times as fast', doubt=here.doubt)
plot.bars({'plain': alone_now, 'GPipe': piped, 'data parallelism': side_by_side},
          title='Samples a second' + here.doubt)

# %% [markdown]
# Ranks have no bubble and no neighbours to wait for. Once a step they exchange gradients, as many numbers as there are
# weights. A pipeline sends activations instead, and its stages are never quite equal.
#
# But every rank holds the whole model: its weights, gradients and momentum. Here is a model of equal layers, on devices
# of 40 MB. Weights, gradients and momentum take three times the weights. We try each rank with one single row, the least
# there is.

# %%
def fits(layers, stages):
    """Two training steps of so many equal layers on so many devices of 40 MB."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(784, 784), nn.ReLU()) for _ in range(layers)))
    devices, rows = get_devices(stages, kind='cpu', memory_limit=40_000_000), 1 if stages == 1 else 32
    if stages > 1:
        model = GPipe(model, [layers // stages] * stages, devices=devices, chunks=4)
    try:
        measure(model, torch.rand(rows, 784), torch.zeros(rows).long(), devices, steps=2)
        return True
    except torch.OutOfMemoryError:
        return False


room = {}
print('layers  weights      x 3   one rank of many   pipeline of 2   of 4 devices')
for layers in (4, 8, 16):
    room[layers] = [fits(layers, stages) for stages in (1, 2, 4)]
    words = ['fits' if one else 'out of memory' for one in room[layers]]
    held = 2.46 * layers
    print(f'{layers:6}  {held:4.0f} MB  {3 * held:4.0f} MB   {words[0]:17}  {words[1]:14}  {words[2]}')

# %% tags=["measured"]
larger_only_piped = room[8] == [False, True, True]
claims.test('C23', side_by_side > piped and larger_only_piped if here.steady else None,
            f'{arch}, {batch} images, two devices: data parallelism is {side_by_side / piped:.2f} times '
            'as fast as GPipe; 20 MB of weights, x 3 = 59 MB, on devices of 40 MB train '
            + ('as a pipeline only' if larger_only_piped else 'either way, or not at all') + here.doubt)

# %% [markdown]
# So ask first whether the model, with its gradients and optimizer states, fits one device with a few rows. If it does,
# take data parallelism. (It sends all gradients in every step, so over a slow network a model of many weights may do
# better as a pipeline: [lesson 3](03_data_parallelism.ipynb) measures it.) If it does not fit, cut it. There are other
# ways: recompute, where activations are what does not fit ([lesson 6](06_recompute.ipynb)), and *sharded* data
# parallelism (FSDP, ZeRO), where every rank keeps a part of weights, gradients and momentum. It is not built here.
#
# ### Where to go from here
#
# In these cells, in a terminal (`./workshop.py run solutions/09_mnist_gpipe.py ...`), or on a cluster
# (`sbatch jobs/job_gpipe_exercise.sh ...` takes your file, `sbatch jobs/job_gpipe.sh ...` the solution):
#
# - `--arch resnet50 --batchsize 128 --samples 256 --memory_limit 600MB`, with both scripts: the network of the
#   lecture, at a minute or so each on two cores;
# - `--num_microbatches 2`, 4, 12, 32: how high can the batch go now?
# - `--find_depth`: not the largest batch, but the deepest network that fits;
# - `./workshop.py compare`: ResNet-50 in six ways, in one table.

# %% [markdown]
# ## Remember
#
# 1. Five steps make a pipeline of a script: keep the sequence, do not move it, balance it, wrap it, and send the input
#    to the first device and the target to the last.
# 2. Recompute with micro-batches saves activations, on one device too. The pipeline splits weights, gradients and momentum:
#    a larger batch or model fits. It also becomes faster, but less than n times, because of the bubble and recompute.
# 3. A pipeline is for a model that does not fit one device, made of layers that do (other ways: recompute, sharded data
#    parallelism). One that fits is better off with data parallelism.
#
# Next: [lesson 9](09_one_f_one_b.ipynb), pipelines with less memory, and with less bubble.
#
# The claims of lectures that this lesson put to the test (C20, C21, C22, C23), as they came out in this run:

# %% tags=["measured"]
claims
