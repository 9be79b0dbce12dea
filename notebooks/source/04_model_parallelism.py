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
# # 4 Model parallelism
#
# When you are through, in about 40 minutes (an exercise of 25 comes on top), you will be able to
#
# - spread a model over two devices by hand, and train with it what does not fit one of them;
# - say why its devices work one at a time, and how much of each is used;
# - count what crosses a cut, and what a slow link makes of it;
# - place a network with long skips so that little has to move.

# %%
import torch
from torch import nn
from torch.nn.functional import cross_entropy, interpolate, max_pool2d

from fewgpu import ModelParallel, data, get_devices, plot, schedule
from fewgpu.balance import balance_by_time, profile
from fewgpu.balance.profile import weigh
from fewgpu.models import build
from fewgpu.schedule import Op, Schedule
from fewgpu.simulate import Costs, simulate
from fewgpu.workshop import check
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.here import Here
from fewgpu.workshop.lesson import compare
from fewgpu.workshop.measure import gradient_of, measure
from fewgpu.workshop.panel import Panel, Slider

claims = Claims()      # what we find out on the way is noted here

# %% [markdown]
# ## A model that does not fit
#
# Data parallelism ([lesson 3](03_data_parallelism.ipynb)) puts the whole model on every device. So it does not help
# with a model that is too large for one.
#
# Here is such a case: a ResNet-18, a batch of 32 images, and a device with 150 MB. The weights are 45 MB. The forward
# adds its *activations*, what the layers keep for the backward, and runs out of memory. (Micro-batches and recompute,
# which the message names, come in later lessons.)

# %%
def new_model():
    torch.manual_seed(0)
    return build('resnet18')


images, labels = data.subset(data.load('train'), 512, seed=0).tensors
x, y, limit = images[:32], labels[:32], 150_000_000
model, (device,) = new_model(), get_devices(1, kind='cpu', memory_limit=limit)
device.ledger.adopt([*model.parameters(), *model.buffers()], parameters=True)   # the weights lie on it
with device.active():
    try:
        cross_entropy(model(x), y).backward()
    except torch.OutOfMemoryError as error:
        print(error)

# %% [markdown]
# ## Two devices, by hand
#
# The model is a sequence of 14 layers (a residual block counts as one). So we give the first nine to one device and
# the other five to a second one, each with 150 MB. Such a run of layers on a device is called a *stage*.

# %%
model, devices = new_model(), get_devices(2, kind='cpu', memory_limit=limit)
stages = model[:9], model[9:]
for stage, device in zip(stages, devices):
    device.ledger.adopt([*stage.parameters(), *stage.buffers()], parameters=True)
    print(device.name, [name for name, _ in stage.named_children()])

# %% [markdown]
# The weights stay where they are. What has to move is the output of the first stage: it is the input of the second.
# For one image it has 256 channels of 7 x 7 numbers, and a number takes 4 bytes.
#
# **Predict:** how many MB move to the second device, for 32 images?

# %%
my_guess = None        # MB

one, two = devices
with one.active():
    activation = stages[0](x)
compare(my_guess, activation.nbytes / 1e6, ' MB')

# %% [markdown]
# Now the rest of the training step. The second device gets a copy of the activation and goes on. Its backward ends
# with a gradient of that copy. The gradient travels back, and the first device begins its own backward with it.

# %%
with two.active():
    moved = activation.detach().clone().requires_grad_()   # on GPUs: .to('cuda:1') instead of .clone()
    loss = cross_entropy(stages[1](moved), y)
    loss.backward()
with one.active():
    activation.backward(moved.grad)                          # on GPUs: moved.grad.to('cuda:0')
for device in devices:
    print(f'{device.name}: at most {device.ledger.peak / 1e6:.0f} MB')

# %% [markdown]
# It fits. Is it still the same training? A plain model on a device of 1 GB says so: its gradients are these,
# to the last bit. The same operations ran in the same order, only in two places. And it says how much memory it needs.

# %%
plain, (large,) = new_model(), get_devices(1, kind='cpu', memory_limit=10**9)
large.ledger.adopt([*plain.parameters(), *plain.buffers()], parameters=True)
with large.active():
    cross_entropy(plain(x), y).backward()
print('Equal to the last bit:', torch.equal(gradient_of(model), gradient_of(plain)))
print(f'In one place: at most {large.ledger.peak / 1e6:.0f} MB')

