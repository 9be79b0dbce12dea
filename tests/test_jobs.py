"""The job scripts: under Slurm (imitated: it runs a copy from its spool folder), and without."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = {'job_pytorch': 'exercises/mnist_pytorch.py', 'job_gpipe': 'solutions/09_mnist_gpipe.py',
           'job_gpipe_exercise': 'exercises/09_mnist_gpipe.py'}
BASH = shutil.which('bash')
pytestmark = pytest.mark.skipif(BASH is None or os.name == 'nt', reason='job scripts are for bash')


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A clone with the job scripts, whose Python prints its arguments, one a line."""
    root = tmp_path / 'my kit'
    shutil.copytree(ROOT / 'jobs', root / 'jobs', ignore=shutil.ignore_patterns('site.sh'))
    (root / 'workshop.py').touch()
    python = root / '.venv' / 'bin' / 'python'
    python.parent.mkdir(parents=True)
    python.write_text('#!/usr/bin/env bash\n[[ $1 == -c ]] && exit 0\nprintf "<%s>\\n" "$@"\nexit ${EXIT_CODE:-0}\n')
    python.chmod(0o755)
    return root


def bash(script: Path, *arguments: str, cwd: Path, path: str | None = None, **variables: str) -> subprocess.CompletedProcess:
    environment = {'PATH': path or '/usr/bin:/bin', 'HOME': str(cwd), **variables}
    return subprocess.run([BASH, str(script), *arguments], cwd=cwd, env=environment, text=True, capture_output=True,
                          timeout=300)


def spooled(kit: Path, job: str, tmp_path: Path) -> Path:
    """The copy that Slurm runs."""
    spool = tmp_path / 'spool' / 'job00007'
    spool.mkdir(parents=True, exist_ok=True)
    return shutil.copy(kit / 'jobs' / f'{job}.sh', spool / 'slurm_script')


def arguments_of(done: subprocess.CompletedProcess) -> list[str]:
    assert done.returncode == 0, done.stderr
    return re.findall(r'^<(.*)>$', done.stdout, re.MULTILINE)


@pytest.mark.parametrize('job', PROGRAM)
def test_arguments_reach_the_program_last_and_unchanged(kit: Path, tmp_path: Path, job: str) -> None:
    flags = ['--balance_by', 'memory', '--num_microbatches', '12', '--datadir', 'a folder/*']
    for script, folder, variables in (
            (kit / 'jobs' / f'{job}.sh', tmp_path, {}),
            (spooled(kit, job, tmp_path), kit, {'SLURM_SUBMIT_DIR': str(kit), 'SLURM_JOB_ID': '7', 'SLURM_JOB_NAME': 'mine'}),
            (spooled(kit, job, tmp_path), kit / 'jobs', {'SLURM_SUBMIT_DIR': str(kit / 'jobs'), 'SLURM_JOB_ID': '7'})):
        program, *given = arguments_of(bash(script, *flags, cwd=folder, **variables))
        assert Path(program) == kit / PROGRAM[job]
        assert given[-len(flags):] == flags
        report = Path(given[given.index('--report') + 1])
        assert report.parent == kit / 'results' and ('-7' in report.name) == bool(variables)


def test_gpus_get_a_larger_batch_and_cores_a_small_run(kit: Path, tmp_path: Path) -> None:
    smi = tmp_path / 'bin' / 'nvidia-smi'
    smi.parent.mkdir()

    def job(name: str, *, gpus: bool) -> subprocess.CompletedProcess:
        smi.write_text(f'#!/bin/sh\nexit {0 if gpus else 9}\n')
        smi.chmod(0o755)
        return bash(kit / 'jobs' / name, cwd=kit, path=f'{smi.parent}:/usr/bin:/bin')

    small = job('job_gpipe.sh', gpus=False)
    assert arguments_of(small)[-4:] == ['--batchsize', '64', '--samples', '256'] and 'small run' in small.stdout
    large = job('job_gpipe.sh', gpus=True)
    assert arguments_of(large)[-2:] == ['--batchsize', '512'] and 'small run' not in large.stdout
    plain = job('job_pytorch.sh', gpus=True)
    assert '--batchsize' not in arguments_of(plain) and len(arguments_of(plain)) == 3   # the script's own default


def test_exit_code_of_the_program_is_that_of_the_job(kit: Path) -> None:
    assert bash(kit / 'jobs' / 'job_pytorch.sh', cwd=kit, EXIT_CODE='3').returncode == 3


def test_site_is_sourced_if_there_is_one(kit: Path) -> None:
    (kit / 'jobs' / 'site.sh').write_text('module() { echo "loading $*"; }\nmodule load PyTorch\n')
    assert 'loading load PyTorch' in bash(kit / 'jobs' / 'job_gpipe.sh', cwd=kit).stdout


@pytest.mark.parametrize('kind', ['gpu-partition', 'modules'])
def test_example_of_a_site_changes_nothing_as_it_is(kind: str) -> None:
    lines = (ROOT / 'jobs' / f'site.sh.example-{kind}').read_text(encoding='utf-8').splitlines()
    assert lines and all(line == '' or line.startswith('#') for line in lines)


def test_job_submitted_from_elsewhere_says_where_to_submit_it(kit: Path, tmp_path: Path) -> None:
    done = bash(spooled(kit, 'job_gpipe', tmp_path), cwd=tmp_path, SLURM_SUBMIT_DIR=str(tmp_path))
    assert done.returncode == 1
    assert 'submit the job from its folder' in done.stderr and done.stderr.count('\n') == 1


def test_machine_without_the_kit_is_told_to_set_it_up(kit: Path, tmp_path: Path) -> None:
    shutil.rmtree(kit / '.venv')
    few = tmp_path / 'few'
    few.mkdir()
    for name in ('bash', 'dirname', 'basename'):   # and no python
        (few / name).symlink_to(shutil.which(name))
    done = bash(kit / 'jobs' / 'job_gpipe.sh', cwd=kit, path=str(few))
    assert done.returncode == 1
    assert './workshop.py --help' in done.stderr and done.stderr.count('\n') == 1


@pytest.mark.parametrize('job', [*PROGRAM, 'job_sweep'])
def test_nothing_of_a_site_is_in_the_job_scripts(job: str) -> None:
    text = (ROOT / 'jobs' / f'{job}.sh').read_text(encoding='utf-8')
    options = re.findall(r'^#SBATCH --([a-z-]+)=', text, re.MULTILINE)
    assert sorted({*options} - {'array'}) == ['job-name', 'nodes', 'ntasks', 'output', 'time']
    head = text[:text.index('\nfor ')]
    assert all(line.startswith('#') or not line for line in head.splitlines())   # sbatch stops at the first command
    assert os.access(ROOT / 'jobs' / f'{job}.sh', os.X_OK)


@pytest.mark.slow
@pytest.mark.parametrize('job', PROGRAM)
def test_job_trains_for_real(tmp_path: Path, job: str) -> None:
    report = tmp_path / 'report.json'
    done = bash(ROOT / 'jobs' / f'{job}.sh', '--arch', 'resnet18', '--batchsize', '4', '--samples', '4', '--balance_by', '9,5',
                '--report', str(report), cwd=tmp_path, path=f'{Path(sys.executable).parent}:/usr/bin:/bin',
                CUDA_VISIBLE_DEVICES='')
    assert done.returncode == 0, done.stderr
    assert 'test | loss' in done.stdout and report.is_file()
