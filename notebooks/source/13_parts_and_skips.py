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
# # 13 Long skips, large images, and layers in parts
#
# When you are through, in about 45 minutes (an exercise of 40 comes on top), you will be able to
#
# - place a network with long skips, and say what it moves, where its memory goes and which image no longer fits;
# - cut one layer over several devices, and count what that sends;
# - train one script on a grid of replicas, stages and parts, and say who should be near whom;
# - say what a second replica in reverse order gains, and what it costs.

# %%
from functools import partial

import torch
from torch.nn.functional import cross_entropy, gelu

from fewgpu import Device, Pipeline, get_devices, launch, plot
from fewgpu.balance import cut
from fewgpu.balance.profile import weigh
from fewgpu.collectives import Group
from fewgpu.hybrid import Grid, parallelize
from fewgpu.models import gpt, next_token_loss, unet
from fewgpu.schedule import gems, gpipe, one_f_one_b, v_shape, with_recompute
from fewgpu.simulate import Costs, simulate
from fewgpu.skip_routes import routes
from fewgpu.tensor_parallel import ColumnLinear, RowLinear, plain_state_dict
from fewgpu.tensor_transformer import tensor_parallel
from fewgpu.workshop import check
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.demos.gems import fills_idle_time, one_at_a_time
from fewgpu.workshop.demos.unet import Counted
from fewgpu.workshop.lesson import Source, compare
from fewgpu.workshop.measure import gradient_of
from fewgpu.workshop.panel import Choice, Panel, Slider

claims = Claims()      # what we find out on the way is noted here

# %% [markdown]
# ## A network with long skips
#
# [Lesson 4](04_model_parallelism.ipynb) placed a U-Net by hand. Its encoder makes an image smaller, level by level;
# its decoder makes it larger again, and at each level takes what the encoder had there: a *long skip*.
#
# A pipeline wants a sequence of layers. How can a sequence have skips? With two layers that compute nothing: `Save`
# remembers its input under a name and passes it on, and `Load` takes what has that name and puts it beside its own
# input.
#
# Among the names below, `down0_1` is the first convolution of level 0 on the way down (with its batch norm and ReLU).
# `pool0` halves the side of the image, `double0` doubles it. Under level 2 lies the *bottom*, which has no skip.

# %%
torch.manual_seed(0)
model = unet(depth=3, width=8)      # the image is halved three times; eight channels at the top
names = [name for name, _ in model.named_children()]
print('down:', *names[:14], '\nup:  ', *names[14:])
print(model.save0, model.load0)

# %% [markdown]
# From level to level the side of the image is halved (a quarter of the numbers) and channels are doubled.
#
# **Predict:** what percentage of all activations that are kept for the backward belongs to level 0, down and up
# together?

# %%
my_guess = None        # percent

weighed = weigh(model, torch.rand(1, 1, 128, 128), device='cpu')      # one image of 128 x 128 pixels
parts = {'level 0, down': 4, 'level 1, down': 4, 'level 2, down': 4, 'bottom': 2,
         'level 2, up': 4, 'level 1, up': 4, 'level 0, up': 5}      # how many layers
layers = iter(weighed)
kept = {part: sum(next(layers).saved_bytes for _ in range(count)) / 1e6 for part, count in parts.items()}
compare(my_guess, 100 * (kept['level 0, down'] + kept['level 0, up']) / sum(kept.values()), ' %')
plot.bars(kept, write='{:.2f} MB', title='Kept for the backward, one image of 128 x 128')

# %% [markdown]
# Each level takes half of what the level above it takes. (The bottom takes less: it is two layers only.) So the top
# has about half of all, however deep the network is. Keep that in mind: what shall be shared out lies at both *ends*
# of the sequence, and a long skip leads from one end to the other.
#
# ## Three ways to place it
#
# *In order* on three devices, cut such that they hold about as much each. *Naively* a skip goes through every device
# on its way; or it goes *straight* from the device that saves it to the one that loads it. And *by level*: a device
# holds the same level of the encoder and of the decoder, so that a skip stays where it is. (The last one needs a
# pipeline that comes back, *v-shape*: six stages, the first three on devices 0, 1, 2, the next three on 2, 1, 0.)
#
# Here are the skips that leave their stage. (In order, that of level 2 does not: both its ends are in stage 1.)

