"""Grader of exercise 15. Laws: shards fit and are few; one at a time gives the plain gradients; the longest is next."""

from functools import partial
from random import Random
from typing import Any

from fewgpu.workshop.graders import cut_laws, longest, spill_laws
from fewgpu.workshop.graders.longest import State, by, equal_units, least, play, states
from fewgpu.workshop.graders.shard_cuts import chains, not_fewest, too_large, unfit
from fewgpu.workshop.grading.grader import Failure, Hints, check
from fewgpu.workshop.grading.law import Suspect, judge
from fewgpu.workshop.grading.work import Work
from fewgpu.workshop.practice.plain import number

FORBIDDEN = 'fewgpu.spill', 'fewgpu.recompute', 'torch.utils.checkpoint'

MISCONCEPTIONS = {
    'buffer-ignored': 'the shard gets the whole memory: while it computes, the weights of the next one come, and need '
                      'the buffer',
    'next-too-large': 'a shard has more weights than the buffer: it cannot come while the one before it computes',
    'working-ignored': 'only the weights are counted: a forward and backward need the working bytes as well',
    'largest-working': 'of the working bytes only the largest of a shard counts: its backward needs those of all its '
                       'layers together',
    'working-in-buffer': 'the working bytes of a shard are not in the buffer: it holds weights that are on their way',
    'weights-twice': 'the weights are counted twice: those of the next shard have their room in the buffer',
    'one-too-many': 'a layer that is too much for a shard still joins it: look before it joins',
    'first-not-counted': 'the layer that begins a shard is not counted there: a new shard does not begin empty',
    'last-lost': 'the last shard is missing: where the layers end, it is still open',
    'layer-lost': 'the layer that does not fit any more is lost: it begins the next shard',
    'never-full': 'a shard may be full to the last byte: it fits as long as it is not more than there is',
    'never-emptied': 'the sums go on over all shards: for each new shard they begin anew',
    'one-layer-each': 'every layer is a shard of its own: fewer shards would fit, and each visit of a shard takes time',
    'evenly': 'all shards get the same number of layers: layers have different sizes, and it is bytes that have to fit',
    'ends-for-counts': 'these are the layers at which shards begin or end: what is asked for is how many layers each '
                       'has',
    'layers-for-counts': 'for each shard there are its layers: what is asked for is how many they are',
    'no-error': 'there is a layer that does not fit even alone, and no ValueError says so',
    'gradient-ones': 'the backward of a shard begins with ones: it has to begin with the gradient that the next shard '
                     'has found for its input',
    'loss-of-each': 'every shard has its own loss: only the last one knows the output of the model (a gradient that is '
                    'None comes from an input that does not require one)',
    'gradient-stays': 'all shards begin their backward with the same gradient: each has to hand on that of its own '
                      'input',
    'handed-on': 'the gradient of the output is handed on: the shard before needs that of the input',
    'no-gradients': 'no shard has new gradients: are they in copies of the shards, or cleared again?',
    'only-last': 'only the last shard has gradients: the backward has to go on to the first',
    'first-left-out': 'the first shard has no gradients: the backward ends one shard too early',
    'wrong-input': 'a forward that runs again does not run from the input that this shard had',
    'forward-order': 'the backward goes through the shards from the first to the last: a shard needs the gradient that '
                     'the next one hands back',
    'backward-twice': 'the last shard has two backwards: its gradients are twice as large',
    'cleared': 'the gradients that were there before are gone: a backward adds to them',
    'no-graph': 'a backward begins where there is no graph: the forward that runs again needs one',
    'no-leaf': 'there is no gradient to hand on: a shard finds it in the .grad of its input, if that is a leaf that '
               'requires one',
    'elsewhere': 'something is on the host and something on the device: the input, the target or the gradient has to '
                 'go along, and .to() of a tensor returns a copy',
    'loss-with-graph': 'the loss is returned with its graph: whoever collects losses keeps it all; return a number '
                       '(.item())',
    'weights-changed': 'the step changes weights: it only leaves gradients, and an optimizer does the rest',
    'callers-tensor': 'the batch of the caller is not as it was: begin the graph with x.detach()',
    'not-loaded': 'a shard computes on the host: it has to come to the device first',
    'all-at-once': 'all shards are brought to the device before the first one runs: that needs the memory of the whole '
                   'model, which is what there is not',
    'never-unloaded': 'the shards come one after the other, but do not leave: in the end all of them are there',
    'two-at-once': 'a shard comes before the one before it has left: there is room for one',
    'stays-there': 'something is left on the device at the end: other models need the room',
    'graph-kept': 'the first forward keeps its graph, and in it all activations on the device: nothing is saved, as '
                  'the forward runs again anyway',
    'inputs-there': 'the inputs that are kept stay on the device: their place is the memory of the host',
    'last-comes-twice': 'the last shard leaves after its forward and comes again for its backward: it could have '
                        'stayed',
    'comes-too-often': 'shards are brought to the device more often than they need to be: twice each, and the last '
                       'once',
    'last-runs-twice': 'the forward of the last shard runs twice: it is needed for nothing else than its '
                       'backward, so it can have the graph',
    'shortest-first': 'the model with the shortest time left is next; then the long ones are left at the end, and '
                      'devices idle while the last one runs',
    'in-turn': 'the first model that may run is taken, however little it has left to do',
    'counts-units': 'units are counted: what matters is how many seconds they take',
    'whole-time': 'the time of all units is taken: those that have ended are not left any more',
    'next-unit': 'only the next unit is looked at: a model with a short unit may have a long way to go',
    'longest-unit': 'the longest unit is looked at: what matters is what all that are left take together',
    'next-left-out': 'the next unit is left out of the sum: it has not run yet',
    'already-running': 'a model is taken that a device works on: its next unit needs what this one computes',
    'at-its-end': 'a model is taken that has nothing left to do: if no other may run, the answer is None',
    'last-of-equals': 'of models that have equally long left the smallest number is asked for',
    'place-for-number': 'that is the place among the models that may run: what is asked for is its number among all',
    'zero-for-none': 'model 0 is taken for no model: 0 is a number, but is false in an `if`',
    'seconds-for-model': 'that is how long the model has left, and what is asked for is its number',
}

