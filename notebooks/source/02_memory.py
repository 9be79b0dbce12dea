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
# # 2 What training needs memory for
#
# When you are through, in about 40 minutes, you will be able to
#
# - name the four things that fill a GPU in training, and compute how large each is;
# - say which of them grow with the batch, with the depth, and with the optimizer;
# - explain why weights in 16 bits alone stop learning;
# - name the ways to need less memory, and measure three of them.

# %%
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from fewgpu import data, get_devices, plot
from fewgpu.balance import weigh
from fewgpu.models import build
from fewgpu.workshop.claims import Claims
from fewgpu.workshop.lesson import compare
from fewgpu.workshop.panel import Choice, Panel, Slider

claims = Claims()  # what we find out on the way is noted here

# %% [markdown]
# ## 1 Models outgrow GPUs
#
# The winners of the ImageNet competition had 4 million parameters in 2014, and 146 million in 2017. In these years the
# memory of a GPU became about 3 times as large. Both are figures of a lecture on GPipe, from which we take this claim. We
# did not check them: this cell can only divide them.

# %%
grown = {'parameters of the winner': 146 / 4, 'memory of a GPU': 3}
claims.test('C01', grown['parameters of the winner'] > 2 * grown['memory of a GPU'],
            f"2014 to 2017: parameters {grown['parameters of the winner']:.1f} times, memory of a GPU "
            f"{grown['memory of a GPU']} times (the lecture's own figures, not checked)",
            by='published figures')
plot.bars(grown, title='How many times as large, 2017 against 2014')

# %% [markdown]
# ## 2 Model states
#
# What is in that memory? First, three things that belong to the model, its *states*:
#
# - the **weights**, one number a parameter;
# - their **gradients**, one number a parameter again;
# - what the **optimizer** remembers of each parameter from step to step. Plain SGD remembers nothing. Momentum is a
#   running sum of the gradients, in which old ones fade. Adam keeps a running mean of them, and one of their squares.
#
# We can count them. A virtual device keeps a *ledger*: it adds the bytes of each tensor that is made on the device, and
# subtracts them when the tensor dies.

# %%
def states_of(new_optimizer):
    """Numbers a parameter: weights, gradients, optimizer states. A layer with a million parameters."""
    device, = get_devices(1, kind='cpu')      # a virtual device, also where there are GPUs
    ledger = device.meter()
    layer = nn.Linear(1000, 1000, bias=False)
    ledger.adopt(layer.parameters(), parameters=True)    # it was made elsewhere, and now belongs here
    optimizer = new_optimizer(layer.parameters())
    weights = ledger.allocated
    with device.active():                     # inside, this cell computes on that device
        layer(torch.ones(1, 1000)).sum().backward()
        gradients = ledger.allocated - weights
        optimizer.step()
        states = ledger.allocated - weights - gradients
    return [round(amount / 4 / 1e6, 2) for amount in (weights, gradients, states)]


optimizers = {'SGD': lambda weights: torch.optim.SGD(weights, lr=0.1),
              'momentum': lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
              'Adam': torch.optim.Adam}
counted = {name: states_of(new) for name, new in optimizers.items()}
counted

# %% [markdown]
# So 2, 3 or 4 numbers a parameter. A 32-bit number (`torch.float32`) takes 4 bytes.
#
# **Predict:** a ResNet-50 has 23.5 million parameters and is trained with Adam. How many MB are its weights, gradients and
# optimizer states together?

# %%
my_guess = None          # MB

torch.manual_seed(0)
model = build('resnet50')
weight_bytes = sum(weight.nbytes for weight in model.parameters())
compare(my_guess, sum(counted['Adam']) * weight_bytes / 1e6, ' MB')

# %% [markdown]
# ## 3 Activations
#
# The fourth thing does not belong to the model but to the data. A layer's backward needs what the layer computed in the
# forward. So between its forward and its backward, each layer keeps its *activations* (in networks for images they
# are also called feature maps), for every image of the batch.
#
# **Predict:** how many MB of activations does a ResNet-50 keep for one image of 28 x 28 pixels, which takes 3 kB itself?
# (A guess is enough.)

# %%
my_guess = None          # MB