# %%
holds = [layer.saved_bytes + 2 * layer.parameter_bytes for layer in weighed]      # with gradients
in_order = cut(holds, 3)
ways = {'naive': {'balance': in_order, 'schedule': 'gpipe', 'skips': 'through'},
        'straight': {'balance': in_order, 'schedule': 'gpipe'},
        'by level': {'balance': [4, 4, 5, 5, 4, 5], 'schedule': 'v-shape'}}
for name, way in ways.items():
    device = [0, 1, 2, 2, 1, 0] if name == 'by level' else [0, 1, 2]      # of each stage
    print(f'{name}: layers a stage {way["balance"]}')
    for skip in routes(model, way['balance'], way.get('skips', 'straight')):
        here, there = device[skip.source], device[skip.stage]
        print(f'    {skip.name}: device {here} ' + ('keeps it' if here == there else f'to device {there}'))

# %% [markdown]
# Now a real training step with one image. (With one micro-batch GPipe is model parallelism.) The links of the devices
# count what they carry, forward and backward, and the devices count what they hold.
#
# The skip of level 0 has 8 channels of 128 x 128 numbers of 4 bytes: 0.52 MB. That of level 1 has 0.26 MB. Besides,
# activations go from stage to stage: in order 0.07 and 0.26 MB, by level 0.13, 0.07, 0.13 and 0.26 MB. (Between
# stages 2 and 3 nothing moves. Why?) A backward moves as much as a forward.
#
# **Predict:** how many times as many bytes does the naive way move as the one by level?

# %%
def step(side, limit=None, **way):
    """Gradients of a step with one image; bytes over links; most bytes that a device has held."""
    count = len(way['balance']) // (1 + (way['schedule'] == 'v-shape'))
    devices = [Device(index=k, memory_limit=limit, link=Counted()) for k in range(count)]
    for device in devices:
        device.meter()
    torch.manual_seed(0)
    pipeline = Pipeline(unet(depth=3, width=8), devices=devices, loss_fn=cross_entropy, **way)
    pipeline.step(torch.rand(1, 1, side, side), torch.randint(2, (1, side, side)))
    return (gradient_of(pipeline.module), sum(device.link.carried for device in devices),
            max(device.ledger.peak for device in devices))

# %%
my_guess = None        # times

ways['one device'] = {'balance': [27], 'schedule': 'gpipe'}
steps = {name: step(128, **way) for name, way in ways.items()}
gradients, moved = ({name: one[k] for name, one in steps.items()} for k in (0, 1))
compare(my_guess, moved['naive'] / moved['by level'], ' times')
print('Gradients equal to the last bit:',
      all(torch.equal(one, gradients['one device']) for one in gradients.values()))
plot.bars({name: size / 1e6 for name, size in moved.items()}, write='{:.2f} MB',
          title='Over all links in a step')

# %%
claims.test('C09', moved['by level'] < moved['straight'] < moved['naive'],
            'a step with an image of 128 x 128 pixels moves '
            + ', '.join(f'{moved[name] / 1e6:.2f} MB ({name})' for name in ways if moved[name]),
            because='Bytes are not time: published steps (lesson 4) take 10 % less to 3 % more by level.')

# %% [markdown]
# All four give the same gradients. Where a skip goes decides about time and memory, never about results.
#
# The same step over links of 20 MB a second. For the messages alone that makes 164, 111 and 59 ms, if none travels
# beside another. A thin grey line in a row is a device that waits for a message. Where a device has two stages, the
# boxes of the later one lie lower:

# %% tags=["measured"]
sgd = partial(torch.optim.SGD, lr=0.1)


def timeline(**way):
    """The fastest of three steps with an image of 128 x 128."""
    torch.manual_seed(0)
    devices = get_devices(3, kind='cpu', latency=5e-4, bandwidth=20e6)
    pipeline = Pipeline(unet(depth=3, width=8), devices=devices, loss_fn=cross_entropy, optimizer=sgd, **way)
    traces = []
    for _ in range(3):
        pipeline.step(torch.rand(1, 1, 128, 128), torch.randint(2, (1, 128, 128)))
        traces.append(pipeline.trace)
    return min(traces, key=lambda trace: trace.makespan)


plot.timelines({f'{name}, measured': timeline(**way) for name, way in ways.items() if name != 'one device'})

