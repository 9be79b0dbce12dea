"""The demonstration of the U-Net runs, and puts the lecture's claims to the test."""

import pytest
from rich.console import Console

from fewgpu.workshop.demos import Show, run, summary
from tests.pictures import faults


@pytest.mark.slow
def test_it_runs_says_something_about_both_claims_and_its_picture_can_be_read(tmp_path) -> None:
    with (tmp_path / 'said').open('w') as out:
        show = Show(Console(file=out, width=100))
        figure = run('unet', show)
    said = (tmp_path / 'said').read_text()
    assert 'out of memory' in said and 'Published' in said and '256 x 256' in said
    assert [finding.claim for finding in show.claims] == ['C09', 'C10']
    assert faults(figure) == []
    assert summary('unet').startswith('A U-Net')