# %% [markdown]
# ## Your turn
#
# On GPUs one `loss.backward()` is enough: `.to` is an operation like any other, and autograd carries the gradient
# back through it. So a spread model needs three short functions: one that places layers on devices, one for the
# forward, one for a training step. You write them in
# [exercises/04_model_parallel.py](../exercises/04_model_parallel.py), in about 25 minutes. You need no GPU for it.

# %% tags=["yours"]
check(4)

# %% [markdown]
# (For a hint: `./workshop.py hint 04` in a terminal.)
#
# The library has all of it in one class. The *balance* says how many layers each stage gets. After three steps of SGD
# with momentum, weights, gradients and momentum are in the memory as well, and it still fits:

# %%
model = ModelParallel(new_model(), balance=[9, 5], devices=get_devices(2, kind='cpu', memory_limit=limit))
for memory in measure(model, x, y, model.stage_devices).memory:
    print(f'{memory.name}: at most {memory.peak / 1e6:.0f} MB')

# %% [markdown]
# ## One at a time
#
# Two devices, so twice the speed? We measure it on the devices of this machine, without a limit.
# `balance_by_time` cuts such that both stages take about the same time.

# %% tags=["measured"]
here = Here(2)
here

# %% [markdown]
# **Predict:** how many times as fast as on one device is the same model on two?

# %% tags=["measured"]
my_guess = None        # times

x, y = images[:32], labels[:32]
plain = measure(new_model(), x, y, here.devices)
balance = balance_by_time(2, new_model(), x[:16], timeout=0.1)
spread = measure(ModelParallel(new_model(), balance, devices=here.devices), x, y, here.devices)
compare(my_guess, spread.speed / plain.speed, ' times as fast', doubt=here.doubt)

# %% [markdown]
# The timeline of a step shows why. Each row is a device. Light is a forward, dark a backward. (The numbers count pieces
# of the batch. Here it is in one piece, number 0.) Where a row is grey, its device is *idle*: it computes nothing. The
# grey bar in the middle of a row says that it *waits for a message*: the second device for the activation, and then
# the first for the gradient.
#
# At the top right, *makespan* is the length of the whole picture, and *bubble* the share of it in which devices
# compute nothing, of all devices together.

# %% tags=["measured"]
plot.timeline(spread.timeline, title='Model parallelism on two devices, measured')

# %% [markdown]
# With more devices the work of a step stays the same, but there are more who wait. In *virtual time*, where each
# stage takes its share of a forward of 1 unit and a backward of 2, nothing disturbs the picture.
#
# **Predict:** for what percentage of a step is each of eight devices busy?

# %%
my_guess = None        # percent


def spread_over(devices):
    """A step of model parallelism: one batch in one piece, and equal stages."""
    return simulate(schedule.gpipe(devices, micro_batches=1), Costs(F=1 / devices, B=2 / devices))


compare(my_guess, 100 * spread_over(8).busy_share[0], ' %')

# %%
def draw(devices):
    timeline = spread_over(devices)
    return (plot.timeline(timeline, unit='units'),
            f'{timeline.makespan:g} units a step, and each device is busy for {timeline.busy_share[0]:.1%}')


Panel(draw, devices=Slider(4, 1, 8))

# %% [markdown]
# It is 1/n for n devices. You pay for n of them and get the speed of one, but the memory of all.

# %% tags=["measured"]
busy = spread.timeline.busy_share
alone = all(abs(share * n - 1) < 1e-9 for n in range(2, 9) for share in spread_over(n).busy_share)
claims.test('C06', alone and sum(busy) < 1.05,
            f'two devices are busy {busy[0]:.0%} and {busy[1]:.0%} of a step; '
            'in virtual time each of n devices is busy for 1/n of it (n up to 8)')

# %% [markdown]
# ## What crosses a cut
#
# A cut may be behind any layer, and the layer's output crosses it. `weigh` finds how much that is, by one forward of
# one image. For comparison it also counts the weights, which never move.

# %%
weights, outputs = {}, {}      # bytes
figure = plot.Picture(figsize=(9, 4.6), layout='constrained')
for arch, ax in zip(('resnet18', 'resnet50'), figure.subplots(1, 2)):
    net = build(arch)
    layers = dict(zip(net._modules, weigh(net, images[:1], device='cpu')))
    weights[arch] = sum(layer.parameter_bytes for layer in layers.values())
    outputs[arch] = {name: layer.output_bytes for name, layer in layers.items()}
    plot.bars({name: size / 1e3 for name, size in outputs[arch].items()}, ax, write='{:.1f}',
              title=f'{arch}: kB of one image')
    print(f'{arch}: {weights[arch] / 1e6:.0f} MB of weights')