# %% [markdown]
# Naively the large skip of level 0 goes over two links, one after the other, and everybody waits for it. Straight, it
# travels beside the other messages. By level no skip travels, but activations cross four boundaries instead of two.
# So straight and by level are close here. On a fast link all three are.
#
# [exercises/12_long_skips.py](../exercises/12_long_skips.py) asks you for all of it: what is copied through all
# devices and what straight, a forward that copies no more than that, and a placement for which no skip has to move.
# Take 40 minutes.

# %% tags=["yours"]
check(12)

# %% [markdown]
# Stuck? `./workshop.py hint 12` in a terminal tells a little more at each call.
#
# ## Until memory is full
#
# Long skips come with large images: slides of tissue, satellite images, volumes of a scanner. One image may be more
# than a device holds. Give each device 19 MB, and one image of 192 x 192 pixels to a single one:

# %%
limit = 19_000_000
try:
    step(192, limit, **ways['one device'])
except torch.OutOfMemoryError as error:
    print(error)

# %% [markdown]
# Three devices have three times the memory. We try all ways, and by level also with recompute, as in [lesson
# 6](06_recompute.ipynb).
#
# **Predict:** which of the five sizes below is the largest that fits by *any* of them? (One device can do 160 x 160;
# 224 x 224 has twice that area, and 256 x 256 has 2.6 times.)

# %%
my_guess = None        # pixels, one side


def megabytes(side, way):
    """Of the fullest device in a step; None if it does not fit."""
    try:
        return step(side, limit, **way)[2] / 1e6
    except torch.OutOfMemoryError:
        return None


ways['by level, recompute'] = {**ways['by level'], 'checkpoint': 'always'}
sides = (128, 160, 192, 224, 256)
found = {name: [megabytes(side, way) for side in sides] for name, way in ways.items()}
compare(my_guess, max(side for row in found.values() for side, peak in zip(sides, row) if peak), ' pixels')
print(f'{"pixels":20}', *(f'{side:8}' for side in sides))
for name, row in found.items():
    print(f'{name:20}', *(f'{peak:5.1f} MB' if peak else '    full' for peak in row))

# %% [markdown]
# By level the *least* moves, and yet memory is full earlier than with the naive and the straight way: device 0 keeps
# the whole top level, half of all activations. In order, the two ends of the top level are on different devices.
# (Naively the middle device keeps a skip that it does not use. But it has room for it, so two rows are equal.)
#
# Recompute helps by level: device 0 then has the activations of its two stages one after the other, and the largest
# image fits. The price is a second forward. In order it does nothing for a single image, because the backward of a
# stage needs all of its activations at once.
#
# Published, of the U-Net in lesson 4 on eight GPUs: naively at most 768 x 768, by level 1024 x 1024. There, the larger
# image fits by level. It depends on the network and on the cut: weigh your own.

# %% [markdown]
# ## One image, nothing to pipeline
#
# There is a second trouble with large images. If the devices can hold just *one*, it cannot be cut into
# micro-batches. Then a pipeline is model parallelism, and devices take turns. By level with one image and with six,
# in virtual time where a stage takes 1 unit forward and 2 backward:

# %%
shown = {f'{m} image{"s" * (m > 1)} in a step': simulate(v_shape(6, m), Costs(F=1, B=2)) for m in (1, 6)}
plot.timelines(shown, unit='units')

# %% [markdown]
# With one image each device is busy for a third of the time, with six for 72 %.
#
# The rest of this lesson is about what else several devices can do with few samples: share the work of one layer,
# stand side by side in a grid, and hold a second replica of the model.
#
# ## A layer in parts
#
# A *transformer*, such as GPT, is a row of equal *blocks*. A block is an *attention*, which mixes the words of a text,
# and then two linear layers with a GELU (a smooth ReLU) between them: gelu(x A) B. We begin with these. Each row of x
# is a sample, or a word.
#
# Two devices shall do half of the work each, both on *all* rows of x. Cut A by columns: each device computes half of
# the hidden numbers, x A. It can apply GELU to them at once, since GELU looks at one number at a time. And those
# numbers meet only half of the *rows* of B, so that each device needs only this half:

