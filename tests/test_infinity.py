"""The formulas give the figures that the paper and the lecture print, and hang together."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewgpu.infinity import (
    FIGURE_2A, GB, TB, Model, activation_checkpoints, activation_working_memory, ait_of_activations,
    ait_of_optimizer_states, ait_of_parameters, bandwidth_for, efficiency, figure_2b, model_states,
    model_working_memory, operations)

# Figure 2a: parameters (10^12), states and checkpoints (TiB), working memory of model and activations (GiB).
PRINTED = {0.1: (0.10, 1.83, 0.05, 1.56, 1.63), 0.5: (0.50, 9.16, 0.12, 6.25, 2.50),
           1.0: (1.01, 18.31, 0.20, 9.77, 3.56), 10.0: (10.05, 182.81, 0.76, 64.00, 8.00),
           100.0: (101.47, 1845.70, 3.08, 400.00, 18.00)}


@pytest.mark.parametrize('trillions', PRINTED)
def test_figure_2a(trillions):
    model = FIGURE_2A[trillions]
    found = (model.parameters / 1e12, model_states(model) / 2**40, activation_checkpoints(model, 32) / 2**40,
             model_working_memory(model) / 2**30, activation_working_memory(model, 4) / 2**30)
    assert [*map(lambda value: round(value, 2), found)] == pytest.approx(PRINTED[trillions], abs=0.011)


def test_efficiencies_of_the_text():
    assert [round(efficiency(ait_of_parameters(batch), 70 * GB), 3) for batch in (1, 2, 4)] == [.506, .672, .804]
    assert efficiency(ait_of_optimizer_states(1), 280 * GB) == efficiency(ait_of_parameters(1), 70 * GB)
    assert round(efficiency(ait_of_optimizer_states(2), 1.5 * TB), 3) == .916
    assert round(efficiency(ait_of_activations(2048), 2 * GB), 3) == .584
    assert round(efficiency(ait_of_activations(8192), 3 * GB), 3) == .894


# The lecture's table: GPUs -> nodes, TB of GPU, CPU, NVMe, GB/s from GPU to GPU, of CPU and NVMe a GPU.
LECTURE = {1: (1, 0.032, 1.5, 28, None, 12.0, 12.0), 16: (1, 0.5, 1.5, 28, (150, 200), 4.1, 1.6),
           64: (4, 2, 6, 112, (60, 100), 4.1, 1.6), 256: (16, 8, 24, 448, (60, 100), 4.1, 1.6),
           1024: (64, 32, 96, 1792, (60, 100), 4.1, 1.6)}


@pytest.mark.parametrize('gpus', LECTURE)
def test_figure_2b(gpus):
    nodes, gpu, cpu, nvme, between, cpu_speed, nvme_speed = LECTURE[gpus]
    row = figure_2b(gpus)
    assert (row.nodes, row.cpu_memory, row.nvme, row.gpu_to_gpu) == (nodes, cpu, nvme, between)
    assert row.gpu_memory == pytest.approx(gpu, rel=0.03)   # 0.512 is printed as 0.5
    assert (row.cpu, row.nvme_speed) == pytest.approx((cpu_speed, nvme_speed))


@given(st.integers(1, 500), st.integers(1, 200), st.integers(1, 64), st.integers(1, 64), st.integers(1, 4096),
       st.integers(1, 8))
def test_intensities_are_operations_over_bytes(layers, hidden, heads, batch, seq, every):
    model = Model(layers, 64 * hidden, heads)
    work = operations(model, batch, seq)
    # Parameters are loaded for forward, recompute and backward, and gradients are stored: 2 bytes each.
    assert math.isclose(ait_of_parameters(batch, seq), work / (4 * 2 * model.parameters))
    # 16 bytes of states are read and written.
    assert math.isclose(ait_of_optimizer_states(batch, seq), work / (2 * 16 * model.parameters))
    # Checkpoints are stored and loaded.
    assert math.isclose(ait_of_activations(model.hidden, every),
                        work / (2 * activation_checkpoints(model, batch, seq, every)))


@given(st.floats(0.01, 0.99), st.floats(1, 1e6), st.floats(1e9, 1e15))
def test_the_bandwidth_for_an_efficiency_gives_it(target, ait, peak):
    assert math.isclose(efficiency(ait, bandwidth_for(target, ait, peak), peak), target)


@given(st.integers(1, 64), st.sampled_from([*FIGURE_2A]))
def test_tiles_divide_what_a_layer_needs(tiles, trillions):
    model = FIGURE_2A[trillions]
    assert math.isclose(model_working_memory(model, tiles) * tiles, model_working_memory(model))


def test_what_is_no_cluster_or_efficiency_is_refused():
    for gpus in (0, 17):
        with pytest.raises(ValueError, match='neither within one node'):
            figure_2b(gpus)
    for target in (0.0, 1.0):
        with pytest.raises(ValueError, match='between 0 and 1'):
            bandwidth_for(target, 1.0)