figure

# %% [markdown]
# Blocks come in groups, and all blocks of a group have outputs of the same size. The first block of groups 2, 3 and 4
# halves the side of the image (7 becomes 4) and doubles the channels. So behind the first block of a group the output is
# already small: half of what came in, or a bit more. The blocks of ResNet-50 have four times the channels. There, group
# 1 first makes the image larger.
#
# In data parallelism a device sends a gradient for every weight in each step, whatever the batch: 45 MB of
# ResNet-18 ([lesson 3](03_data_parallelism.ipynb), two devices in a ring). Here it sends the activation at the cut (or
# the gradient of it), which grows with the batch. **Predict:** with how many images does one device send as much,
# with the cut behind `block3_2`? (Look up the bar.)

# %%
my_guess = None        # images

compare(my_guess, weights['resnet18'] / outputs['resnet18']['block3_2'], ' images')

# %% [markdown]
# ## A slow link
#
# While the activation is on its way, both devices wait. So how fast the *link* between them is matters. It has a
# *latency* (the time that an empty message takes) and a *bandwidth* (bytes a second). Virtual devices can be given a
# link. This one lets 10 MB a second pass, and the cut is behind `block1_2`, where it hurts:

# %% tags=["measured"]
slow = get_devices(2, kind='cpu', latency=0.001, bandwidth=10e6)
model = ModelParallel(new_model(), balance=[5, 9], devices=slow)
late = measure(model, images[:16], labels[:16], slow)
plot.timeline(late.timeline, title='Over a slow link, measured')

# %% [markdown]
# Between the two forwards, and again between the two backwards, both devices are idle: a message is on its way.
#
# Now the same in virtual time, over links from 0.1 to 100 GB/s, for a batch of 64 images. Each of two stages takes 10
# ms for its forward and 20 ms for its backward. The latency is 0.01 ms.

# %%
links = [0.1, 0.3, 1, 3, 10, 30, 100]       # GB/s


def step_time(gigabytes, message, plan=schedule.gpipe(2, 1), F=10.0):
    """Milliseconds of a step in which these bytes cross the boundaries."""
    bytes_per_ms = gigabytes * 1e6
    costs = Costs(F=F, B=2 * F, message=message, bandwidth=bytes_per_ms, latency=0.01)
    return simulate(plan, costs).makespan


sent = {name: 64 * outputs['resnet18'][name] for name in ('block1_2', 'block3_2')}
plot.lines({f'cut behind {name}': (links, [step_time(link, size) for link in links])
            for name, size in sent.items()},
           log='x', x='GB/s', y='ms a step', title='A step in virtual time')

# %% [markdown]
# Without any transfer it would be 60 ms. On a fast link the cut hardly matters; on a slow one the cut decides.

# %% [markdown]
# ## Long skips
#
# With large images, a single one may be too much for a device. The usual network for them is the *U-Net*. Its
# encoder makes the image smaller level by level, its decoder makes it large again. And each level of the decoder also
# gets what the encoder had at that level, by a *skip*.
#
# A cut between layers then carries more than one activation: all skips that pass over it have to get to the other
# side. Here is a small U-Net of four levels, run once, to see the sizes. An image has 256 x 256 pixels.

# %%
def conv(tensor, channels):
    return nn.Conv2d(tensor.shape[1], channels, 3, padding=1)(tensor)