# %%
torch.manual_seed(0)
x, A, B = torch.randn(5, 8).double(), torch.randn(8, 16).double(), torch.randn(16, 8).double()
whole = gelu(x @ A) @ B
ours = [gelu(x @ a) @ b for a, b in zip(A.chunk(2, dim=1), B.chunk(2, dim=0))]      # a device each
print('columns of A, rows of B: the parts add up:  ', torch.allclose(ours[0] + ours[1], whole))

halves = [gelu(x_part @ a) for x_part, a in zip(x.chunk(2, dim=1), A.chunk(2, dim=0))]
print('rows of A: GELU of the parts adds up:       ', torch.allclose(halves[0] + halves[1], gelu(x @ A)))

# %% [markdown]
# So with columns first one sum is enough, at the end. (Rows first would need one before GELU, too.) This is *tensor
# parallelism*, as in Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053). Attention is cut in the same way. It
# consists of several *heads*, which compute apart from each other, and an output layer behind them. Every device takes
# some of the heads, and the rows of the output layer that belong to them.
#
# ```
#             ┌─► x A_0 ─► GELU ─► z_0 B_0 ─┐
# x ──► f ────┤       device 0              ├──► g ──► y
#             └─► x A_1 ─► GELU ─► z_1 B_1 ─┘
#                     device 1
#
#        forward                       backward
# f      x for both, nothing to do     the sum of both gradients: all-reduce
# g      the sum: all-reduce           the gradient for both, nothing to do
# ```
#
# Why f? Both devices used x, so its gradient has a part from each. In the library:

# %%
Source(ColumnLinear.forward, RowLinear.forward)

# %% [markdown]
# `copy_to_ranks` is f, and `sum_over_ranks` is g. (The rest of this code is for other cases.) Each part runs on a
# *rank* now ([lesson 3](03_data_parallelism.ipynb)): a process that holds its part of every layer, gets the same rows
# as the others, and has the same outputs.
#
# A block has two pairs of f and g, one for attention and one for the two linear layers. In a ring all-reduce of S
# bytes each of t ranks sends 2 (t - 1)/t S. Here a batch has b = 4 texts (*sequences*) of s = 32 words (*tokens*). A
# token is a row of h = 96 numbers of 4 bytes: its *width*. So x, y and their gradients have b s h numbers each.
#
# **Predict:** two ranks. How many kB does each send for one block, in a forward and a backward?

# %%
b, s, h, words = 4, 32, 96, 240


def one_step(blocks, group=None):
    """Bytes that this rank sends, all weights after a step of SGD, and how many numbers it holds."""
    torch.manual_seed(0)
    model = gpt(blocks, h, heads=12, vocabulary=words, longest=s)
    tokens = torch.randint(0, words, (b, s))
    model = tensor_parallel(model, group) if group else model      # the only line that differs
    loss = next_token_loss(model(tokens), tokens.roll(-1, 1))
    loss.backward()
    sent = group.bytes_sent if group else 0
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    return sent, plain_state_dict(model), sum(p.numel() for p in model.parameters())


def on_a_rank():
    two, _, _ = one_step(2, Group())
    three, weights, held = one_step(3, Group())
    return three - two, weights, held      # the difference is one block

# %%
my_guess = None        # kB

(sent, weights, held), _ = launch(on_a_rank, ranks=2)
_, plain, all_of_it = one_step(3)
compare(my_guess, sent / 1e3, ' kB')
print(f'a rank holds {held / all_of_it:.0%} of the numbers')
off = max((weights[name] - plain[name]).abs().max().item() for name in plain)
print('weights after a step are those of the plain model, but for rounding:', off < 1e-5)

# %%
formula = 8 * b * s * h * (2 - 1) / 2 * 4      # bytes, t = 2
claims.test('P01', sent == formula and off < 1e-5,
            f'each of two ranks sends {sent:,} bytes for a block in a step, the formula says {formula:,.0f}; '
            'the weights after the step are those of the plain model, but for rounding')

# %% [markdown]
# In words: four all-reduces of b s h numbers (g in the forward, f in the backward, both twice). Of each a rank sends
# 2 (t - 1)/t times as many. This makes the formula 8 b s h (t - 1)/t (arXiv 2104.04473, section 3.2).
#
# A rank holds a bit more than half of the model's numbers, because layer norms, some biases and the positions of the
# tokens are not cut: every rank has them.

