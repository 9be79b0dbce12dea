"""The alphabet of schedules: one operation of one stage on one micro-batch."""

from typing import NamedTuple

ACTIVATION, GRADIENT, TARGET, SHARE = 'activation', 'gradient', 'target', 'share'
LETTERS = {ACTIVATION: 'F', GRADIENT: 'B', TARGET: 'T', SHARE: 'G'}   # what a message is called in a grid
SKIP, SKIP_GRADIENT = 'skip ', 'gradient of skip '   # followed by its name: what a skip's messages are


class Message(NamedTuple):
    """The name of a value that travels from stage `source` to stage `stage`.

    The pipeline's own ends are stages too: the caller feeds activations to stage 0 "from stage -1",
    takes the outputs as activations "to stage n", hands in gradients to stage n - 1 "from stage
    n", and takes the gradients of the inputs as gradients "to stage -1". See `activation`,
    `gradient` and `target`.

    Where a stage lives on several devices, each sends the others its share of the gradients before an
    update (see `share`): such a message names both devices. All others are between the devices that
    have the stages' operations of their micro-batch.
    """

    what: str
    source: int
    stage: int
    micro_batch: int
    sender: int = -1     #: the device it comes from, if it is a share
    receiver: int = -1   #: the device it is for, if it is a share

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        return f'stage {self.source}' + (f' on device {self.sender}' if self.sender >= 0 else '')

    def __str__(self) -> str:
        if self.what == SHARE:
            return f'{self.what} of the gradients of stage {self.stage} for device {self.receiver}'
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


def share(update: 'Op', sender: int, receiver: int) -> Message:
    """The gradients that device `sender` has for an update of its stage, for another that holds it."""
    return Message(SHARE, update.stage, update.stage, update.micro_batch, sender, receiver)


class Skip(NamedTuple):
    """A value called `name` that stage `source` sends straight to the later stage `stage`, past those
    in between (see `fewgpu.skip`). A schedule lists those of its model."""

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
            _, source, stage, _, sender, receiver = self.message
            if sender >= 0:
                source, stage = f'd{sender}', f'd{receiver}'
            arrow, other = ('>', stage) if self.kind == 'send' else ('<', source)
            number = self.micro_batch if self.micro_batch >= 0 else ''
            return f'{LETTERS.get(self.message.what, "M")}{number}{arrow}{other}'
        return self.kind if self.micro_batch < 0 else f'{self.kind}{self.micro_batch}'