channels, features, down, up = [16, 32, 64, 128], [], [], []
with torch.no_grad():
    tensor = torch.rand(1, 1, 256, 256)
    for width in channels:                                   # the encoder
        features.append(conv(tensor, width))                 # kept for the skip
        tensor = max_pool2d(features[-1], 2)                 # half the side
        down.append(tensor.nbytes / 1e6)
    for feature in reversed(features):                       # the decoder
        tensor = torch.cat([interpolate(tensor, scale_factor=2), feature], dim=1)
        tensor = conv(tensor, max(feature.shape[1] // 2, 1))
        up.append(tensor.nbytes / 1e6)
skips = [feature.nbytes / 1e6 for feature in features]
for level in range(4):
    print(f'level {level}: skip {skips[level]:.1f} MB, '
          f'down to the next {down[level]:.1f} MB, output of the decoder {up[3 - level]:.1f} MB')

# %% [markdown]
# The skips are the largest of all. We place the eight layers on four devices, in two ways. In the picture the encoder
# is at the left and goes down, the decoder is at the right and goes up. Boxes are layers, with the number of their
# device. Solid lines are what a layer gives to the next, dashed ones are skips:

# %%
placements = {'by depth': [0, 0, 1, 1, 2, 2, 3, 3], 'by level': [0, 1, 2, 3, 3, 2, 1, 0]}
places = [(0, 3), (0, 2), (0, 1), (0, 0), (1, 0), (1, 1), (1, 2), (1, 3)]     # of a layer, in the picture
colours = ['#1f5583', '#3f8f8b', '#a0508b', '#6a6a6a']                        # of a device
figure = plot.Picture(figsize=(9, 3.2), layout='constrained')
for (name, device_of), ax in zip(placements.items(), figure.subplots(1, 2)):
    ax.plot(*zip(*places[:4], (0, -0.6), (1, -0.6), *places[4:]), color='#6a6a6a', linewidth=0.9)
    for level, megabytes in enumerate(skips):
        ax.plot([0, 1], [3 - level] * 2, color='#c8781e', linestyle='--', linewidth=0.9)
        ax.text(0.5, 3.08 - level, f'skip {megabytes:.1f} MB', ha='center', fontsize=8)
        ax.text(-0.03, 2.5 - level, f'{down[level]:.1f} MB', ha='right', va='center', fontsize=8)
    for level in range(3):
        ax.text(1.03, 0.5 + level, f'{up[level]:.1f} MB', va='center', fontsize=8)
    for (right, height), device in zip(places, device_of):
        ax.text(right, height, device, ha='center', va='center', color='white', fontsize=11,
                bbox={'boxstyle': 'round', 'facecolor': colours[device]})
    ax.set(xlim=(-0.3, 1.3), ylim=(-0.8, 3.5), xticks=[], yticks=[], frame_on=False)
    ax.set_title(name, fontsize=10, fontweight='bold')
figure

# %% [markdown]
# *By depth* is how a ResNet is cut. *Naively*, all that later layers need passes through every device in between. A
# skip may also go straight from the device that made it to the one that uses it. *By level*, the encoder and the
# decoder of a level are on the same device, and the skip stays there. Such a placement is aware of the model.
#
# **Predict:** how many MB of one image cross between devices in a forward, naively? (There are three boundaries. Each
# is crossed by one activation, and by all skips whose ends lie on its two sides.)

# %%
my_guess = None        # MB

path = [*down, *up]                           # what each layer gives to the next
crossing = [path[1] + sum(skips[:2]), path[3] + sum(skips), path[5] + sum(skips[:2])]
naive = sum(crossing)
compare(my_guess, naive, ' MB')

# %%
straight = path[1] + path[3] + path[5] + sum(skips)           # every skip moves once
by_level = sum(path[k] for k in range(7) if k != 3)           # layers 3 and 4 share a device
plot.bars({'by depth, through every device': naive, 'by depth, skips go straight': straight,
           'by level, skips stay': by_level}, write='{:.1f} MB', title='What moves in a forward')

# %% [markdown]
# By level, activations cross six times instead of three, and it is still the least. Now in virtual time: a step with 10
# images, 10 ms for the forward of each layer, and links as before. By level, device d runs the forward of layer d and
# later that of layer 7 - d, then their backwards.

# %%
folded = Schedule('by level', stages=8, micro_batches=1, rows=tuple(
    (Op('F', d, 0), Op('F', 7 - d, 0), Op('B', 7 - d, 0), Op('B', d, 0)) for d in range(4)))
ten = 10 * 1e6     # images, bytes
by_depth = schedule.gpipe(4, 1)
naive_ms = [step_time(link, [ten * mb for mb in crossing], by_depth, F=20.0) for link in links]
level_ms = [step_time(link, [ten * mb for mb in path[:7]], folded) for link in links]
print(f'over 1 GB/s: {naive_ms[2]:.0f} ms naively, {level_ms[2]:.0f} ms by level')
plot.lines({'by depth, naively': (links[1:], naive_ms[1:]), 'by level': (links[1:], level_ms[1:])},
           log='x', x='GB/s', y='ms a step', title='A U-Net on four devices, in virtual time')

# %% [markdown]
# And in reality? A lecture trained a U-Net on eight V100 of 16 GB. These are its seconds a sample. Where a line
# ends, the next size ran out of memory.

# %%
table = {64: (.07481, .19, .19), 128: (.128, .24, .236), 256: (.346, .5424, .49), 512: (1.3, 1.44, 1.48),
         640: (None, 1.9, 1.92), 768: (None, 2.76, 2.81), 1024: (None, None, 5.96)}    # 2048: nothing fits
plot.lines({name: (list(table), [row[column] for row in table.values()])
            for column, name in enumerate(['one GPU', 'naive on eight', 'aware of the model on eight'])},
           log='xy', x='side of the image (pixels)', y='s a sample', title='Published figures: a U-Net')

# %% [markdown]
# Eight GPUs are slower than one where one is enough: one works at a time, and the messages come on top. What they
# gain is size: 768 pixels instead of 512 naively, and 1024 with the aware placement. Hardly any time is saved, which is
# what our curve shows for fast links, at its right end.

# %%
change = [aware / naive_one - 1 for _, naive_one, aware in table.values() if naive_one]
claims.test('C09', by_level < straight < naive,
            f'a forward of one image moves {naive:.1f} MB naively, {straight:.1f} MB if skips go straight, '
            f'{by_level:.1f} MB if they stay; the time of published steps changes by only '
            f'{min(change):+.0%} to {max(change):+.0%}, but a larger image fits')

# %% [markdown]
# ## When is a device full?
#
# Besides waiting there is another way to waste a device: to give it too little to do. A GPU has thousands of units
# that compute at the same time. A small image cannot use them all, and then a larger one takes hardly longer: this is
# claim C10.
#
# Here are figures of a lecture: seconds a sample (batch 1), for square images of different sizes, on two GPUs. We
# draw them against the area, so that a doubled side is a step of four. The V100 is the larger GPU.

# %%
sizes = [64, 128, 256, 512, 1024, 2048]
published = {'V100': [.0186, .0188, .0232, .0548, .1899, .7449],      # out of memory at 4096
             'K80': [.0316, .0533, .1069, .3005, 1.0024, None]}       # out of memory at 2048
areas = [size ** 2 for size in sizes]
plot.lines({gpu: (areas, seconds) for gpu, seconds in published.items()}, log='xy', x='pixels',
           y='s a sample', title='Published figures: the time of a sample')

# %% [markdown]
# On the V100 the first step of four times the area is free, and the last costs four times the time. The K80 pays from
# the first step on, and is nowhere flat.
#
# And this machine? We train the first layers of a ResNet-18 on one image at a time. (One core of a CPU computes a
# handful of numbers at a time. Any image keeps it busy, so it cannot decide this claim; a GPU can.) **Predict:**
# from 64 x 64 to 128 x 128 pixels, how many times as long?

# %% tags=["measured"]
my_guess = None        # times


def seconds(size):
    """Of a forward and a backward of one image; the fastest of several rounds."""
    costs = profile(build('resnet18')[:5], torch.rand(1, 1, size, size), timeout=0.2)
    return sum(layer.forward + layer.backward for layer in costs)


def growth(times):
    """How many times as long for the first and for the last step of four times the area."""
    times = [time for time in times if time is not None]
    return times[1] / times[0], times[-1] / times[-2]


times = [seconds(side) for side in [8, 16, 32, 64, 128] + [256, 512, 1024] * here.on_gpus]
compare(my_guess, times[4] / times[3], ' times as long', doubt=here.doubt)

# %% tags=["measured"]
growths = {name: growth(of) for name, of in {**published, 'this machine': times}.items()}
decisive = ['this machine'] if here.on_gpus else [*published]
holds = [name for name in decisive if growths[name][0] < 1.25 and growths[name][1] > 3]
found = ', '.join(f'{first:.2f} and {last:.2f} times as long ({name})'
                  for name, (first, last) in growths.items())
claims.test('C10', bool(holds),
            f'four times the area takes, for the smallest and for the largest images, {found}{here.doubt}',
            by='' if here.on_gpus else f"published figures, on the {' and '.join(holds)} only")

# %% [markdown]
# ## Remember
#
# 1. A model that does not fit one device may fit several: layers stay, activations move forward and gradients back.
# 2. One device works at a time: each of n is busy for 1/n of a step at best, and a slow link adds to it.
# 3. What crosses depends on where you cut: behind layers with small outputs, and with long skips kept where they are used.
#
# How to keep all devices busy is the subject of the next lesson, [lesson 5](05_gpipe.ipynb).
#
# The claims of lectures that this lesson put to the test (C06, C09, C10), as they came out in this run:

# %% tags=["measured"]
claims