# %% [markdown]
# ## What it asks of the link
#
# A stage of a pipeline sends b s h numbers on, and as many back, once for *all* its blocks. It may compute something
# else in the meantime. In tensor parallelism it is up to four times as much for *each* block, and everybody waits for
# it. So the link decides.
#
# An example: a block as wide as in GPT-3 (h = 12,288, s = 2,048, arXiv 2005.14165; numbers of 2 bytes, one sequence)
# on GPUs of 312 Tflop/s, the peak of an A100. One GPU takes 73 ms for its forward and backward. Eight would take 9 ms
# if nothing had to be sent, but each sends 352 MB. Inside a machine an A100 sends 300 GB/s. Between machines, over a
# network card of 200 Gbit/s, it is 25 GB/s.
#
# **Predict:** over 25 GB/s, how many times as fast as one GPU are eight? (Nobody computes while messages travel.)

# %%
my_guess = None        # times


def milliseconds(t, link):
    """Of a block on t GPUs, at the peak of all; link: GB/s that each sends (no latency)."""
    s, h = 2048, 12288
    work = 3 * (24 * s * h * h + 4 * s * s * h)      # a backward is two forwards
    return 1e3 * (work / (t * 312e12) + 2 * 8 * s * h * (t - 1) / t / (link * 1e9))


gpus, links = (1, 2, 4, 8, 16), {'300 GB/s (inside a machine)': 300, '25 GB/s (between machines)': 25}
times = {name: [milliseconds(1, link) / milliseconds(t, link) for t in gpus]
         for name, link in links.items()}
compare(my_guess, times['25 GB/s (between machines)'][3], ' times')
plot.lines({'no messages': (gpus, gpus)} | {name: (gpus, found) for name, found in times.items()},
           x='GPUs (t)', y='times as fast', title='A block as in GPT-3, calculated')

# %% [markdown]
# What a GPU computes falls with t, what it sends does not. Hence the rule of arXiv 2104.04473: tensor parallelism
# inside a machine, a pipeline between machines. (Real kernels stay below the peak, which makes the link matter less;
# latency makes it matter more.)
#
# ## All of it at once: a grid
#
# Data, pipeline and tensor parallelism can be combined: *replicas* of a pipeline of *stages*, each of which is cut
# into *parts*. That is a grid of ranks; `'2x2x2'` means 2 replicas x 2 stages x 2 parts. (With two numbers, as in
# `'2x4'`, no layer is cut into parts.)

# %%
grid = Grid.of('2x2x2', ranks=8)
for replica in range(grid.replicas):
    for stage in range(grid.stages):
        ranks = [grid.rank(replica, stage, part) for part in range(grid.parts)]
        print(f'replica {replica}, stage {stage}: part 0 on rank {ranks[0]}, part 1 on rank {ranks[1]}')

# %% [markdown]
# Ranks are numbered such that neighbours exchange most. Parts (ranks 0 and 1) do four all-reduces for each block and
# micro-batch. Stages (ranks 0 and 2) send each other an activation and a gradient for each micro-batch. Replicas
# (ranks 0 and 4) add up the gradients of their stage once a step, right after its last backward, while earlier stages
# are still at work.
#
# *HyPar-Flow* (arXiv 1911.05146) made one call of replicas and stages: you give it a plain model and the *strategy*,
# that is, the grid. Ours, `parallelize`, knows parts, too. First the plain script:

# %%
def ingredients():
    """A small GPT, 8 sequences of 17 tokens, and the optimizer."""
    torch.manual_seed(0)
    model = gpt(4, 48, heads=4, vocabulary=32, longest=16)
    return model, torch.randint(0, 32, (8, 17)), partial(torch.optim.SGD, lr=0.5)


model, tokens, sgd = ingredients()
optimizer, expected = sgd(model.parameters()), []
for _ in range(4):
    loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    expected.append(loss.item())
print('losses:', *(f'{loss:.3f}' for loss in expected))

# %% [markdown]
# And what every rank does. Each replica trains on rows of its own, as in data parallelism.