images, labels = data.subset(data.load('train'), 16, seed=0).tensors     # MNIST: digits
device, = get_devices(1, kind='cpu')
ledger = device.meter()
ledger.adopt([*model.parameters(), *model.buffers()], parameters=True)
optimizer = torch.optim.Adam(model.parameters())
model.zero_grad()        # the ledger counts what is made from now on, also when this cell is run again
with device.active():
    weights = ledger.allocated
    loss = cross_entropy(model(images), labels)
    activations = ledger.allocated - weights
    loss.backward()
    gradients = ledger.allocated - weights
    optimizer.step()
    states = ledger.allocated - weights - gradients
compare(my_guess, activations / 16 / 1e6, ' MB')

# %% [markdown]
# Almost 20 MB, for an image of 784 pixels! With 16 images the activations are the largest of the four:

# %%
plot.bars({'weights': weights / 1e6, 'gradients': gradients / 1e6, 'optimizer states': states / 1e6,
           'activations': activations / 1e6}, write='{:.0f} MB',
          title='ResNet-50 with Adam, one training step with 16 images')

# %% [markdown]
# Where in the network are they? A ResNet consists of *residual blocks*: a few layers, and a shortcut round them. Each
# block counts as one layer here.

# %%
layers = dict(zip(model._modules, weigh(model, images[:4], device='cpu')))
figure = plot.Picture(figsize=(9, 4.6), layout='constrained')
left, right = figure.subplots(1, 2)
plot.bars({name: layer.parameter_bytes / 1e6 for name, layer in layers.items()}, left,
          title='ResNet-50: parameters, MB')
plot.bars({name: layer.saved_bytes / 4 / 1e6 for name, layer in layers.items()}, right,
          title='activations of one image, MB')
figure

# %% [markdown]
# The early layers keep large images and have few parameters; the late ones are the other way round. Remember this picture
# when it comes to cutting a network.
#
# ## 4 What lives when
#
# The four are not all at their largest at the same moment. We look into the ledger after each layer of the forward,
# and each time that the gradient of a parameter is ready.

# %%
moments = []           # of each: bytes of weights, optimizer states, gradients, activations


def note(*_):
    gradients = sum(weight.grad.nbytes for weight in model.parameters() if weight.grad is not None)
    states = sum(state.nbytes for memory in optimizer.state.values() for state in memory.values())
    known = [ledger.parameters, states, gradients]
    moments.append([*known, ledger.allocated - sum(known)])


hooks = [layer.register_forward_hook(note) for layer in model]
hooks += [weight.register_post_accumulate_grad_hook(note) for weight in model.parameters()]
with device.active():
    optimizer.zero_grad()
    note()
    loss = cross_entropy(model(images), labels)
    forward_ends = len(moments)
    loss.backward()
    optimizer.step()
    note()
for hook in hooks:
    hook.remove()

# %%
def stacked(moments, names):
    """A picture of what lives when, one thing on top of the other."""
    ax = plot.Picture(figsize=(8, 3.2), layout='constrained').add_subplot()
    ax.stackplot(range(len(moments)), *[[amount / 1e6 for amount in one] for one in zip(*moments)],
                 labels=names, colors=['#1f5583', '#e7c9e0', '#ffe9b8', '#b4d2ea'],
                 hatch=['', 'xxxx', '/////', ''], edgecolor='#6a6a6a', linewidth=0.4)
    ax.legend(ncols=4, fontsize=8, frameon=False, loc='lower left', bbox_to_anchor=(0, 1))
    ax.set(xticks=[forward_ends / 2, (forward_ends + len(moments)) / 2], ylabel='MB',
           xticklabels=['forward', 'backward, then update'], xlim=(0, len(moments) - 1))
    ax.axvline(forward_ends, color='#6a6a6a', linewidth=0.8)
    ax.spines[['right', 'top']].set_visible(False)
    return ax.figure


stacked(moments, ['weights', 'optimizer states', 'gradients', 'activations'])

# %% [markdown]
# Activations pile up during the forward. The backward starts at the last layer and uses them up from there, while
# gradients grow. Here the peak comes early in the backward: the late layers of this network have large weights and, with
# 16 images, small activations, so that at first more is added than goes. From left to right are moments, not seconds;
# there are more of them in the backward, since we note one for each parameter.

