"""The alphabet of schedules: one operation of one stage on one micro-batch."""

from typing import NamedTuple

ACTIVATION, GRADIENT = 'activation', 'gradient'


class Message(NamedTuple):
    """The name of a value that travels to stage `stage`: what it is, and of which micro-batch.

    The pipeline's own ends are stages too: the caller feeds activations to stage 0, takes the
    outputs as activations "to stage n", hands in gradients to stage n - 1, and takes the
    gradients of the inputs as gradients "to stage -1".
    """

    what: str
    stage: int
    micro_batch: int

    @property
    def source(self) -> int:
        """The stage that sends it: upstream for an activation, downstream for a gradient."""
        return self.stage - 1 if self.what == ACTIVATION else self.stage + 1

    def __str__(self) -> str:
        return f'{self.what} of micro-batch {self.micro_batch} for stage {self.stage}'


class Op(NamedTuple):
    """One operation. `kind` is one of

        F  forward         B  backward          R  recompute the forward
        I  input-gradient half of the backward  W  its weight-gradient half
        U  optimizer update (of no micro-batch)
        send, recv         a message leaves or arrives (added by `with_messages`)
    """

    kind: str
    stage: int
    micro_batch: int = -1
    message: Message | None = None

    def __str__(self) -> str:
        if self.message is not None:
            what = 'F' if self.message.what == ACTIVATION else 'B'
            arrow, other = (('>', self.message.stage) if self.kind == 'send'
                            else ('<', self.message.source))
            return f'{what}{self.micro_batch}{arrow}{other}'
        return self.kind if self.micro_batch < 0 else f'{self.kind}{self.micro_batch}'
