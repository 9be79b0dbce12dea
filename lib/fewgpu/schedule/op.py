"""The alphabet of schedules: one operation of one stage on one micro-batch."""

from typing import NamedTuple

ACTIVATION, GRADIENT, TARGET = 'activation', 'gradient', 'target'
LETTERS = {ACTIVATION: 'F', GRADIENT: 'B', TARGET: 'T'}   # what a message is called in a grid
SKIP, SKIP_GRADIENT = 'skip ', 'gradient of skip '   # followed by its name: what a skip's messages are


class Message(NamedTuple):
    """The name of a value that travels from stage `source` to stage `stage`.

    The pipeline's own ends are stages too: the caller feeds activations to stage 0 "from stage -1",
    takes the outputs as activations "to stage n", hands in gradients to stage n - 1 "from stage
    n", and takes the gradients of the inputs as gradients "to stage -1". See `activation`,
    `gradient` and `target`.
    """

    what: str
    source: int
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f'{self.what} of micro-batch {self.micro_batch} for stage {self.stage}'


def activation(stage: int, micro_batch: int) -> Message:
    """What stage `stage` needs from upstream for its forward."""
    return Message(ACTIVATION, stage - 1, stage, micro_batch)


def gradient(stage: int, micro_batch: int) -> Message:
    """What stage `stage` needs from downstream for its backward."""
    return Message(GRADIENT, stage + 1, stage, micro_batch)


def target(stage: int, micro_batch: int) -> Message:
    """What the last stage needs from the caller to compute the loss."""
    return Message(TARGET, -1, stage, micro_batch)


class Skip(NamedTuple):
    """A value called `name` that stage `source` sends straight to the later stage `stage`, past those
    in between (see `fewgpu.skip_routes`). A schedule lists those of its model."""

    name: str
    source: int
    stage: int

    def activation(self, micro_batch: int) -> Message:
        """What `stage` needs for its forward, beside the activation from upstream."""
        return Message(SKIP + self.name, self.source, self.stage, micro_batch)

    def gradient(self, micro_batch: int) -> Message:
        """What `source` needs for its backward, beside the gradient from downstream."""
        return Message(SKIP_GRADIENT + self.name, self.stage, self.source, micro_batch)


def skip_name(what: str) -> str | None:
    """The name of the skip whose message, or gradient, this is; None if it is another message."""
    for start in (SKIP, SKIP_GRADIENT):
        if what.startswith(start):
            return what[len(start):]
    return None


class Op(NamedTuple):
    """One operation. `kind` is one of

        F  forward         B  backward          R  recompute the forward
        I  input-gradient half of the backward  W  its weight-gradient half
        U  optimizer update, of all micro-batches since the last one (its number is that of the last
           of them, or -1 if there is one update only)
        send, recv         a message leaves or arrives (added by `with_messages`)
    """

    kind: str
    stage: int
    micro_batch: int = -1
    message: Message | None = None

    def __str__(self) -> str:
        if self.message is not None:
            arrow, other = (('>', self.message.stage) if self.kind == 'send'
                            else ('<', self.message.source))
            return f'{LETTERS.get(self.message.what, "M")}{self.micro_batch}{arrow}{other}'
        return self.kind if self.micro_batch < 0 else f'{self.kind}{self.micro_batch}'
