"""`./workshop.py doctor`: it sees what is amiss, says what to do, and nothing that is amiss keeps it from the rest."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from fewgpu.workshop import machine
from fewgpu.workshop.runner import examine_kit, examine_machine, examine_reach
from fewgpu.workshop.runner.doctor import conclusion, examine, worst
from fewgpu.workshop.runner.finding import BAD, OK, WARN, Finding, TookTooLong, within
from tests.learners import ROOT, copy_of_this_clone, workshop
from tests.programs import only, posix, program, programs_in

SUBJECTS = {'kit', 'Python', 'packages', 'exercises', 'disk', 'cores', 'ports', 'host name', 'Slurm', 'torch', 'MNIST',
            'ranks'}


@pytest.fixture(scope='module')
def clone(tmp_path_factory) -> Path:
    return copy_of_this_clone(tmp_path_factory.mktemp('clone') / 'my kit')


def findings_of(done: subprocess.CompletedProcess) -> dict[str, Finding]:
    """By their subjects, the worst of each."""
    found: dict[str, Finding] = {}
    for each in json.loads(done.stdout):
        finding = Finding(**each)
        if finding.subject not in found or worst([finding, found[finding.subject]]) != found[finding.subject].status:
            found[finding.subject] = finding
    return found


# The whole of it


def test_a_whole_clone_is_looked_at_from_all_sides_in_80_columns(clone):
    done = workshop(clone, 'doctor', '--json', 'found.json')
    assert 'Traceback' not in done.stderr and all(len(line) <= 80 for line in done.stdout.splitlines())
    found = [Finding(**each) for each in json.loads((clone / 'found.json').read_text())]
    assert {finding.subject for finding in found} >= SUBJECTS
    assert done.returncode == (worst(found) == BAD)
    assert all(finding.remedy for finding in found if finding.status == BAD)
    assert not [finding for finding in found if 'could not be looked at' in finding.says]


def test_without_a_torch_that_works_all_else_is_still_looked_at(clone, tmp_path):
    (tmp_path / 'torch').mkdir()
    (tmp_path / 'torch/__init__.py').write_text("raise ImportError('libtorch_cpu.so: cannot open shared object file')")
    done = workshop(clone, 'doctor', '--json', '-', first=str(tmp_path))
    found = findings_of(done)
    assert done.returncode == 1 and found['torch'].status == BAD
    assert 'libtorch_cpu.so' in found['torch'].says and '-m pip install' in found['torch'].remedy
    assert found['disk'].status and found['ports'].status == OK and 'MNIST' not in found


@pytest.mark.slow
def test_damaged_data_and_missing_files_are_found_with_the_way_to_bring_them_back(tmp_path):
    clone = copy_of_this_clone(tmp_path / 'clone')
    images = clone / 'lib/fewgpu/mnist/train-images-idx3-ubyte.gz'
    images.write_bytes(images.read_bytes()[:-1000])
    (clone / 'exercises/01_microbatch.py').unlink()
    (clone / 'exercises/progress.json').write_text('{"version": 1, "exer')
    done = workshop(clone, 'doctor', '--json', '-')
    found = [Finding(**each) for each in json.loads(done.stdout)]
    assert done.returncode == 1
    assert ('MNIST', BAD) in [(finding.subject, finding.status) for finding in found]
    assert './workshop.py reset 01' in [finding.remedy for finding in found]
    assert any('progress.json is broken' in finding.says for finding in found)


def test_help_needs_no_torch():
    code = """import sys
from fewgpu.workshop.__main__ import main
sys.argv = ['workshop.py', 'doctor', '--help']
try:
    main()
