"""Networks that the planner knows by name: counted from their lists of layers, without torch.

Convolutional networks: what a layer stashes are the outputs of convolutions (which batch norm keeps) and of
ReLUs; the positions that a pool remembers are left out. Transformers: Megatron's closed forms (arXiv
2104.04473, section 5.1 and appendix; stashes: arXiv 2205.05198, remembered: 34 s h + 5 a s^2 bytes a layer
and sample in mixed precision, of which 10 s h stay whole under tensor parallelism; in float32, twice as
many, which counts masks too large).
"""

from collections.abc import Callable
from dataclasses import replace

from fewgpu.planner.model import Sizes, Model


def convolution(name: str, into: int, out: int, kernel: int, size: int, *, norm: bool = False,
                pool: int = 1) -> Sizes:
    """A convolution, its batch norm or else a bias, and a ReLU; size x size is what the convolution puts out.

    `pool` divides both sides afterwards.
    """
    numbers = out * size**2
    after = out * (size // pool)**2
    return Sizes(name, parameters=into * out * kernel**2 + (2 * out if norm else out),
                 flops=2.0 * into * kernel**2 * numbers,
                 stash=(2.0 if norm else 1.0) * numbers + (after if pool > 1 else 0.0), output=after)


def linear(name: str, into: int, out: int, *, last: bool = False) -> Sizes:
    """A linear layer; unless it is the last, with ReLU and dropout."""
    return Sizes(name, parameters=(into + 1) * out, flops=2.0 * into * out, stash=0.0 if last else 2.0 * out,
                 output=out)


def joined(name: str, parts: list[Sizes], output: float | None = None) -> Sizes:
    """Several layers as one."""
    return Sizes(name, parameters=sum(part.parameters for part in parts), flops=sum(part.flops for part in parts),
                 stash=sum(part.stash for part in parts), output=parts[-1].output if output is None else output)


def resnet50() -> Model:
    """He et al. (arXiv 1512.03385), 224 x 224; a layer is a residual block."""
    layers = [convolution('stem', 3, 64, 7, 112, norm=True, pool=2)]
    into = 64
    for group, (width, blocks, size) in enumerate(((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)), 1):
        for block in range(blocks):
            first = size * 2 if block == 0 and group > 1 else size   # the 3 x 3 convolution has the stride
            out = 4 * width
            parts = [convolution('', into, width, 1, first, norm=True),
                     convolution('', width, width, 3, size, norm=True),
                     convolution('', width, out, 1, size, norm=True)]
            if block == 0:
                shortcut = convolution('', into, out, 1, size, norm=True)
                parts.append(replace(shortcut, stash=shortcut.output))   # no ReLU of its own: it ends in the sum
            layers.append(joined(f'block {group}.{block + 1}', parts))
            into = out
    layers.append(linear('pool, linear', 2048, 1000, last=True))
    return Model('resnet50', tuple(layers), 3 * 224**2, batch=2048, about='ImageNet, 224 x 224')


def vgg16() -> Model:
    """Simonyan and Zisserman (arXiv 1409.1556), configuration D, 224 x 224."""
    layers, into, size = [], 3, 224
    for group, (width, count) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for k in range(1, count + 1):
            layers.append(convolution(f'conv {group}.{k}', into, width, 3, size, pool=2 if k == count else 1))
            into = width
        size //= 2
    layers += [linear('linear 1', 512 * 7 * 7, 4096), linear('linear 2', 4096, 4096),
               linear('linear 3', 4096, 1000, last=True)]
    return Model('vgg16', tuple(layers), 3 * 224**2, batch=2048, about='ImageNet, 224 x 224')


def alexnet() -> Model:
    """Krizhevsky's network as one tower (arXiv 1404.5997), 224 x 224."""
    layers = [replace(convolution('conv 1', 3, 64, 11, 55), output=64 * 27**2, stash=64 * (55**2 + 27**2)),
              replace(convolution('conv 2', 64, 192, 5, 27), output=192 * 13**2, stash=192 * (27**2 + 13**2)),
              convolution('conv 3', 192, 384, 3, 13), convolution('conv 4', 384, 256, 3, 13),
              replace(convolution('conv 5', 256, 256, 3, 13), output=256 * 6**2, stash=256 * (13**2 + 6**2)),
              linear('linear 1', 256 * 6**2, 4096), linear('linear 2', 4096, 4096),
              linear('linear 3', 4096, 1000, last=True)]
    return Model('alexnet', tuple(layers), 3 * 224**2, batch=2048, about='ImageNet, 224 x 224')


def unet() -> Model:
    """Ronneberger et al. (arXiv 1505.04597) with padded convolutions: 512 x 512 grey images, two classes.

    A skip of each of the four levels passes all layers between its ends, and so crosses every cut there.
    """
    def pair(into: int, out: int, size: int) -> list[Sizes]:
        return [convolution('', into, out, 3, size), convolution('', out, out, 3, size)]

    widths, sizes = (64, 128, 256, 512, 1024), (512, 256, 128, 64, 32)
    skips = [width * size**2 for width, size in zip(widths[:4], sizes)]
    layers, into = [], 1
    for level in range(4):
        width, size = widths[level], sizes[level]
        down = joined(f'down {level + 1}', pair(into, width, size), output=width * (size // 2)**2)
        layers.append(replace(down, stash=down.stash + down.output, carried=sum(skips[:level + 1])))
        into = width
    layers.append(replace(joined('bottom', pair(512, 1024, 32)), carried=sum(skips)))
    for level in reversed(range(4)):
        width, size = widths[level], sizes[level]
        # 2 x 2 outputs of each place, each a product with all inputs; both halves of the pair's input are kept
        up = Sizes('', parameters=2 * width * width * 4 + width, flops=2.0 * 2 * width * width * size**2,
                   stash=2.0 * width * size**2, output=width * size**2)
        layers.append(replace(joined(f'up {level + 1}', [up, *pair(2 * width, width, size)]),
                              carried=sum(skips[:level])))
    classes = convolution('classes', 64, 2, 1, 512)
    layers.append(replace(classes, stash=0.0))
    return Model('unet', tuple(layers), 512**2, batch=256, about='512 x 512')


def transformer(name: str, layers: int, width: int, heads: int, length: int, words: int, *, batch: int,
                about: str = '') -> Model:
    """A GPT: P = 12 l h^2 (1 + 13/(12h) + (V+s)/(12 l h)) parameters, of which the words' are used twice.

    FLOPs of a forward: s (24 h^2 + 4 s h) a layer, and 2 s h V for the logits, which are not recomputed.
    """
    h, s = width, length
    block = Sizes('', parameters=12 * h**2 + 13 * h, flops=s * (24.0 * h**2 + 4.0 * s * h),
                  stash=s * (17.0 * h + 2.5 * heads * s), whole=5.0 * s * h, output=s * h, reduced=2.0 * s * h)
    first = Sizes('embedding', parameters=(words + s) * h, flops=0.0, stash=0.5 * s * h, whole=0.5 * s * h,
                  output=s * h, recompute=False)
    logits = Sizes('logits', parameters=0, flops=2.0 * s * h * words, stash=2.0 * s * h + 2.0 * s * words,
                   whole=2.0 * s * h, output=s * words, recompute=False, tied=words * h)   # logits are float32
    blocks = (replace(block, name=f'layer {k}') for k in range(1, layers + 1))
    return Model(name, (first, *blocks, logits), s, batch=batch, heads=heads,
                 about=f'l={layers}, h={h}, a={heads}, s={s}, V={words}{about}')


def bert_large() -> Model:
    """Devlin et al. (arXiv 1810.04805): 24 layers of 1024, 16 heads, 512 tokens, 80 of them predicted."""
    h, s, words, masked = 1024, 512, 30522, 80
    gpt = transformer('bert-large', 24, h, 16, s, words, batch=256)
    first = replace(gpt.layers[0], parameters=(words + s + 2 + 2) * h)   # two segments, and a layer norm
    last = replace(gpt.layers[-1], name='pooler, logits', parameters=h**2 + h,
                   flops=2.0 * h**2 + 2.0 * masked * h * words,
                   stash=2.0 * masked * (h + words), whole=2.0 * masked * h, output=masked * words)
    return Model('bert-large', (first, *gpt.layers[1:-1], last), s, batch=256, heads=16,
                 about=f'l=24, h={h}, a=16, s={s}, V={words}')


#: By name. The sizes of gpt-175B are GPT-3's; those of gpt-2.2B and gpt-3.8B are chosen to give as many
#: parameters as PipeDream-2BW trains (arXiv 2006.09503, which has s = 512), with layers that 8 and 16 stages
#: share out evenly.
KNOWN: dict[str, Callable[[], Model]] = {
    'alexnet': alexnet, 'vgg16': vgg16, 'resnet50': resnet50, 'unet': unet, 'bert-large': bert_large,
    'gpt-2.2B': lambda: transformer('gpt-2.2B', 48, 1920, 20, 512, 51200, batch=512,
                                    about='; chosen to give 2.2 billion parameters'),
    'gpt-3.8B': lambda: transformer('gpt-3.8B', 32, 3072, 24, 512, 51200, batch=512,
                                    about='; chosen to give 3.8 billion parameters'),
    'gpt-175B': lambda: transformer('gpt-175B', 96, 12288, 96, 2048, 51200, batch=1536),
}


def known(name: str) -> Model:
    """The network of that name. Raises ValueError with the names if there is none."""
    if name not in KNOWN:
        raise ValueError(f"there is no model {name}; choose from {', '.join(KNOWN)}, or give your own as "
                         f"FILE.py:FUNCTION")
    return KNOWN[name]()