# %%
def train(strategy):
    """Losses, the weights of this rank's stage afterwards (whole), and how many numbers it holds."""
    model, tokens, sgd = ingredients()
    trainer = parallelize(model, strategy, loss_fn=next_token_loss, optimizer=sgd)
    grid = Grid.of(strategy, torch.distributed.get_world_size())
    replica, stage, part = grid.place(torch.distributed.get_rank())
    rows = tokens.chunk(grid.replicas)[replica]
    losses = [trainer.step(rows[:, :-1], rows[:, 1:]).item() for _ in range(4)]
    weights = {name: value.cpu() for name, value in plain_state_dict(trainer.module).items()}
    trainer.close()
    return losses, weights, sum(parameter.numel() for parameter in trainer.parameters())

# %% [markdown]
# Four ranks, four strategies: replicas alone, 2 x 2, stages alone, and two stages of two parts.
#
# **Predict:** what percentage of the model does the fullest rank hold with `'1x2x2'`?

# %%
my_guess = None        # percent

strategies = '4x1', '2x2', '1x4', '1x2x2'
ranks = launch(lambda: {strategy: train(strategy) for strategy in strategies}, ranks=4)
numbers = sum(parameter.numel() for parameter in model.parameters())
share = {strategy: max(rank[strategy][2] for rank in ranks) / numbers for strategy in strategies}
compare(my_guess, 100 * share['1x2x2'], ' %')
print('strategy       held at most   losses')
for strategy in strategies:
    losses, _, _ = ranks[0][strategy]
    print(f'{strategy:14} {share[strategy]:12.0%}  ', *(f'{loss:.3f}' for loss in losses))
print(f'{"plain script":14} {1:12.0%}  ', *(f'{loss:.3f}' for loss in expected))

# %%
plain = model.state_dict()
off = {strategy: max((value - plain[name]).abs().max().item() for rank in ranks
                     for name, value in rank[strategy][1].items()) for strategy in strategies}
claims.test('P02', max(off.values()) < 1e-5 and expected[-1] < expected[0],
            f'after 4 steps of SGD on four ranks, by {", ".join(strategies)}, the weights are those of '
            'the plain script, but for rounding',
            because='The paper also has speed (481 times one node on 512, published): out of reach here.')

# %% [markdown]
# It is a bit more than a quarter: some numbers are on both parts, as above, and the stages are not quite equal.
#
# Which one is fastest depends on the model and on the links; [lesson 14](14_which_one_when.ipynb) lets a planner
# decide.
#
# ## A second replica, backwards
#
# Back to images of which the devices can hold just *one*. One after the other, on four devices: each is busy for a
# quarter of the time. *GEMS* (Jain et al., SC 2020) lays a second replica of the model over the same devices in
# reverse order, so that device 0 holds the first stage of one and the last stage of the other. The backward of an
# image travels from device 3 to device 0. And so does the forward of the next image, which belongs to the second
# replica: it follows right behind.
#
# In the picture images 0 and 2 belong to the first replica, 1 and 3 to the second:

# %%
drawn = {'one at a time, one replica': one_at_a_time(4, 4),
         'GEMS': gems(4, 4).select(lambda op: op.kind != 'U')}      # without updates: they take no time here
plot.timelines({name: simulate(plan, Costs(F=1, B=2)) for name, plan in drawn.items()}, unit='units')

# %% [markdown]
# At the end the replicas add up their gradients, and update together. (How it works is told here from memory of the
# paper.)
#
# **Predict:** eight images instead of four. One at a time takes 8 (4 + 8) = 96 units. And GEMS? (Four took 39. In its
# picture, how long is it from the end of image 1 to the end of image 3?)

# %%
my_guess = None        # units


def recomputing(n, m):
    return with_recompute(one_f_one_b(n, m), 'always')


plans = {'GEMS': gems, 'one at a time': one_at_a_time, '1F1B': one_f_one_b, '1F1B, recompute': recomputing,
         'GPipe': gpipe}
runs = {name: simulate(plan(4, 8), Costs(F=1, B=2)) for name, plan in plans.items()}
compare(my_guess, runs['GEMS'].makespan, ' units')
print(*(f'{name}: {run.makespan:g} units, {run.bubble:.0%} idle' for name, run in runs.items()), sep='\n')

# %%
gain = runs['one at a time'].makespan / runs['GEMS'].makespan
claims.test('P03', fills_idle_time(gain),
            f'eight micro-batches on four devices are {gain:.2f} times as fast as one at a time with one '
            f'replica; idle {runs["GEMS"].bubble:.0%} instead of {runs["one at a time"].bubble:.0%}',
            by='the simulator',
            because='It fills only a part. What it saves is memory: one micro-batch a device at a time.')

