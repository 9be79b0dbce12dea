"""The job scripts on a real Slurm: what they print, and what they say when something is wrong."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.slurm import Slurm, copy_of_kit

SMALL = '--arch', 'resnet18', '--batchsize', '8', '--samples', '16', '--test_samples', '8'
pytestmark = pytest.mark.slow


@pytest.mark.parametrize('name, program', [('pytorch', 'exercises/mnist_pytorch.py'),
                                           ('gpipe', 'solutions/09_mnist_gpipe.py'),
                                           ('gpipe_exercise', 'exercises/09_mnist_gpipe.py')])
def test_job_trains_and_says_how_fast_and_with_how_much_memory(slurm: Slurm, slurm_kit: Path, name: str,
                                                                program: str) -> None:
    job = slurm.submit(slurm_kit, f'jobs/job_{name}.sh', *SMALL)
    state, output = job.wait(), job.output
    assert state == 'COMPLETED' and job.code == 0, output
    assert f'Job {job.id} on node' in output and program in output
    assert re.search(r'\d samples/sec', output) and re.search(r'allocated .* GB, peak .* GB', output)
    assert (slurm_kit / f'slurm-{name}-{job.id}.out').read_text() == output
    assert json.loads((slurm_kit / 'results' / f'{name}-{job.id}.json').read_text())


def test_job_finds_the_kit_from_its_own_folder_and_takes_options_of_the_site(slurm: Slurm, slurm_kit: Path) -> None:
    example = (slurm_kit / 'jobs' / 'site.sh.example-gpu-partition').read_text()
    lines = r'^# (export SBATCH_(?:PARTITION|ACCOUNT|TIMELIMIT|GPUS_PER_NODE)=)'
    (slurm_kit / 'jobs' / 'site.sh').write_text(re.sub(lines, r'\1', example, flags=re.MULTILINE))
    submit = 'source site.sh && sbatch --parsable --hold job_pytorch.sh'
    number = slurm.command('bash', '-c', submit, cwd=slurm_kit / 'jobs').stdout.strip()
    held = slurm.command('scontrol', 'show', 'job', number).stdout
    slurm.command('scancel', number)
    for setting in ('Partition=gpu', 'Account=project-1234', 'TimeLimit=00:30:00', 'TresPerNode=gres:gpu:2'):
        assert setting in held
    job = slurm.submit(slurm_kit / 'jobs', 'job_pytorch.sh', '--no-such-flag')
    assert job.wait() == 'FAILED' and job.code == 2, job.output
    assert 'unrecognized arguments: --no-such-flag' in job.output


def test_slurm_refuses_what_there_is_not_when_it_is_submitted(slurm: Slurm, slurm_kit: Path) -> None:
    for options, variables, words in (
            (['--partition=nowhere'], {}, 'invalid partition'),
            ([], {'SBATCH_PARTITION': 'nowhere'}, 'invalid partition'),
            (['--gpus-per-node=3'], {}, 'Requested node configuration is not available'),
            ([], {'SBATCH_GRES': 'gpu:a100:1'}, 'Requested node configuration is not available'),
            (['--nodes=3', '--ntasks=3'], {}, 'Node count specification invalid|node configuration is not available'),
            (['--time=48:00:00'], {}, 'Requested time limit is invalid')):
        done = slurm.sbatch(slurm_kit, *options, 'jobs/job_pytorch.sh', **variables)
        assert done.returncode and re.search(words, done.stderr), (options, done.stderr)


def test_job_with_gpus_that_torch_does_not_see_says_so_and_goes_on(slurm: Slurm, slurm_kit: Path) -> None:
    job = slurm.submit(slurm_kit, '--gpus-per-node=2', 'jobs/job_gpipe.sh', *SMALL)
    state, output = job.wait(), job.output
    assert state == 'COMPLETED', output
    assert 'gave this job GPUs (0,1), but its torch sees none' in output and 'doctor' in output
    assert 'so a small run' in output and 'samples/sec' in output


def test_module_that_there_is_not_ends_the_job_with_its_line(slurm: Slurm, slurm_kit: Path) -> None:
    site = slurm_kit / 'jobs' / 'site.sh'
    site.write_text('module() { [[ $2 == Python ]] || { echo "no such module: $2" >&2; return 1; }; }\n\n'
                    'module load Python\nmodule load Torch/99\n')
    job = slurm.submit(slurm_kit, 'jobs/job_pytorch.sh', *SMALL)
    assert job.wait() == 'FAILED' and job.code == 1
    assert 'no such module: Torch/99' in job.output
    assert 'jobs/site.sh, line 4, failed: module load Torch/99. Correct it' in job.output
    assert 'samples/sec' not in job.output
    (slurm_kit / 'profile.sh').write_text('false\ntrue\n')   # what a site tries in its own files is not our concern
    site.write_text('source profile.sh\nmodule load Torch/99 || true\n')   # no module at all, which does not matter
    job = slurm.submit(slurm_kit, 'jobs/job_pytorch.sh', '--help')
    assert job.wait() == 'COMPLETED', job.output
    assert 'module: command not found' in job.output and '--batchsize' in job.output


def test_job_from_elsewhere_and_job_without_python_say_what_to_do(slurm: Slurm, slurm_kit: Path,
                                                                  tmp_path: Path) -> None:
    elsewhere = slurm.submit(tmp_path, str(slurm_kit / 'jobs' / 'job_pytorch.sh'))
    without = copy_of_kit(tmp_path / 'without', python=False)
    programs = tmp_path / 'few'
    programs.mkdir()
    for name in ('bash', 'dirname', 'basename'):   # and no Python
        (programs / name).symlink_to(shutil.which(name))
    nothing = slurm.submit(without, f'--export=ALL,PATH={programs}', 'jobs/job_pytorch.sh')
    for job, words in ((elsewhere, 'submit the job from its folder'), (nothing, 'No Python here has the kit: run')):
        assert job.wait() == 'FAILED' and job.code == 1
        assert words in job.output and job.output.count('\n') == 1, job.output


def test_cancelled_job_and_job_whose_time_is_over_say_so(slurm: Slurm, slurm_kit: Path) -> None:
    cancelled, late = (slurm.submit(slurm_kit, 'jobs/job_gpipe.sh', '--samples', '60000') for _ in range(2))
    for job in (cancelled, late):
        job.wait_for_words('Job ')
    slurm.command('scontrol', 'update', f'jobid={late.id}', 'EndTime=now+1')
    cancelled.cancel()
    assert (cancelled.wait(), late.wait()) == ('CANCELLED', 'TIMEOUT')
    for job in (cancelled, late):
        assert 'Slurm ended this job early' in job.output and 'sbatch --time=' in job.output, job.output