HINTS = {
    'fits': Hints(
        idea='Walk along the layers with an open shard. Which two sums do you have to know to say whether one more '
             'layer fits?',
        place='`cut`: a sum of the weights (against buffer), a sum of all bytes (against memory - buffer).',
        outline='for each layer: if there is no shard, or one of the two sums with this layer would be too large:\n'
                '    begin a shard, both sums are 0\n'
                'the layer joins the last shard: count it, add to both sums'),
    'fewest': Hints(
        idea='If a shard ends before it has to, can that ever save a shard later?',
        place='`cut`: a shard ends only when the next layer does not fit; full to the last byte fits.',
        outline='compare by > and not by >=\nend a shard for no other reason'),
    'too_large_layer': Hints(
        idea='A layer that begins a shard is not compared with anything. What if it is too large for an empty one?',
        place='`cut`: before the layer joins or begins a shard.',
        outline='if its weights are more than buffer, or weights and working bytes more than memory - buffer:\n'
                '    raise ValueError'),
    'gradients': Hints(
        idea='For one shard: from its input and the gradient of its output, how do you get the gradients of its '
             'weights and of its input?',
        place='`train_step`: a loop forwards that fills a list of inputs, a loop backwards that takes them off again.',
        outline='inputs = [x]; for each shard but the last: run it without a graph, append its output\n'
                'from the last shard to the first:\n'
                '    its input, on the device, as a leaf that requires a gradient; run the shard\n'
                '    last shard: loss, and backward of it; others: backward of y with the gradient\n'
                '    gradient = that of the leaf'),
    'one_at_a_time': Hints(
        idea='Who is on the device when a shard comes? And which tensors still hold on to something there?',
        place='`train_step`: each shard leaves after its forward or backward; torch.no_grad() around the first '
              'forward; what goes into the list of inputs is on the host.',
        outline='shard to the device, run, output to the host, shard to the host; only then the next one'),
    'moves': Hints(
        idea='Between the forward and the backward of the last shard, what happens to the others?',
        place='`train_step`: the first loop ends before the last shard: shards[:-1].',
        outline='first loop: shards 0 ... n - 2; second loop: n - 1 ... 0, where n - 1 has its only forward'),
    'longest_first': Hints(
        idea='Three questions for each model: is it free, has it something left, and how long does that take?',
        place='`next_model`: the sum of units[m] from done[m] on, for those that pass the first two.',
        outline='candidates = all m that are not busy and done[m] < number of units of m\n'
                'none: return None\n'
                'return the candidate with the largest sum of units[m][done[m]:]'),
    'together': Hints(
        idea='Two devices; models of 1, 1 and 4 seconds. Who has to begin first?',
        place='`next_model`: what is compared.',
        outline='the most seconds left, of all that may run'),
}


