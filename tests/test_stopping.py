"""A run that is asked to stop does so on all ranks after the same step, whoever was asked, and when."""

import os
import random
import signal
import threading
import time

import pytest

from fewgpu import launch
from fewgpu.stopping import SIGNALS, Stopping

pytestmark = pytest.mark.skipif(os.name == 'nt', reason='Windows has none of these signals')


def test_signals_are_noted_and_term_counts_more() -> None:
    for first in SIGNALS:
        for second in SIGNALS:
            with Stopping() as stopping:
                assert stopping.asked() is None
                signal.raise_signal(first)
                assert stopping.asked() == first
                signal.raise_signal(second)
                assert stopping.asked() == (signal.SIGTERM if signal.SIGTERM in (first, second) else first)


def test_afterwards_the_signals_do_what_they_did() -> None:
    seen = []
    for number in SIGNALS:
        signal.signal(number, lambda number, _: seen.append(number))
    with Stopping() as one:
        with Stopping():   # made twice: the first handlers come back
            for number in SIGNALS:
                signal.raise_signal(number)
        assert one.asked() is None and not seen
    for number in SIGNALS:
        signal.raise_signal(number)
    assert seen == list(SIGNALS)


def test_only_the_main_thread_can_take_signals() -> None:
    raised = []

    def make() -> None:
        try:
            Stopping()
        except ValueError as error:
            raised.append(error)
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert raised


def steps_until_all_stop(cases: list[dict[tuple[int, int], int]]) -> list[tuple[int, str]]:
    """Of each case, which says in which step of which rank which signal comes: where this rank stops, and by what."""
    import torch.distributed as dist
    rank, found, random_waits = dist.get_rank(), [], random.Random(dist.get_rank())
    for case in cases:
        with Stopping() as stopping:
            for step in range(8):
                time.sleep(random_waits.choice((0.0, 0.003)))   # nobody is in step with the others
                if number := case.get((rank, step)):
                    signal.raise_signal(number)
                if asked := stopping.asked():
                    found.append((step, asked.name))
                    break
            else:
                found.append((8, ''))
    return found


def test_all_ranks_stop_after_the_same_step() -> None:
    chosen = random.Random(random.random())
    cases = [{(chosen.randrange(2), chosen.randrange(8)): chosen.choice(SIGNALS) for _ in range(chosen.randrange(4))}
             for _ in range(40)]
    first, *others = launch(steps_until_all_stop, 2, args=(cases,), time_limit=300)
    assert all(other == first for other in others)
    for case, (step, name) in zip(cases, first, strict=True):
        begun = min((at for _, at in case), default=8)
        asked = [number for (_, at), number in case.items() if at == begun]
        assert (step, name) == (begun, max(asked, key=SIGNALS.index).name if asked else '')


def stop_where_one_has_ended() -> str:
    import torch.distributed as dist
    with Stopping(time_limit=60) as stopping:
        if dist.get_rank() == 1:
            return ''
        try:
            return str(stopping.asked())
        except RuntimeError as error:
            return str(error)


def test_a_rank_that_is_gone_is_named() -> None:
    said, _ = launch(stop_where_one_has_ended, 2, time_limit=300)
    assert 'rank 1' in said and ('ended' in said or 'died' in said), said
