"""One layer of a model whose state is elsewhere: what is loaded for it, computed with, and updated.

Between its visits the parameters of a unit are empty. A visit puts what was loaded in the place of
its shadows (see fewgpu.weights), and takes it away again. So a unit is a stage, whose forward,
recompute and backward are those of fewgpu.stage.

    piece   parameters that are loaded and updated together: those of the unit, or one tile of a
            TiledLinear in it, which is loaded only when its turn has come within the forward
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fewgpu.ahead import Ahead
from fewgpu.context import Context
from fewgpu.device import Device
from fewgpu.loss import LossFn, WithLoss
from fewgpu.offload.packed import packed, unpack
from fewgpu.offload.shares import Alone, Slices, Whole
from fewgpu.skip_routes import wrapped
from fewgpu.stage import Stage
from fewgpu.tiled import Source, Tile, TiledLinear
from fewgpu.transport.copies import Parcel
from fewgpu.transport.host import on_host, to_device, to_host
from fewgpu.offload.versions import Versions
from fewgpu.weights import storage

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Piece:
    """`name` in the stores: 'name.weights', and 'name.states' of its optimizer."""

    def __init__(self, name: str, parameters: list[nn.Parameter], share: Whole | Slices,
                 optimizer: MakeOptimizer, versions: Versions | None) -> None:
        """What the parameters hold goes into the stores, unless `versions` is None: they have it. Then
        the parameters are empty."""
        self.name, self.parameters, self.share = name, parameters, share
        own = share.own([parameter.detach().cpu() for parameter in parameters])
        self.hosts = [nn.Parameter(tensor.clone()) for tensor, trained in zip(own, share.trained) if trained]
        self.optimizer = optimizer(self.hosts) if self.hosts else None   #: of the host
        if versions is not None:
            self._write(versions, own)
        for parameter in parameters:
            parameter.data, parameter.grad = parameter.data.new_empty(0), None
        self.let_go()

    def _write(self, versions: Versions, own: list[torch.Tensor]) -> None:
        if own:
            versions.write(f'{self.name}.weights', own)
        self.write_states(versions)

    def write_states(self, versions: Versions) -> None:
        """What the optimizer holds at the moment."""
        if self.hosts:
            versions.write(f'{self.name}.states', *packed(self.optimizer, self.hosts))

    def write(self, versions: Versions, values: list[torch.Tensor]) -> None:
        """Other values for what this rank keeps."""
        versions.write(f'{self.name}.weights', values)

    def read(self, versions: Versions) -> list[torch.Tensor]:
        """What this rank keeps of the parameters."""
        return versions.read(f'{self.name}.weights') if self.parameters else []

    def read_states(self, versions: Versions) -> tuple[list[torch.Tensor], Any]:
        """Those of the optimizer, and where they belong."""
        return versions.read(f'{self.name}.states'), versions.described(f'{self.name}.states')

    def let_go(self) -> None:
        """Of the values and states: they are in the stores."""
        for host in self.hosts:
            host.data, host.grad = torch.empty(0, dtype=host.dtype), None
        if self.optimizer is not None:
            self.optimizer.state.clear()

    def update(self, versions: Versions, own: list[torch.Tensor], states: tuple[list[torch.Tensor], Any],
               gradients: list[torch.Tensor | None]) -> None:
        """One step of the optimizer, on the host. `own` and `states` are what the stores had."""
        trained = [k for k, is_trained in enumerate(self.share.trained) if is_trained]
        try:
            for host, k in zip(self.hosts, trained):
                host.data, host.grad = own[k], gradients[k]
            unpack(self.optimizer, self.hosts, *states)
            self.optimizer.step()
            for host, k in zip(self.hosts, trained):
                own[k] = host.data
            self._write(versions, own)
        finally:
            self.let_go()


class Unit:
    """A layer as a stage, and its pieces: the first has all parameters but those of tiles.

    (In `fewgpu.zero` a unit is the parameters of a child of the model, in `fewgpu.spill` what is done with a shard.)
    """

    def __init__(self, stage: Stage, layer: nn.Module, kind: str, piece: Piece, tiles: list['Tiles']) -> None:
        """The module of the stage is the layer, of this kind, with the loss around it if it is the last one."""
        self._layer, self.stage, self.piece, self.tiles, self.index = layer, stage, piece, tiles, stage.index
        self.kind = kind
        self.pieces = [piece, *(each for source in tiles for each in source.pieces)]
        self.trains = any(piece.hosts for piece in self.pieces)
        self.end()

    def begin(self, context: Context, micro_batches: int, with_loss: bool) -> None:
        """Of one step, in which the last unit computes the loss, or not; the parameters are empty so far."""
        stage = self.stage if with_loss else replace(self.stage, module=self._layer)
        self.step = stage.begin(context, micro_batches)
        shadows = self.step.weights(0).shadows   # none in evaluation
        self._shadows = [shadows.get(parameter, parameter) for parameter in self.piece.parameters]

    def place(self, values: list[torch.Tensor]) -> None:
        """What was loaded becomes the values of the parameters."""
        if ledger := self.stage.device.ledger:
            ledger.adopt(values, parameters=True)
        self._loaded = values
        for shadow, value in zip(self._shadows, values):
            shadow.data = value
        self._counters = [shadow._version for shadow in self._shadows]

    def changed(self) -> list[torch.Tensor] | None:
        """The values on the device, if a layer has changed its own parameters in a forward."""
        if ([shadow._version for shadow in self._shadows] == self._counters
                and [*map(storage, self._shadows)] == [*map(storage, self._loaded)]):
            return None
        return [shadow.detach() for shadow in self._shadows]

    def evict(self) -> None:
        """Let go of the values."""
        if self.stage.device.torch.type == 'cuda':   # or more units would be there than are in flight
            torch.cuda.current_stream(self.stage.device.torch).synchronize()
        self._loaded = []
        for parameter, shadow in zip(self.piece.parameters, self._shadows):
            shadow.data = parameter.data = parameter.data.new_empty(0)   # a layer may have given it others

    def keeping_graph(self) -> contextlib.AbstractContextManager:
        """Inside, autograd keeps the place of a parameter, and not its value, which will be loaded again."""
        places = {storage(value): k for k, value in enumerate(self._loaded)}

        def pack(tensor: torch.Tensor) -> Any:
            k = places.get(storage(tensor))
            return tensor if k is None else (k, tensor.shape, tensor.stride(), tensor.storage_offset())

        def unpack(kept: Any) -> torch.Tensor:
            return kept if isinstance(kept, torch.Tensor) else self._loaded[kept[0]].as_strided(*kept[1:])

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def end(self) -> None:
        """Of the step, whichever way it ended."""
        self.step, self._shadows, self._loaded, self._counters = None, [], [], []
        for source in self.tiles:
            source.forget()


class Tiles(Source):
    """The tiles of one layer, read from the store one by one; their gradients gather on the host."""

    def __init__(self, pieces: list[Piece], device: Device, versions: Versions, depth: int) -> None:
        self.pieces, self._device, self._versions, self._depth = pieces, device, versions, min(depth, 1)
        self._gradients: dict[int, list[torch.Tensor]] = {}

    def tiles(self) -> Iterator[Tile]:
        for loaded in Ahead(self.pieces, self._read, self._copy, depth=self._depth):
            yield loaded.pop(0), (loaded.pop(0) if loaded else None)

    def _read(self, piece: Piece) -> list[torch.Tensor]:
        return on_host(piece.read, self._versions)

    def _copy(self, own: list[torch.Tensor]) -> list[torch.Tensor]:
        return to_device(own, self._device)

    def give(self, k: int, gradients: Tile) -> None:
        on_host(self._take, k, Parcel.of([value for value in gradients if value is not None]))

    def _take(self, k: int, gradients: Parcel) -> None:
        given, held = to_host(gradients, self._device), self._gradients.get(k)
        self._gradients[k] = [a + b for a, b in zip(held, given)] if held else given

    def forget(self) -> None:
        """What a step that failed has given."""
        self._gradients.clear()

    def update(self) -> None:
        """Of all tiles, by what has been given since the last time."""
        gradients, self._gradients = self._gradients, {}
        for k, piece in enumerate(self.pieces):
            if piece.hosts:
                none = [None for _ in piece.parameters]
                piece.update(self._versions, piece.read(self._versions), piece.read_states(self._versions),
                             gradients.pop(k, none))


def make_units(module: nn.Sequential, device: Device, ranks: Alone, optimizer: MakeOptimizer, loss_fn: LossFn,
               versions: Versions, depth: int) -> Iterator[Unit]:
    """One a layer; the last has the loss. What their parameters hold goes to the stores, if these are
    empty, one unit after the other. (Tiles are loaded one by one where there are no other ranks.)"""
    first = None if versions.exists else versions
    for index, (name, layer) in enumerate(module.named_children()):
        tiled = [part for part in layer.modules() if isinstance(part, TiledLinear)] * (ranks.size == 1)
        for number, part in enumerate(tiled):
            pieces = [Piece(f'{index}.{number}.{k}', [*tile], ranks.share([*tile]), optimizer, first)
                      for k, tile in enumerate(zip(*filter(None, (part.weights, part.biases))))]
            part.source = Tiles(pieces, device, versions, depth)
        in_tiles = {parameter for part in tiled for parameter in part.parameters()}
        rest = [parameter for parameter in layer.parameters() if parameter not in in_tiles]
        piece = Piece(f'{index}', rest, ranks.share(rest), optimizer, first)
        kind, layer = type(layer).__name__, wrapped(layer, index, ())
        whole = WithLoss(layer, loss_fn) if index == len(module) - 1 else layer
        yield Unit(Stage(index, whole, device), layer, kind, piece, [part.source for part in tiled])
