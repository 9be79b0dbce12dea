"""The backward of one micro-batch in two halves (zero bubble, Qi et al. 2023, arXiv 2401.10241).

    inputs     from the gradients of the outputs to those of the inputs; another stage waits for
               them
    weights    the gradients of the weights; nobody waits for them, so they may fill the bubble

Nodes of the graph that lead to the stage's input run in the first half. Weights hang on some of
them, the *frontier*: what arrives there is remembered, and the second half starts from there.

    outputs ──► addmm ──► relu ──► addmm ──► input        addmm, addmm: the frontier
                  └► W2              └► W1

A weight that hangs on several nodes of the frontier (a layer that is used twice) would be counted
twice from there: the path from one use leads through the other. For such weights the second half
starts from the outputs, as the whole backward does.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from fewgpu.gate import GradientEdge

Node = torch.autograd.graph.Node
Roots = list[tuple[GradientEdge, torch.Tensor]]


class SplitBackward:
    """Both halves; `inputs` comes first, each comes once.

    Gradients add up in the leaves, as in a whole backward, and are equal to its.

    `weights` raises RuntimeError if a layer has put a hook on a tensor that changes its gradient: it
    would change it in both halves.
    """

    def __init__(self, roots: Roots, anchor: torch.Tensor | None) -> None:
        """`anchor` is the leaf at the stage's input (see Gate), None if it needs no gradient."""
        self._roots, self._anchor = roots, anchor
        self._weights_of: dict[Node, list[torch.Tensor]] = {}     # of the nodes of the frontier
        self._arrived: dict[Node, Sequence[torch.Tensor | None]] = {}
        self._from_outputs: list[torch.Tensor] = []

    def inputs(self) -> None:
        """Carry the gradients to the anchor."""
        if self._anchor is None or not self._divide():
            return
        handles = [node.register_prehook(lambda gradients, node=node: self._remember(node, gradients))
                   for node in self._weights_of]
        torch.autograd.backward(*_pairs(self._roots), retain_graph=True, inputs=[self._anchor])
        for handle in handles:
            handle.remove()

    def weights(self) -> None:
        """Carry the gradients from the frontier to the weights."""
        if self._anchor is None:   # it is the whole backward
            if self._roots:
                torch.autograd.backward(*_pairs(self._roots))
            return
        if self._from_outputs:
            torch.autograd.backward(*_pairs(self._roots), inputs=self._from_outputs,
                                    retain_graph=bool(self._arrived))
        while self._arrived:   # what has been used goes
            self._go_on_from(*self._arrived.popitem())

    def _remember(self, node: Node, gradients: Sequence[torch.Tensor | None]) -> None:
        self._arrived[node] = gradients

    def _go_on_from(self, node: Node, gradients: Sequence[torch.Tensor | None]) -> None:
        def compare(arriving: Sequence[torch.Tensor | None]) -> None:
            if any(found is not before for found, before in zip(arriving, gradients)):
                raise RuntimeError('a layer has a hook on a tensor that changes its gradient, which '
                                   'zero bubble would change twice: use another schedule, or a hook '
                                   'on the parameter')

        roots = [(GradientEdge(node, k), gradient) for k, gradient in enumerate(gradients)
                 if gradient is not None]
        if roots:
            handle = node.register_prehook(compare)
            torch.autograd.backward(*_pairs(roots), inputs=self._weights_of[node])
            handle.remove()

    def _divide(self) -> bool:
        """Find the frontier. Does any node lead to the input?"""
        order = list(_children_first(edge.node for edge, _ in self._roots))
        inward = {torch.autograd.graph.get_gradient_edge(self._anchor).node}
        leaves: dict[Node, set[Node]] = {}   # of the nodes that do not lead to the input
        hang_on: dict[Node, set[Node | None]] = {}   # leaf -> nodes of the frontier
        for node in order:
            children = _children(node)
            if any(child in inward for child in children):
                inward.add(node)
                for child in children:
                    for leaf in leaves.get(child, ()):
                        hang_on.setdefault(leaf, set()).add(node)
            elif node not in inward:
                leaves[node] = ({node} if node.name().endswith('AccumulateGrad')
                                else leaves[children[0]] if len(children) == 1
                                else set().union(*(leaves[child] for child in children)))
        for edge, _ in self._roots:
            for leaf in leaves.get(edge.node, ()):
                hang_on.setdefault(leaf, set()).add(None)   # from an output, not by the input
        for leaf, nodes in hang_on.items():
            node = next(iter(nodes))
            if len(nodes) > 1 or node is None:
                self._from_outputs.append(leaf.variable)
            else:
                self._weights_of.setdefault(node, []).append(leaf.variable)
        return not inward.isdisjoint(order)


def _pairs(roots: Roots) -> tuple[list[Any], list[Any]]:
    return [edge for edge, _ in roots], [gradient for _, gradient in roots]


def _children(node: Node) -> list[Node]:
    return [child for child, _ in node.next_functions if child is not None]


def _children_first(roots: Iterable[Node]) -> Iterator[Node]:
    """Every node once, after all nodes that it leads to."""
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in roots]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(child, False) for child in _children(node) if child not in seen]