# %%
peak = max(map(sum, moments))
at_peak = next(moment for moment in moments if sum(moment) == peak)
print(f'peak {peak / 1e6:.0f} MB, of which activations {at_peak[3] / 1e6:.0f} MB; after the step',
      f'{sum(moments[-1]) / 1e6:.0f} MB')
print(f'if all four were at their largest at once: {sum(map(max, zip(*moments))) / 1e6:.0f} MB')

# %% [markdown]
# ## 5 What it grows with
#
# Take more images, or more layers. What grows, and how?

# %%
def kept(model, batch):
    """Bytes of activations after a forward with so many images."""
    device, = get_devices(1, kind='cpu')
    ledger = device.meter()
    with device.active():
        loss = cross_entropy(model(images[:batch]), labels[:batch])
        return ledger.allocated


for batch in 2, 4, 8:
    print(f'batch {batch}: {kept(model, batch) / batch / 1e6:.1f} MB of activations an image')
for depth in 50, 101, 152:
    deeper = build(f'resnet{depth}')
    size = sum(weight.numel() for weight in deeper.parameters())
    print(f'{depth:3} layers: {size / 1e6:.1f} million parameters, {4 * 4 * size / 1e6:.0f} MB of states',
          f'with Adam, {kept(deeper, 2) / 2 / 1e6:.1f} MB of activations an image')

# %% [markdown]
# More layers mean more of everything. More images mean more activations, in proportion, and nothing else: the states of
# the model stay as they are.
#
# **Predict:** with how many images a batch do the activations of ResNet-50 need as much as all its states (376 MB)
# together?

# %%
my_guess = None          # images

a_step = weights + gradients + states
per_image = activations / 16
compare(my_guess, a_step / per_image, ' images')
batches = [1, 16, 32, 64, 128, 256]
plot.lines({'activations': (batches, [batch * per_image / 1e9 for batch in batches]),
            'weights, gradients, optimizer states': (batches, [a_step / 1e9 for _ in batches])},
           title='ResNet-50 with Adam', x='images in a batch', y='GB')

# %% [markdown]
# With a batch of 256 they are 5 GB, and the model 0.4 GB. A network with fewer activations and more parameters is the
# other way round: what helps the one does not help the other.
#
# ## 6 Larger than a GPU
#
# GPT-3 has 175 billion parameters; in 32 bits its weights are 700 GB.
#
# **Predict:** how many TB (1 TB = 1000 GB) does it take with gradients and Adam's states?

# %%
my_guess = None          # TB, all together

gpt3 = torch.empty(175_000_000_000, device='meta', requires_grad=True)    # 'meta': has a size, and no memory
gpt3.grad = torch.empty_like(gpt3)
adam = torch.optim.Adam([gpt3])
adam.step()
compare(my_guess, sum(one.nbytes for one in (gpt3, gpt3.grad, *adam.state[gpt3].values())) / 1e12, ' TB')

# %% [markdown]
# Training is often done in *mixed precision*: weights and gradients in 16 bits, and for the update the optimizer keeps a
# copy of the weights in 32 bits, and its states in 32 bits, too. What does that change? A calculator:

# %%
models = {'BERT large: 0.34': 0.34, 'GPT-3: 175': 175.0, 'embedding table: 60': 60.0}   # billions


def draw(model, optimizer, precision, gpu):
    remembers = {'SGD': 0, 'momentum': 1, 'Adam': 2}[optimizer]
    wide, copy = (4, 0) if precision == '32 bits' else (2, 4)
    billions = models[model]
    parts = {'weights': wide * billions, 'gradients': wide * billions,
             'optimizer states': (4 * remembers + copy) * billions}
    together = sum(parts.values())
    figure = plot.bars({**parts, 'together': together, 'one GPU': gpu}, write='{:.1f} GB')
    return figure, f'{together / billions:.0f} bytes a parameter; {together / gpu:.1f} times one GPU'


Panel(draw, model=Choice('GPT-3: 175', tuple(models), label='billion parameters'),
      optimizer=Choice('Adam', ('SGD', 'momentum', 'Adam')),
      precision=Choice('32 bits', ('32 bits', 'mixed')), gpu=Slider(80, 8, 192, 8, label='GB of a GPU'))