finally:
    assert 'torch' not in sys.modules"""
    environment = {**os.environ, 'PYTHONPATH': str(ROOT / 'lib')}
    done = subprocess.run([sys.executable, '-c', code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and 'exit code 1' in ' '.join(done.stdout.split())


def test_a_look_that_fails_does_not_keep_the_doctor_from_the_others():
    def fails():
        yield Finding(OK, 'first', 'seen before it failed')
        raise RuntimeError('no such luck\nsecond line')
    found = list(examine([fails], [examine_reach.ports], lambda: [Finding(OK, 'torch', '')]))
    assert [finding.subject for finding in found] == ['first', 'fails', 'torch', 'ports']
    assert found[1].says == 'could not be looked at: RuntimeError: no such luck' and found[1].status == WARN


@pytest.mark.parametrize('statuses, wanted', [
    ([OK, OK], 'Ready: everything'), ([OK, WARN], 'Ready. One thing could be better'),
    ([WARN, WARN], 'Ready. 2 things'),
    ([BAD, WARN, OK], 'One thing will fail, 1 could be better'), ([BAD, BAD], '2 things will fail'), ([], 'Ready')])
def test_the_last_line_counts(statuses, wanted):
    assert conclusion([Finding(status, 'x', 'y') for status in statuses]).startswith(wanted)


def test_an_answer_that_does_not_come_is_not_waited_for():
    never = threading.Event()
    with pytest.raises(TookTooLong):
        within(0.05, never.wait)
    never.set()
    assert within(5, lambda: 3) == 3
    with pytest.raises(KeyError):
        within(5, lambda: {}['x'])


# The machine


def test_packages_that_are_missing_are_bad_and_other_versions_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(examine_kit, 'repository', lambda: tmp_path)
    (tmp_path / 'requirements.txt').write_text('rich==0.1.2   # tables\nno-such-package==3.1\n')
    missing, other = examine_kit.packages()
    assert (missing.status, other.status) == (BAD, OK)
    assert missing.remedy == f'{sys.executable} -m pip install no-such-package==3.1' and 'rich 1' in other.says


def test_a_folder_that_cannot_be_written_to_is_bad(tmp_path, monkeypatch):
    monkeypatch.setattr(examine_machine, 'repository', lambda: tmp_path)
    assert only(examine_machine.disk()).status == BAD   # there is no folder exercises
    (tmp_path / 'exercises').mkdir()
    assert only(examine_machine.disk()).status != BAD
    assert not list((tmp_path / 'exercises').iterdir())


@pytest.mark.skipif(not Path('/proc/meminfo').exists(), reason='Linux tells it there')
def test_memory_is_what_the_container_may_use_and_files_that_are_cached_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(examine_machine, 'CGROUP', tmp_path)
    for limit, used, cached, wanted in ((600e6, 100e6, 0, BAD), (2_000e6, 1_900e6, 1_800e6, WARN)):
        (tmp_path / 'memory.max').write_text(f'{limit:.0f}\n')
        (tmp_path / 'memory.current').write_text(f'{used:.0f}\n')
        (tmp_path / 'memory.stat').write_text(f'anon 5\ninactive_file {cached:.0f}\n')
        finding = next(iter(examine_machine.memory()))
        assert finding.status == wanted and finding.remedy
        assert f'{(limit - used + cached) / 1e9:.1f} GB free of {limit / 1e9:.1f} GB' == finding.says
    (tmp_path / 'memory.max').write_text('max\n')
    free, total = examine_machine._memory()
    assert 0 < free <= total and total == os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')


def test_one_core_is_warned_of_and_so_is_a_second_one_that_adds_nothing(monkeypatch):
    monkeypatch.setattr(machine, 'cores', lambda: 1)
    assert only(examine_machine.cores()).status == WARN and list(examine_machine.efficiency()) == []
    monkeypatch.setattr(machine, 'cores', lambda: 2)
    for share, wanted in ((0.5, WARN), (0.97, OK)):
        monkeypatch.setattr(machine, 'two_core_efficiency', lambda seconds, share=share: share)
        finding = only(examine_machine.efficiency())
        assert finding.status == wanted and f'{2 * share:.2f} times' in finding.says


@posix
@pytest.mark.skipif(torch.cuda.is_available(), reason='here torch sees a GPU')
def test_gpus_that_torch_does_not_see_are_warned_of_with_the_reason(tmp_path, monkeypatch):
    programs = programs_in(tmp_path / 'programs', monkeypatch)
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    program(programs, 'nvidia-smi', 'exit 9')   # a driver that does not answer: as good as none
    assert only(examine_machine.gpus()).status == OK
    program(programs, 'nvidia-smi', 'echo "GPU 0: NVIDIA A100 (UUID: GPU-1)"; echo "GPU 1: NVIDIA A100 (UUID: GPU-2)"')
    finding = only(examine_machine.gpus())
    assert finding.status == WARN and 'nvidia-smi lists 2' in finding.says
    if torch.version.cuda is None:
        assert 'build without CUDA' in finding.says and '--force-reinstall torch' in finding.remedy
    else:
        monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
        assert 'hides them' in only(examine_machine.gpus()).says


@pytest.mark.gpu
def test_every_gpu_is_tried():
    found = list(examine_machine.gpus())
    assert len(found) == torch.cuda.device_count()
    assert all(finding.status in (OK, WARN) and 'GB free' in finding.says for finding in found)
