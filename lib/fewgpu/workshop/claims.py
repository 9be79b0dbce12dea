"""Claims of the lectures behind the lessons, and what a run of a lesson says about them."""

from collections.abc import Iterator
from typing import NamedTuple

TEXTS = {
    'C06': 'In model parallelism one device works at a time, and the others wait for it.',
    'C08': 'A ResNet is best cut between its residual blocks.',
    'C14': 'Micro-batches shrink the bubble.',
    'C15': 'Too many micro-batches cost: there is an optimum.',
    'C17': 'Recompute trades time for memory, so that a model several times larger fits.',
    'C18': 'The speed grows almost linearly with the number of devices.',
    'C19': 'Results do not depend on the cut or on micro-batches; but batch norm sees micro-batches.',
    'C20': 'A pipeline needs a sequence of layers.',
    'C21': 'Activations, not parameters, fill the memory; in a pipeline the fullest device holds less.',
    'C22': 'Balancing by time or by memory is seen in both; with a pipeline the batch can be larger.',
    'C23': 'Pipelines are for models that do not fit; otherwise data parallelism is better.',
}


class Finding(NamedTuple):
    """What a run says about a claim; `confirmed` is None where it cannot say anything."""

    claim: str
    confirmed: bool | None
    found: str

    @property
    def verdict(self) -> str:
        return {True: 'confirmed', False: 'not confirmed', None: 'out of reach here'}[self.confirmed]


class Claims:
    """What a lesson has found out; at the end of a cell it shows itself as a table."""

    def __init__(self) -> None:
        self._findings: dict[str, Finding] = {}

    def test(self, claim: str, confirmed: bool | None, found: str) -> None:
        """Note and print a finding, in place of an earlier one about the same claim.

        Raises KeyError for a claim that nobody made.
        """
        text = TEXTS[claim]
        finding = Finding(claim, None if confirmed is None else bool(confirmed), found)
        self._findings[claim] = finding
        print(f'{claim}: {text}\n  {finding.verdict}: {found}')

    def __iter__(self) -> Iterator[Finding]:
        return iter(sorted(self._findings.values()))

    def _repr_markdown_(self) -> str:
        rows = [f'| {one.claim} | {TEXTS[one.claim]} | {one.found} | **{one.verdict}** |' for one in self]
        return '\n'.join(['| | claim | found in this run | |', '|:--|:--|:--|:--|', *rows])

    def __repr__(self) -> str:
        return '\n'.join(f'{one.claim} {one.verdict}: {TEXTS[one.claim]} Found: {one.found}' for one in self)