# %% [markdown]
# With Adam it is 16 bytes a parameter in 32 bits, and 16 bytes in mixed precision (ZeRO, arXiv 1910.02054, counts the same). What
# becomes smaller are the activations, which are then kept in 16 bits, too: section 9 counts them.
#
# BERT large has 340 million parameters: 5.4 GB in 32 bits with Adam. The lecture says that it did not fit a GPU even with one
# text at a time; what is missing are the activations, and they grow with the length of the text.
#
# The *embedding table* is a single layer, as recommender systems have them: a row of numbers for each user or item. The lecture
# names 240 GB, so 60 billion numbers. This one *layer* is larger than a GPU, before any gradient.

# %%
weights_gb = gpt3.nbytes / 1e9
one, two, three = counted['Adam']
claims.test('C02', (one, two, three) == (1, 1, 2) and activations > 0 and weights_gb == 700,
            f'numbers a parameter, with Adam: {one:g} + {two:g} + {three:g}; on top, '
            f'ResNet-50 keeps {per_image / 1e6:.0f} MB of activations an image; GPT-3: {weights_gb:.0f} GB '
            f'of weights, {3 * weights_gb:.0f} GB of gradients and states')

# %% [markdown]
# This is a good place for a break.
#
# ## 7 Why not simply 16 bits?
#
# If everything was in 16 bits, the states would be half as large. Why does the optimizer insist on a copy in 32 bits?
#
# Of a number, `torch.bfloat16` keeps 8 significant binary digits; float32 keeps 24. The larger the number, the
# larger is the step to the next one.
#
# **Predict:** a weight is 1. What is the smallest power of two that you can add in bfloat16, and see a difference?

# %%
my_guess = None


def smallest_update(kind):
    one, update = torch.ones((), dtype=kind), 1.0
    while one + update / 2 != one:
        update /= 2
    return update


compare(my_guess, smallest_update(torch.bfloat16))
for kind in torch.bfloat16, torch.float16, torch.float32:
    after = torch.ones((), dtype=kind) + 1e-3
    print(f'{str(kind):14} | smallest update of 1: {smallest_update(kind):.7f}',
          f'| 1 + 0.001 = {after:.7f}')

# %% [markdown]
# In bfloat16, 1 + 0.001 is 1. A learning rate times a gradient often is as small as that. We train one linear layer with
# 64 weights, which begin at 1. The arithmetic is always in 32 bits; only *the weights are stored* in less.

# %%
def train(stored, master=None, steps=2000, lr=0.003):
    """Gradient descent on the squared error; `master` is the type of a copy that takes the updates."""
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(256, 64, generator=draws)
    target = x @ (1 + 0.5 * torch.randn(64, generator=draws))
    weights, losses = torch.ones(64, dtype=master or stored), []
    for _ in range(steps):
        error = x @ weights.to(stored).float() - target
        losses.append(error.square().mean().item())
        gradient = 2 * x.T @ error / len(x)
        weights = weights - (lr * gradient).to(weights.dtype)
    return losses


losses = {'bfloat16 alone': train(torch.bfloat16), 'float16 alone': train(torch.float16),
          'bfloat16, with a float32 copy': train(torch.bfloat16, torch.float32),
          'float32': train(torch.float32)}
for name, values in losses.items():
    print(f'{name:30} first loss {values[0]:.1f}, last {values[-1]:.1f}')

# %%
seen = range(0, 2000, 100)
plot.lines({name: (seen, [values[step] for step in seen]) for name, values in losses.items()},
           title='Where the weights are stored', x='steps', y='loss', log='y')

# %% [markdown]
# In bfloat16 alone training stops after some steps: each update is rounded away. All 256 rows are in every step, so the
# same weights get the same gradient, and nothing ever moves again. float16 keeps three more binary digits, and
# stops later. With a copy in float32 the small updates add up in the copy, until the rounded weight moves.

# %%
alone, with_copy = losses['bfloat16 alone'][-1], losses['bfloat16, with a float32 copy'][-1]
claims.test('C03', alone > 100 * with_copy and losses['float16 alone'][-1] > 100 * losses['float32'][-1],
            f"loss after 2000 steps: bfloat16 alone {alone:.1f}, float16 alone "
            f"{losses['float16 alone'][-1]:.1f}, bfloat16 with a float32 copy {with_copy:.1f}")

