"""What the kit says about the machine that it runs on."""

import json
import subprocess
import sys

import pytest
import torch

from fewgpu.workshop import machine


def test_a_description_of_the_machine_can_be_stored():
    facts = machine.describe()

    assert json.loads(json.dumps(facts)) == facts
    assert facts['torch'] == torch.__version__ and facts['cores'] >= 1
    assert len(facts['gpus']) == torch.cuda.device_count()


def test_cores_respect_the_quota_of_a_container(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, '_QUOTA', tmp_path / 'cpu.max')
    everything = machine.cores()
    (tmp_path / 'cpu.max').write_text('100000 100000\n')
    assert machine.cores() == 1
    (tmp_path / 'cpu.max').write_text('max 100000\n')
    assert machine.cores() == everything >= 1


def test_two_core_efficiency_is_a_share_and_leaves_the_threads_as_they_were():
    before = torch.get_num_threads()

    assert 0 < machine.two_core_efficiency(2, seconds=0.2) < 3
    assert torch.get_num_threads() == before
    with pytest.raises(ValueError, match='at least one thread'):
        machine.two_core_efficiency(0)


def test_cores_that_other_programs_use_are_not_taken_for_ours():
    others = [subprocess.Popen([sys.executable, '-S', '-c', 'while True: pass']) for _ in range(3 * machine.cores())]
    try:
        assert machine.two_core_efficiency(2, seconds=0.8) < 0.6   # a quarter, if all are given the same
    finally:
        for other in others:
            other.kill()
            other.wait()
