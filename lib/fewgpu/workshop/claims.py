"""Claims of the lectures behind the lessons, and what a run says about them.

C.. are what the lectures say; P.. are what papers say of systems that the lectures only name.
"""

import textwrap
from collections.abc import Iterator
from typing import NamedTuple

TEXTS = {
    'C01': 'Models grow much faster than the memory of GPUs.',
    'C02': 'Weights, gradients and optimizer states take one, one and two numbers a parameter; feature maps come on '
           'top.',
    'C03': 'Weights in low precision alone do not do: small updates are lost, so a precise copy stays.',
    'C04': 'Data parallelism cannot train what does not fit one GPU, and its communication grows with the model.',
    'C05': 'The share of communication grows with the number of machines.',
    'C06': 'In model parallelism one device works at a time, and the others wait for it.',
    'C07': 'Of all collectives, a data-parallel step needs only all-reduce.',
    'C08': 'A ResNet is best cut between its residual blocks.',
    'C09': 'Long skips make a network hard to cut; kept where they are used, they move fewer bytes.',
    'C10': 'The time of a sample is flat while the image is too small to fill the device, then grows with its area.',
    'C11': 'A processing pipeline uses resources evenly, and its steps may depend on each other.',
    'C12': 'It works well with many more elements than workers, balanced work, and little data to move.',
    'C13': "The cut with the least variance of the stages' costs gives the fastest pipeline.",
    'C14': 'Micro-batches shrink the bubble; with many more than four times as many as stages it is almost negligible.',
    'C15': 'Too many micro-batches cost: there is an optimum.',
    'C16': 'Only activations at the cuts move, so that a slow link costs little.',
    'C17': 'Recompute trades time for memory, so that a model several times larger fits.',
    'C18': 'With many micro-batches the speed grows almost linearly with the devices; with few, scaling is poor.',
    'C19': 'Results do not depend on the cut or on micro-batches; but batch norm sees micro-batches.',
    'C20': 'A pipeline needs a sequence of layers, and each layer fits one device.',
    'C21': 'Activations, not parameters, fill the memory; in a pipeline the fullest device holds less; models with '
           'many weights gain more.',
    'C22': 'Balancing by time or by memory is seen in both; with a pipeline the batch can be larger.',
    'C23': 'Pipelines are for models that do not fit; otherwise data parallelism is better.',
    'C24': 'One forward, one backward with weight stashing keeps the gradients valid; versions of weights cost memory.',
    'C25': "PipeDream's partitioner is a dynamic programme over a profile, with replication of stages.",
    'C26': 'PipeDream is faster than data parallelism: 1.2 to 6.8 times, by the model.',
    'C27': 'Faster GPUs shorten the whole training.',
    'C28': 'PipeDream-2BW needs two weight versions, and each update uses the gradient of one version before.',
    'C29': 'Its loss and accuracy are those of training without a pipeline.',
    'C30': 'Pipelines are fast or frugal, not both: GPipe, a flush, PipeDream, and 2BW in between.',
    'C31': 'PipeDream-2BW is up to 3.2 times as fast as GPipe, and 20 times as model parallelism.',
    'C32': 'A larger batch gives more throughput; a deeper pipeline less, but larger models fit.',
    'C33': 'A planner chooses depth, width, micro-batch and recompute from a profile.',
    'C34': 'PipeDream fills the bubble at the price of stale weights; PipeMare corrects that without stashing.',
    'C35': 'Many models at once keep devices busy that one model leaves idle.',
    'C36': 'A model larger than the device trains shard by shard; each shard is loaded twice a step.',
    'C37': 'Double buffering hides the transfer of shards.',
    'C38': 'Spilling many models at once takes up to 90 % less time than GPipe, and is 4 times as fast as model '
           'parallelism.',
    'C39': 'Model states can be partitioned among data-parallel workers, with few changes to the code.',
    'C40': 'Most model states belong in the memory of the host and on disk.',
    'C41': 'Each worker reading its slice, and gathering the rest, beats one worker that reads and broadcasts.',
    'C42': 'Prefetch is a pipeline: disk for layer i+3, host for i+2, device for i+1, while layer i computes.',
    'C43': 'Tiles let a layer train that does not fit the device.',
    'C44': 'Offloading costs about two per cent, and makes models trainable that did not fit.',
    'C45': 'Recompute has neighbours: offload to the host, encoding, compilers that choose, pruning.',
    'C46': 'Pipelines use GPUs better than model parallelism, and train large networks faster than data parallelism.',
    'P01': 'Tensor parallelism (Megatron-LM) moves 8 b s h (t-1)/t elements a rank, for a transformer block and '
           'micro-batch.',
    'P02': 'Hybrid parallelism by one call (HyPar-Flow) trains as sequential SGD does.',
    'P03': 'A second replica in reverse order (GEMS) fills a part of the idle time of the first.',
    'P04': 'Asynchronous pipelines are stable below a learning rate that falls with the delay (PipeMare).',
}


class Finding(NamedTuple):
    """What a run says about a claim; `confirmed` is None where it cannot say anything."""

    claim: str
    confirmed: bool | None
    found: str
    by: str = ''        #: '' for a run of this machine, else what judged: 'the simulator', 'the planner'
    because: str = ''   #: where a difference between the claim and what was found comes from

    @property
    def verdict(self) -> str:
        said = {True: 'confirmed', False: 'not confirmed', None: 'not decided here'}[self.confirmed]
        return f'{said} by {self.by}' if self.by and self.confirmed is not None else said


class Claims:
    """What a lesson has found out; at the end of a cell it shows itself as a table."""

    def __init__(self) -> None:
        self._findings: dict[str, Finding] = {}

    def test(self, claim: str, confirmed: bool | None, found: str, *, by: str = '', because: str = '') -> None:
        """Note and print a finding, in place of an earlier one about the same claim.

        `by` says what found it, if not a run of this machine: 'the simulator', 'published figures'; `because`,
        where a difference comes from. Raises KeyError for a claim that nobody made.
        """
        if claim not in TEXTS:
            raise KeyError(f"there is no claim {claim!r}; there are {', '.join(TEXTS)}")
        finding = Finding(claim, None if confirmed is None else bool(confirmed), found, by, because)
        self._findings[claim] = finding
        print(_wrapped(f'{claim}: {TEXTS[claim]}'), _wrapped(f'{finding.verdict}: {found}', '  '), sep='\n')
        if because:
            print(_wrapped(because, '  '))

    def __iter__(self) -> Iterator[Finding]:
        return iter(sorted(self._findings.values()))

    def _repr_markdown_(self) -> str:
        rows = [f'| {one.claim} | {TEXTS[one.claim]} | {_in_a_table(one.found)} | **{one.verdict}** |' for one in self]
        return '\n'.join(['| | claim | found in this run | |', '|:--|:--|:--|:--|', *rows])

    def __repr__(self) -> str:
        return '\n'.join(f'{one.claim} {one.verdict}: {TEXTS[one.claim]} Found: {one.found}' for one in self)


def _wrapped(text: str, indent: str = '') -> str:
    """In lines that fit the page of a notebook."""
    return textwrap.fill(text, 96, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _in_a_table(text: str) -> str:
    """As the content of a cell of a Markdown table."""
    return ' '.join(text.split()).replace('|', r'\|')
