"""What a rank calls, in words that the others compare with theirs: do all call the same collective?

    rank 0   all_reduce of float32 [4], sum   ──tag 1843…──►  ◄──tag 0520…──   rank 1   all_gather of float32 2 x [2]

Ranks that call different collectives, or with other shapes, would wait for each other for ever, or take numbers for
what they are not. So the messages of a call travel under a tag that is made of its words: what belongs to another
call is not received, and a healthy call costs nothing more. Who has waited for a while tells its words in the store,
looks at those of the rank that it waits for, and raises DifferentCalls (see `fewgpu.misses`).
"""

import os
import sys
import sysconfig
import zlib
from collections.abc import Sequence

import torch

_KIT = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LEARNERS = _KIT + 'workshop' + os.sep   # what the workshop runs calls the library as learners do
_LIBRARIES = tuple(os.path.join(folder, '') for folder in (
    os.path.dirname(torch.__file__),
    *(sysconfig.get_path(name) for name in ('stdlib', 'platstdlib', 'purelib', 'platlib'))))
_BELOW = tuple(_KIT + name for name in ('calls.py', 'group.py', 'collectives.py'))   # never the line to look at


class DifferentCalls(ValueError):
    """The ranks of a group do not call the same collective. It is raised on all that wait, and names both calls."""


class Call(str):
    """One collective of one rank: a str, its name, that knows what is to be alike on all ranks.

    `tensors`, whose shapes and dtype are; None where only the two ends of each message agree on its tensor.
    `options` are alike, too, in words: 'sum', 'root 0'.
    """

    def __new__(cls, name: str, tensors: Sequence[torch.Tensor] | None = None, *options: str) -> 'Call':
        return super().__new__(cls, name)

    def __init__(self, name: str, tensors: Sequence[torch.Tensor] | None = None, *options: str) -> None:
        self.is_whole = tensors is not None   #: is what it says the same for all its messages?
        self._of, self._options = _listed(tensors or ()), options
        self.number = 0     #: of this rank's calls in its group; 0: none of its messages has been posted
        self.site = ''      #: the line that calls, 'train.py:31'

    def begin(self, number: int) -> None:
        """It is this rank's call of that number in its group."""
        self.number, self.site = number, _site()

    def words(self, tensor: torch.Tensor | None = None) -> str:
        """All that is to be alike; `tensor` is what the message has, where that is agreed on by message."""
        of = self._of if self.is_whole or tensor is None else _listed([tensor])
        return ', '.join([f'{self}{of}', *self._options])

    def tag(self, tensor: torch.Tensor) -> int:
        """Under which a message travels."""
        return zlib.crc32(self.words(tensor).encode()) & 0x7fffffff

    def head(self, tensor: torch.Tensor | None = None) -> str:
        """What others compare with their own: see `difference`."""
        return f'{self.number}|{self.words(tensor)}|{self.site}'


def difference(rank: int, mine: str, peer: int, theirs: str) -> DifferentCalls | None:
    """What to raise, if two heads tell of different calls; None if they tell of the same one, or are not to be
    compared ('': nothing is known; or one rank is some calls ahead, which is no fault)."""
    if mine.count('|') < 2 or theirs.count('|') < 2:   # whoever reaches the store may have written something else
        return None
    (my_number, my_words, my_site), (number, words, site) = (head.split('|', 2) for head in (mine, theirs))
    if my_number != number or my_words == words:
        return None
    told = ' where '.join(f'rank {who} calls {what} ({where})' for who, what, where in sorted(
        [(rank, my_words, my_site), (peer, words, site)]))
    return DifferentCalls(f'the ranks do not call the same: {told}, each as its call {number} in their group: let all '
                          f'ranks make the same calls in the same order, with tensors of the same shape and dtype')


def _listed(tensors: Sequence[torch.Tensor]) -> str:
    """' of float32 [4], [3]', or with how many there are of a shape: ' of float32 8 x [4]'."""
    shapes = [str([*tensor.shape]) for tensor in tensors]
    if not shapes:
        return ''
    many = f'{len(shapes)} x {shapes[0]}' if len({*shapes}) == 1 < len(shapes) else ', '.join(shapes)
    return f' of {str(tensors[0].dtype).removeprefix("torch.")} {many}'


def _site() -> str:
    """The innermost line outside of libraries; else (in a thread of the kit) the line of the kit that calls."""
    frame, found = sys._getframe(1), ''
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_LIBRARIES) and (file.startswith(_LEARNERS) or not file.startswith(_KIT)):
            return f'{os.path.basename(file)}:{frame.f_lineno}'
        if not found and file.startswith(_KIT) and file not in _BELOW:
            found = f'fewgpu/{file.removeprefix(_KIT)}:{frame.f_lineno}'
        frame = frame.f_back
    return found
