"""What the doctor says about who can be reached: ranks, the machine's own name, a cluster."""

import re
import socket

import pytest

from fewgpu.workshop.runner import examine_reach
from fewgpu.workshop.runner.finding import BAD, OK, WARN
from tests.programs import only, posix, program, programs_in


def test_ranks_and_programs_reach_each_other_here():
    assert only(examine_reach.ports()).status == OK
    assert only(examine_reach.ranks()).status == OK


def test_an_address_at_which_nobody_may_listen_is_bad(monkeypatch):
    monkeypatch.setattr(examine_reach, 'LOOPBACK', '192.0.2.1')   # an address that is nobody's (RFC 5737)
    finding = only(examine_reach.ports())
    assert finding.status == BAD and '192.0.2.1' in finding.remedy


def test_a_host_name_without_an_address_is_warned_of(monkeypatch):
    monkeypatch.setattr(socket, 'gethostname', lambda: 'no-such-host.invalid')
    finding = only(examine_reach.host_name())
    assert finding.status == WARN and 'no-such-host.invalid" to /etc/hosts' in finding.remedy
    monkeypatch.setattr(socket, 'gethostname', lambda: 'localhost')
    assert only(examine_reach.host_name()).status == OK


@posix
@pytest.mark.parametrize('sinfo, status, says', [
    ("echo 'cpu up 4 (null)'; echo 'gpu up 2 gpu:a100:4'; echo 'old down 1 (null)'", WARN,
     '2 partitions that are up, with GPUs: gpu'),
    ("echo 'cpu down 4 (null)'", WARN, 'no partition is up'),
    ("echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1", WARN,
     'Unable to contact slurm controller'),
    ('exec sleep 60', WARN, 'timed out')])
def test_a_cluster_says_its_partitions_or_that_it_does_not_answer(tmp_path, monkeypatch, sinfo, status, says):
    programs = programs_in(tmp_path / 'programs', monkeypatch)
    monkeypatch.setattr(examine_reach, 'repository', lambda: tmp_path)
    program(programs, 'sbatch', '')
    program(programs, 'sinfo', sinfo)
    finding = only(examine_reach.slurm())
    assert finding.status == status and says in finding.says and finding.remedy


@posix
def test_a_cluster_that_the_kit_has_been_told_about_is_well(tmp_path, monkeypatch):
    programs = programs_in(tmp_path / 'programs', monkeypatch)
    program(programs, 'sbatch', '')
    program(programs, 'sinfo', "echo 'gpu up 2 gpu:a100:4'")
    monkeypatch.setenv('SBATCH_PARTITION', 'gpu')
    assert only(examine_reach.slurm()).status == OK


@posix
def test_inside_a_job_it_says_what_the_job_has(tmp_path, monkeypatch):
    programs = programs_in(tmp_path / 'programs', monkeypatch)
    monkeypatch.setenv('PATH', str(programs))   # a node without sbatch
    monkeypatch.setenv('SLURM_JOB_ID', '4711')
    monkeypatch.setattr(examine_reach, 'cores', lambda: 1)
    finding = only(examine_reach.slurm())
    assert finding.status == WARN and re.match('this is job 4711, with 1 core and no GPU', finding.says)
    monkeypatch.setattr(examine_reach, 'cores', lambda: 4)
    assert only(examine_reach.slurm()).status == OK
