"""The disk to practise with reads while others compute, counts what is in memory, and knows layers by their numbers."""

import pytest
import torch

from fewgpu.workshop.practice.disk import Disk, Machine, Misused

X = torch.tensor([[0.5, -1.0]], dtype=torch.float64)


def machine(room: float = 3) -> Machine:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(2, 2, generator=generator, dtype=torch.float64) for _ in range(3)]
    return Machine(weights, reads=[2, 4, 1], computes=[3, 1, 5], room=room)


def test_disk_reads_one_after_the_other_while_the_machine_computes() -> None:
    made = machine()
    handles = [made.read(k) for k in range(3)]
    assert made.clock == 0
    weights = handles[0].wait()
    assert made.clock == 2
    made.forward(0, weights, X)
    assert made.clock == 5          # the second read goes on until 6, the third until 7
    handles[1].wait()
    assert made.clock == 6
    handles[2].wait()
    assert made.clock == 7
    handles[0].wait()
    assert made.clock == 7          # it has been there for long


def test_read_begins_when_it_is_asked_for_and_the_disk_is_free() -> None:
    made = machine()
    made.forward(0, made.read(0).wait(), X)
    made.read(1).wait()
    assert made.clock == 5 + 4
    assert [event[2:] for event in made.events if event.kind == 'read'] == [(0, 2), (5, 9)]


def test_forward_and_backward_are_those_of_tanh_layers() -> None:
    made = machine()
    weights = [made.read(k).wait().clone().requires_grad_() for k in range(3)]
    x = leaf = X.clone().requires_grad_()
    y = X
    for k, weight in enumerate(weights):
        x, y = torch.tanh(x @ weight.T), made.forward(k, weight.detach(), y)
    assert torch.equal(x, y)
    given = gradient = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    before = made.clock
    for k in reversed(range(3)):
        gradient = made.backward(k, weights[k].detach(), gradient)
    assert made.clock - before == 2 * (3 + 1 + 5)
    x.backward(given)
    torch.testing.assert_close(gradient, leaf.grad, rtol=1e-14, atol=0)
    for k, weight in enumerate(weights):
        torch.testing.assert_close(made.written[k][0], weight.grad, rtol=1e-14, atol=0)


def test_layer_takes_its_place_when_its_read_begins_and_gives_it_back_when_it_is_freed() -> None:
    made = machine(room=2)
    first = made.read(0)
    made.read(1)
    with pytest.raises(Misused, match='no room for layer 2: memory has room for 2, and there are 0, 1'):
        made.read(2)
    first.wait()
    first.free()
    made.read(2)
    assert [handle.number for handle in made.held] == [1, 2] and made.peak == 2


def freed_weights(made: Machine) -> None:
    handle = made.read(0)
    weights = handle.wait()
    handle.free()
    made.forward(0, weights, X)


def waits_after_free(made: Machine) -> None:
    handle = made.read(0)
    handle.wait()
    handle.free()
    handle.wait()


def frees_twice(made: Machine) -> None:
    handle = made.read(0)
    handle.wait()
    handle.free()
    handle.free()


@pytest.mark.parametrize('misconception, use', [
    ('after-free', freed_weights), ('after-free', waits_after_free), ('freed-twice', frees_twice),
    ('freed-in-flight', lambda made: made.read(0).free()), ('no-such-part', lambda made: made.read(3)),
    ('no-such-part', lambda made: made.read(-1)), ('no-wait', lambda made: made.forward(0, made.read(0), X)),
    ('wrong-weights', lambda made: made.forward(1, made.read(0).wait(), X)),
    ('no-forward', lambda made: made.backward(0, made.read(0).wait(), X)),
    ('written-twice', lambda made: (made.write(0, X), made.write(0, X)))])
def test_misuse_is_told(misconception: str, use) -> None:
    with pytest.raises(Misused) as caught:
        use(machine())
    assert caught.value.misconception == misconception and str(caught.value)


def test_same_part_may_be_read_again_and_is_as_it_was() -> None:
    disk = Disk([(torch.ones(2, 2), torch.zeros(2))], room=1)
    for _ in range(2):
        handle = disk.read(0)
        weight, bias = handle.wait()
        assert torch.equal(weight, torch.ones(2, 2)) and torch.equal(bias, torch.zeros(2))
        handle.free()
        assert weight.isnan().all() and bias.isnan().all()


def test_picture_shows_who_was_busy_when() -> None:
    made = Machine([torch.ones(2, 2, dtype=torch.float64)] * 2, reads=[1, 1], computes=[2, 1])
    one, other = made.read(0), made.read(1)
    made.forward(0, one.wait(), X)
    made.forward(1, other.wait(), X)
    rows = made.picture().splitlines()   # 4 s on 60 columns
    assert rows[0].split() == ['disk', '0' * 15 + '1' * 15 + '.' * 30]
    assert rows[1].split() == ['device', '.' * 15 + '0' * 30 + '1' * 15]