# %% [markdown]
# ## 8 Recompute
#
# Now to the activations. The first idea: throw them away, and compute them again when the backward needs them. Chen and others
# (arXiv 1604.06174) cut a chain of *n* layers into *k* segments and keep only the input of each: *k* activations. The
# backward takes the last segment first, recomputes its *n / k* activations, uses them, and goes on to the one before. So
#
#     activations at the peak = k + n / k
#
# **Predict:** for 64 layers, which *k* needs least?

# %%
my_guess = None          # segments


def peak_of_chain(layers, segments):
    """Peak of one step, in activations of one layer; torch's checkpoint recomputes each segment."""
    device, = get_devices(1, kind='cpu')
    ledger, chain = device.meter(), nn.Sequential(*[nn.Tanh() for _ in range(layers)])
    value = torch.rand(1000, requires_grad=True)
    with device.active():
        for start in range(0, layers, layers // segments):
            part = chain[start:start + layers // segments]
            value = checkpoint(part, value, use_reentrant=False)
        value.backward(torch.ones(1000))
    return ledger.peak / 4000


segments = [1, 2, 4, 8, 16, 32, 64]
measured = [peak_of_chain(64, k) for k in segments]
compare(my_guess, segments[measured.index(min(measured))], ' segments')

# %%
figure = plot.lines({'measured by the ledger': (segments, measured),
                     'k + n / k': (segments, [k + 64 / k for k in segments])}, log='x',
                    title='A chain of 64 layers, cut into k segments', x='segments',
                    y='activations at the peak')
figure.axes[0].set_xticks(segments, labels=segments)
figure.axes[0].minorticks_off()
figure

# %% [markdown]
# The measured curve lies 2 above the formula: one gradient that comes into a layer, and one that goes out of it. Least is
# the square root of *n*: 8 segments, and 16 activations in place of 64. The price is one more forward, and where a
# backward takes twice as long as a forward, that is a third more time.
#
# ## 9 Move them, or make them smaller
#
# Autograd lets us say what to do with each tensor that it keeps: one function when it is put away (*pack*), one
# when it is needed (*unpack*). With that, two more ideas take a few lines: **offload** the activations to the memory
# of the host, and **encode** them in 16 bits.

# %%
def offload(tensor):
    return tensor.detach().numpy().copy()               # in the host's memory: not on the device any more


def bring_back(array):
    return torch.from_numpy(array).clone()


def encode(tensor):
    return tensor.bfloat16() if tensor.is_floating_point() else tensor


def decode(tensor):
    return tensor.float() if tensor.is_floating_point() else tensor

# %% [markdown]
# Weights are kept for the backward, too, but they live on the device anyway. So they stay as they are:

# %%
def hooks_of(pack, unpack):
    """To pack what autograd keeps, but for the weights."""
    own = {weight.data_ptr() for weight in model.parameters()}

    def put_away(tensor):
        return tensor if tensor.data_ptr() in own else (pack(tensor),)

    def take_out(packed):
        return unpack(*packed) if isinstance(packed, tuple) else packed

    return saved_tensors_hooks(put_away, take_out)

# %% [markdown]
# One forward and backward of ResNet-50 with 8 images, in five ways. For *recompute*, each layer of the sequence is a
# segment. The way called *never kept* trains the last layer only: then nobody needs the activations of the others.
#
# **Predict:** all activations are 159 MB. Encoded in 16 bits, how many MB wait for the backward?

# %%
my_guess = None          # MB


def step(forward, hooks):
    """Bytes that wait for the backward, peak without the weights, and the gradients."""
    device, = get_devices(1, kind='cpu')
    ledger = device.meter()
    model.zero_grad()
    with device.active(), hooks:
        loss = cross_entropy(forward(images[:8]), labels[:8])
        waiting = ledger.allocated
        loss.backward()
    return waiting, ledger.peak, [weight.grad for weight in model.parameters()]


def recomputed(value):
    for layer in model:
        value = checkpoint(layer, value, use_reentrant=False)
    return value


def only_last(value):
    with torch.no_grad():
        value = model[:-1](value)
    return model[-1](value)

# %%
as_is = hooks_of(lambda tensor: tensor, lambda tensor: tensor)
ways = {'keep all': step(model, as_is), 'encode': step(model, hooks_of(encode, decode)),
        'recompute': step(recomputed, as_is), 'never kept': step(only_last, as_is),
        'offload': step(model, hooks_of(offload, bring_back))}
compare(my_guess, ways['encode'][0] / 1e6, ' MB')
figure = plot.Picture(figsize=(9, 2.5), layout='constrained')
left, right = figure.subplots(1, 2)
plot.bars({way: waiting / 1e6 for way, (waiting, *_) in ways.items()}, left, write='{:.0f} MB',
          title='Activations waiting on the device')
plot.bars({way: peak / 1e6 for way, (_, peak, _) in ways.items()}, right, write='{:.0f} MB',
          title='Peak, without the weights')
figure

# %% [markdown]
# You said 80? So why is it not half? The output of a ReLU is kept twice, by the ReLU and by the convolution after it, but it
# is one tensor. Our hooks see it twice, and encode it twice. We count what they see, and how much of it is different:

# %%
seen, different = [], {}


def look(tensor):
    seen.append(tensor.nbytes)
    different[tensor.data_ptr()] = tensor.nbytes        # by its place in memory
    return tensor


step(model, hooks_of(look, lambda tensor: tensor))
for name, amounts in {'seen': seen, 'different': different.values()}.items():
    print(f'{name:9} {sum(amounts) / 1e6:.0f} MB, half of it is {sum(amounts) / 2e6:.1f} MB')

# %% [markdown]
# Packed once each, they would take 80 MB. Gist (Jain and others, ISCA 2018) goes further, and looks at which layers
# meet: of a ReLU before a pooling layer it keeps one *bit* a number.
#
# And the peak falls less than the activations: the gradients of all weights, 94 MB, are in it. Do all ways compute the same?

# %%
plain = ways['keep all'][2]
for way in 'recompute', 'offload', 'encode':
    same = all(map(torch.equal, ways[way][2], plain))
    print(f'{way:9} gradients', 'as before, bit by bit' if same else 'differ a little')
exact = all(map(torch.equal, ways['recompute'][2] + ways['offload'][2], 2 * plain))
claims.test('C45', exact and all(ways[way][1] < ways['keep all'][1] for way in ways if way != 'keep all'),
            'ResNet-50, 8 images, peak without the weights: '
            + ', '.join(f'{way} {peak / 1e6:.0f} MB' for way, (_, peak, _) in ways.items())
            + '; recompute and offload give the same gradients, bit by bit')

# %% [markdown]
# Each has its price: recompute takes time, encoding takes accuracy or cleverness, and training one layer learns less.
# Offload takes the way to the host and back: the 5 GB of 256 images, at 12 GB/s (a figure of a lecture on ZeRO-Infinity),
# take 0.4 s, and as long again to come back. Whether that hurts depends on what the GPU computes meanwhile.

# %% [markdown]
# The neighbours, in one table:
#
# | idea | makes smaller | price | in this kit |
# |:--|:--|:--|:--|
# | recompute (Chen and others, 2016) | activations | time of a forward | here, and in lessons 5 and 6 |
# | recompute chosen by a compiler (Echo, 2020) | activations of recurrent networks | the same, where it is cheap | not built |
# | offload of activations (vDNN, 2016) | activations | transfers | here, and in lesson 6 |
# | encoding (Gist, 2018) | activations | arithmetic, perhaps accuracy | here |
# | pruning: weights near zero go | weights, with what belongs to them | search, perhaps accuracy | not built |
# | mixed precision | activations | a copy of the weights | the calculator in section 6, *encode* here |
# | more devices, a part of the network on each | everything | messages, waiting | lessons 4 to 9 |

# %% [markdown]
# ## Remember
#
# 1. Weights, gradients and optimizer states take 1 + 1 + (0, 1 or 2) numbers a parameter, whatever the batch; with Adam that is 16
#    bytes, in mixed precision, too.
# 2. Activations grow with the batch and with the depth; they pile up in the forward, and go in the backward, where the
#    gradients come.
# 3. Activations can be recomputed, moved or encoded; weights need a copy in 32 bits, or small updates are lost.
#
# Next: [lesson 3](03_data_parallelism.ipynb), many devices with a copy of the model each.
#
# The claims of lectures that this lesson put to the test (C01, C02, C03, C45), as they came out in this run:

# %%
claims
