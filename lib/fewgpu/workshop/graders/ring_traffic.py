"""What an all-reduce sends, to whom and when: exact, in bytes and in virtual time."""

from random import Random

from fewgpu.workshop.graders import ring_shares, rings
from fewgpu.workshop.graders.complete import verify_complete
from fewgpu.workshop.grading.grader import Failure
from fewgpu.workshop.grading.law import close
from fewgpu.workshop.grading.verdict import Line
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.ranks import Run
from fewgpu.workshop.practice.timeline import timeline

NUMBER = 8                         # bytes of one
LATENCY, BANDWIDTH = 1.0, 8.0      # seconds a message, bytes a second


def _run(work: Work, size: int, length: int) -> Run:
    return rings.run(lambda tensor, rank: work.all_reduce(tensor, rank), rings.tensors(size, length),
                     latency=LATENCY, bandwidth=BANDWIDTH)


def verify_bytes(work: Work, random: Random) -> dict[str, str]:
    """Every piece goes round twice, and stops one short of where it began. Raises `Failure` if more is sent."""
    cases = [(1, 4), (2, 4), (3, 3), (3, 5), (4, 2), (4, 8),
             *((random.randrange(3, 8), random.randrange(4, 40)) for _ in range(4))]
    for size, length in cases:
        run = _run(work, size, length)
        verify_complete(run, work.definition('all_reduce'))
        piece = max(ring_shares.lengths(length, size))   # as if all were as long: some fill the tensor up
        allowed = 2 * (size - 1) * piece * NUMBER        # of any rank
        together = allowed * size
        steps = {(message.to - message.source) % size for message in run.messages}
        if max(run.bytes_sent) <= allowed and sum(run.bytes_sent) <= together and (len(steps) < 2 or size < 3):
            continue
        named = _culprit(_run(work, 4, 8), 4, 8) or _culprit(_run(work, 5, 10), 5, 10)
        raise Failure(
            '' if named else 'More is sent than a ring needs, or elsewhere.', misconception=named,
            lines=_guilty(work) if named == 'not-a-ring' else work.definition('all_reduce'),
            case=f'all_reduce on {size} ranks, tensors of S = {length * NUMBER} bytes: bytes sent by every rank\n'
                 f'yours     {run.bytes_sent}\n'
                 f'expected  at most {allowed} each, all to one neighbour',
            picture=_who_to_whom(run, size))
    sent = _run(work, 4, 40).bytes_sent
    return {'bytes a rank sends (4 ranks, 320 bytes)': str(max(sent))}


def _guilty(work: Work) -> list[Line]:
    """Where that begins which does not send to the right."""
    tensors = rings.tensors(4, 8)
    for name, given in [('reduce_scatter', [(ring_shares.pieces(each, 4),) for each in tensors]),
                        ('all_gather', [(each[:2],) for each in tensors])]:
        run = rings.run(lambda given, rank: rings.listed(getattr(work, name)(given, rank)), given)
        if any((message.to - message.source) % 4 != 1 for message in run.messages):
            return work.definition(name)
    return work.definition('all_reduce')


def _culprit(run: Run, size: int, length: int) -> str:
    """The misconception behind the messages of a run of more than two ranks; '' if it is no known one."""
    ends = [{message.source, message.to} for message in run.messages]
    if ends and set.intersection(*ends):
        return 'root'
    if max((message.bytes for message in run.messages), default=0) >= length * NUMBER:
        return 'whole-tensor'
    if len({(message.to - message.source) % size for message in run.messages}) > 1:
        return 'not-a-ring'
    return 'extra-round' if 2 * (size - 1) < max(run.messages_sent) <= 2 * size else ''


def _who_to_whom(run: Run, size: int) -> str:
    """Bytes from every rank to every other, as a table."""
    lines = ['bytes'.ljust(10) + ''.join(f'to {to}'.rjust(8) for to in range(size))]
    for source in range(size):
        sent = [sum(message.bytes for message in run.messages if (message.source, message.to) == (source, to))
                for to in range(size)]
        lines.append(f'from {source}'.ljust(10) + ''.join(str(number or '.').rjust(8) for number in sent))
    return '\n'.join(lines)


def verify_time(work: Work, random: Random) -> dict[str, str]:
    """2 (N - 1) rounds, in each of which all ranks send at once. Raises `Failure` if it takes longer."""
    for size, each in [(2, 1), (3, 1), (4, 2), (random.randrange(5, 8), random.randrange(1, 5))]:
        run, bound = _run(work, size, size * each), 2 * (size - 1) * (LATENCY + each * NUMBER / BANDWIDTH)
        if run.makespan > bound and not close(run.makespan, bound):
            more = max(run.messages_sent) > 2 * (size - 1)
            late = any(min(message.leaves for message in run.messages if message.source == rank) > 0
                       for rank in range(size))
            raise Failure(
                'There are more messages than 2 (N - 1) a rank, and each has its latency.' if more else '',
                misconception='one-after-another' if late and not more else '', lines=work.definition('all_reduce'),
                case=f'all_reduce on {size} ranks, {size * each * NUMBER} bytes, {LATENCY:g} s, {BANDWIDTH:g} bytes/s\n'
                     f'yours     {run.makespan:g} virtual seconds\n'
                     f'expected  {bound:g}: 2 (N - 1) (latency + S / N / bandwidth)',
                picture=_wires(run, size))
    return {'virtual seconds (4 ranks, 320 bytes)': f'{_run(work, 4, 40).makespan:g}'}


def _wires(run: Run, size: int) -> str:
    rows = [(f'rank {rank} sends', [(message.leaves, message.arrives, '=') for message in run.messages
                                    if message.source == rank]) for rank in range(size)]
    return timeline(rows, run.makespan)