# %% [markdown]
# The forward of an image hides behind the backward of the one before, and nothing else does. With f and b for a
# forward and a backward of a stage, an image takes n b + f units on n devices instead of n (b + f). Here that is 9
# instead of 12. (The forward of the first image hides behind nothing, which makes 8 · 9 + 3 = 75.) So for b = 2 f it is
# never more than 1.5 times as fast.
#
# 1F1B is much faster, but device 0 keeps the *stashes* (what a backward needs) of up to n images. With recompute it
# keeps n inputs (say a fifth of a stash each), and one stash. Try it: who keeps how much?

# %%
def draw(schedule, devices, images):
    plan = plans[schedule](devices, images).select(lambda op: op.kind != 'U')
    stashes = simulate(plan, Costs(F=1, B=2, stash=1, input=0.2))
    weights = simulate(plan, Costs(F=1, B=2, weights=1))
    return plot.timeline(simulate(plan, Costs(F=1, B=2)), unit='units'), (
        f'{stashes.makespan:g} units; at most on a device: {max(map(stashes.peak, range(devices))):.3g} '
        f'(stashes), {max(map(weights.peak, range(devices))):g} (weights of a stage)')


Panel(draw, schedule=Choice('GEMS', tuple(plans)), devices=Slider(4, 2, 8), images=Slider(6, 1, 12))

# %% [markdown]
# And for real: the U-Net in order on three devices, six images of 128 x 128 pixels in a step, counted in bytes.

# %% tags=["measured"]
def fullest(schedule, checkpoint='never'):
    """MB of the fullest device in the second of two steps."""
    devices = get_devices(3, kind='cpu')
    for device in devices:
        device.meter()
    torch.manual_seed(0)
    pipeline = Pipeline(unet(depth=3, width=8), in_order, schedule=schedule, chunks=6, devices=devices,
                        checkpoint=checkpoint, loss_fn=cross_entropy, optimizer=sgd)
    for _ in range(2):
        pipeline.step(torch.rand(6, 1, 128, 128), torch.randint(2, (6, 128, 128)))
    return max(map(pipeline.trace.peak, range(3))) / 1e6


plot.bars({'GEMS': fullest('gems'), '1F1B': fullest('1f1b'), '1F1B, recompute': fullest('1f1b', 'always'),
           'GPipe': fullest('gpipe')}, write='{:.1f} MB', title='The fullest of three devices')

# %% [markdown]
# (Threads free memory a bit earlier or later, so the last digits change.) The second replica costs hardly anything:
# all weights of this U-Net are 0.5 MB. For a GPT it would be another matter.
#
# GEMS holds the least. 1F1B with recompute holds about a quarter more in this example. But with eight images on four
# devices, above, it took 41 units where GEMS took 75. So if you can recompute, GEMS is for the case where even a few
# inputs and skips are too much.
#
# Its authors trained a ResNet-110 on tiles of 1024 x 1024 pixels of a slide of tissue: seven hours became 28 minutes
# (published, in the abstract, which does not say on how many GPUs). That is 15 times as fast. A second replica alone
# gives at most 1.5 times, as we saw. The paper also combines it with data parallelism.

# %% [markdown]
# ## Remember
#
# 1. A long skip should stay where it is used: then the fewest bytes move. But the top level of a U-Net keeps half of
#    all activations, so a device that holds it alone is full first.
# 2. Tensor parallelism cuts a layer by columns and the next by rows: two all-reduces in the forward of every block,
#    two in its backward. It needs the fastest links; in a grid, parts are on neighbouring ranks.
# 3. GEMS keeps one micro-batch a device, for two copies of the weights, and hides forwards behind backwards; it is no
#    substitute for micro-batches where they fit.
#
# All of it at length: `./workshop.py demo unet`, `demo tensor`, `demo hybrid`, `demo gems` in a terminal.
#
# Next: [lesson 14](14_which_one_when.ipynb), which of all these ways suits which model, and when.
#
# The claims that this lesson put to the test (C09 of the lectures; P01, P02 and P03 of papers), as they came out in
# this run:

# %%
claims
