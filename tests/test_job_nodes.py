"""How the nodes of a job find each other, and how it is told why one failed: without Slurm, part by part."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from fewgpu.meeting import PeerError, come_together
from fewgpu.workshop import failed, torchrun
from fewgpu.workshop.failed import Failed
from fewgpu.workshop.store import NoStore, address_here, find_store, interface_of, open_store
from tests.programs import posix, program, programs_in

linux = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='127.0.0.2 is an address on Linux')


@linux
def test_a_store_listens_on_one_address_and_is_found_by_those_who_waited(tmp_path: Path) -> None:
    found = []
    waiting = threading.Thread(target=lambda: found.append(find_store(tmp_path / 'store', 60)))
    waiting.start()
    stores = [open_store(tmp_path / name, '127.0.0.2') for name in ('store', 'of another job')]
    waiting.join()
    stores[0].set('who', 'first')
    assert found[0].get('who') == b'first' and not stores[1].check(['who'])
    address, port = (tmp_path / 'store').read_text().split()
    assert address == '127.0.0.2'
    socket.create_connection((address, int(port)), 60).close()
    for other in ('127.0.0.1', '::1'):
        with pytest.raises(OSError):
            socket.create_connection((other, int(port)), 60)


def test_nobody_waits_for_ever_for_the_first_node(tmp_path: Path) -> None:
    with pytest.raises(NoStore, match='after 0.2 s the first node has not written its address'):
        find_store(tmp_path / 'store', 0.2)
    with socket.socket() as gone:
        gone.bind(('127.0.0.1', 0))
        (tmp_path / 'store').write_text(f'127.0.0.1 {gone.getsockname()[1]}\n')
    with pytest.raises(NoStore, match='nobody answers at 127.0.0.1, port'):
        find_store(tmp_path / 'store', 1.0)


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoStore, match='the first node cannot listen on 192.0.2.1'):   # which is nobody's (RFC 5737)
        open_store(tmp_path / 'store', '192.0.2.1')
    assert not list(tmp_path.iterdir())


@posix
def test_the_address_is_that_by_which_slurm_knows_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs_in(tmp_path, monkeypatch)
    assert address_here() == '127.0.0.1'   # no job
    monkeypatch.setenv('SLURMD_NODENAME', 'n7')
    program(tmp_path, 'scontrol', 'echo "NodeName=$3 Arch=x86_64\n   NodeAddr=10.20.30.40 NodeHostName=n7 Version=22"')
    assert address_here() == '10.20.30.40'
    program(tmp_path, 'scontrol', 'echo "   NodeAddr=no.such.name.invalid"')
    with pytest.raises(NoStore, match='the address of node n7, which Slurm calls no.such.name.invalid, is unknown'):
        address_here()
    monkeypatch.setenv('PATH', str(tmp_path / 'nothing'))
    with pytest.raises(NoStore, match='scontrol show node n7 does not work'):
        address_here()


@linux
def test_an_interface_is_found_by_its_address() -> None:
    assert interface_of('127.0.0.1') == 'lo'
    assert interface_of('192.0.2.1') is None


def test_a_node_without_a_first_one_says_so(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith('SLURM')}
    done = subprocess.run(
        [sys.executable, '-m', 'fewgpu.workshop.torchrun', '--ranks', '1', '--run', str(tmp_path), '--time_limit', '1',
         'nothing.py'], env={**kept, 'SLURM_NODEID': '1', 'SLURM_STEP_NUM_NODES': '2'}, text=True, capture_output=True,
        timeout=300)
    assert done.returncode == 1 and 'the first node has not written its address' in done.stderr
    assert 'Traceback' not in done.stderr


def test_the_first_of_those_that_failed_by_themselves_is_the_cause(tmp_path: Path,
                                                                   capsys: pytest.CaptureFixture) -> None:
    assert failed.main(tmp_path, 9) == 9 == failed.main(tmp_path / 'no folder', 9)   # nobody has left word
    left = [Failed(rank, f'node{rank}', random.randrange(1, 99), f'why {rank}', random.random() < 0.5)
            for rank in range(6)]
    random.shuffle(left)
    for moment, one in enumerate(left):
        one.leave(tmp_path)
        Failed(one.rank, 'elsewhere', 100, 'a later word').leave(tmp_path)   # which does not count
        os.utime(tmp_path / f'rank-{one.rank}.failed', (moment, moment))
        causes = [one for one in left[:moment + 1] if not one.is_of_another]
        status, said = failed.main(tmp_path, 9), capsys.readouterr().out
        if causes:
            assert status == causes[0].status
            assert said.startswith(f'Rank {causes[0].rank} on node{causes[0].rank} failed:\n    why {causes[0].rank}\n')
        else:
            assert status == 0 and said.startswith(f'Rank {left[0].rank} on node{left[0].rank} lost another rank')
    failed.forget(tmp_path)
    assert failed.all_of(tmp_path) == []


class Ended:
    """What torchrun knows of ranks that failed."""

    def __init__(self, **codes: int) -> None:
        self.failures = {int(name[1:]): SimpleNamespace(exitcode=code) for name, code in codes.items()}


@pytest.mark.parametrize('code, status, why', [(-signal.SIGKILL, 128 + signal.SIGKILL, 'it was killed by SIGKILL'),
                                               (7, 7, 'it died with exit status 7')])
def test_a_rank_that_fails_when_others_ended_long_ago_is_the_cause(tmp_path: Path, code: int, status: int,
                                                                   why: str) -> None:
    ranks, now = torchrun._Ranks(torchrun._Asked.__new__(torchrun._Asked), tmp_path, range(2)), time.monotonic()
    ranks._gone = {0: now - 1000.0, 1: now}
    assert torchrun._status_of(Ended(r1=code), tmp_path, ranks) == status
    word, = failed.all_of(tmp_path)
    assert word.rank == 1 and word.status == status and word.why.startswith(why)


def test_a_rank_that_had_to_be_killed_long_after_another_failed_is_not_the_cause(tmp_path: Path) -> None:
    ranks, now = torchrun._Ranks(torchrun._Asked.__new__(torchrun._Asked), tmp_path, range(2)), time.monotonic()
    ranks._gone = {0: now - 1000.0, 1: now}
    assert torchrun._status_of(Ended(r0=7, r1=-signal.SIGKILL), tmp_path, ranks) == 7
    assert [word.rank for word in failed.all_of(tmp_path)] == [0]


@posix
def test_a_rank_that_has_done_its_work_is_not_killed_by_what_asks_it_to_end(tmp_path: Path) -> None:
    late = tmp_path / 'late.py'
    late.write_text('import os, signal, sys\n'
                    'class Late:\n'
                    '    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGTERM):\n'
                    '        kill(me, number)\n'
                    'sys.late = Late()   # lives until Python ends\n')
    done = subprocess.run([sys.executable, '-m', 'fewgpu.workshop.rank', str(tmp_path), str(late)],
                          env={**os.environ, 'RANK': '0'}, timeout=300)
    assert done.returncode == 0 and not failed.all_of(tmp_path)


def test_a_rank_that_came_too_late_is_the_cause_and_no_node_is_gone(tmp_path: Path, capsys) -> None:
    store = dist.HashStore()
    for rank in (0, 1):   # rank 1 comes when rank 0 has given up
        with pytest.raises(PeerError) as caught:
            come_together(store, rank, [0, 1], 'start', 0.2)
        Failed.by(caught.value, rank).leave(tmp_path)
    assert failed.main(tmp_path, 1) == 1
    said = capsys.readouterr().out
    assert said.startswith('Rank 1 on') and 'too late: rank 0 has waited 0.2 s for it' in said and 'gone' not in said