@check('every shard fits beside the buffer, and its weights into it', points=1)
def fits(work: Work, random: Random) -> None:
    cut_laws.judge_cuts(work, chains(random), unfit)


@check('no cut that fits has fewer shards', points=1, after=['fits'])
def fewest(work: Work, random: Random) -> None:
    cut_laws.judge_cuts(work, chains(random), not_fewest)


@check('a layer that does not fit alone is an error', points=1, after=['fits'])
def too_large_layer(work: Work, random: Random) -> None:
    cut_laws.check_refused(work, too_large(random))


@check("the gradients are the plain model's", points=2, seconds=20.0)
def gradients(work: Work, random: Random) -> None:
    spill_laws.check_gradients(work)


@check('one shard at a time is on the device, and between two only what goes from one to the other', points=2,
       after=['gradients'], seconds=20.0)
def one_at_a_time(work: Work, random: Random) -> None:
    spill_laws.check_one_at_a_time(work)


@check('each shard comes to the device twice, the last one once', points=1, after=['one_at_a_time'],
       seconds=20.0)
def moves(work: Work, random: Random) -> dict[str, str]:
    return spill_laws.check_moves(work)


def rule(work: Work, state: State) -> Any:
    return number(work.next_model([list(each) for each in state.units], list(state.done), list(state.busy)))


@check('the model with the longest time left is next', points=1)
def longest_first(work: Work, random: Random) -> None:
    judge(states(random), partial(rule, work), longest.longest, lines=work.definition('next_model'),
          suspects=[Suspect(*each) for each in longest.WRONG_RULES], tell=longest.told)


@check('models of equal units share the devices as well as can be', points=1, after=['longest_first'])
def together(work: Work, random: Random) -> dict[str, str]:
    for units, devices in equal_units(random):
        played, shortest = play(partial(rule, work), units, devices), least(units, devices)
        if played.makespan > shortest:
            raise Failure(f'It takes {played.makespan:g} s, and {shortest} s are possible.',
                          case=f'{devices} devices; units of 1 s a model: {", ".join(map(str, map(len, units)))}',
                          picture=played.picture(played.makespan), lines=work.definition('next_model'))
    models = ((1.0,) * 3, (1.0,) * 5, (1.0,) * 7, (1.0,) * 21)
    shortest_first = play(lambda state: by(state, lambda m: -state.left(m)), models, 2).makespan
    return {'models of 3, 5, 7 and 21 s on 2 devices': f'{play(partial(rule, work), models, 2).makespan:g} s; the '
            f'shortest first {shortest_first:g} s; one after the other {sum(map(sum, models)):g} s'}
