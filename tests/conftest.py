"""What all tests share: one printed seed, hypothesis that can repeat a failure, and no GPU tests without a GPU."""

import os
import random
import signal
from collections.abc import Generator

import pytest
import torch
from hypothesis import register_random, settings

pytest_plugins = ['tests.slurm']   # a real Slurm, where there is one

settings.register_profile(
    'fewgpu',
    deadline=None,  # no test of the kit depends on how fast a machine is
    derandomize=False,  # each run tries other cases; the seed in the header repeats one
    max_examples=25,
    print_blob=True,
)
settings.load_profile('fewgpu')

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every process
# that a test starts, to interrupt it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class TorchGenerator:
    """torch's default generator as hypothesis wants it: each example then starts from the same random numbers."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


TORCH_GENERATOR = TorchGenerator()  # hypothesis only keeps a weak reference
register_random(TORCH_GENERATOR)


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed of this run, unless --hypothesis-seed names one: in CI always the same one.

    Random cases are found on the machines of people who can look into them; when CI turns red, the change did it.
    """
    if config.getoption('hypothesis_seed') is None:
        chosen = 1 if os.environ.get('CI') else random.SystemRandom().randrange(2**32)
        config.option.hypothesis_seed = str(chosen)


def pytest_report_header(config: pytest.Config) -> str:
    """Print the seed, with the way to use it again."""
    seed = config.getoption('hypothesis_seed')
    return f'seed: {seed} (repeat this run with --hypothesis-seed={seed})'


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start every test from the seed of the run, whichever tests ran before it."""
    seed = item.config.getoption('hypothesis_seed')
    random.seed(seed)
    torch.manual_seed(random.getrandbits(63))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """After every test the signals do what they did before: a command of the kit that a test calls takes some of them
    for the rest of its process, which is ours."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        return (yield)
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` where torch sees no GPU."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker('gpu'):
            item.add_marker(pytest.mark.skip(reason='needs an NVIDIA GPU, and torch sees none on this machine'))
