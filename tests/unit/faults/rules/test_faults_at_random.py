"""A thousand faults in random order, with random losses, repetitions and delays: no wrong conviction, ever, and nothing grows.

The world is fault_world.py: it checks every incident and every conviction against what it knows.
"""

import math

import pytest

from mpsd.faults.rules.blame import MOST_CASES
from mpsd.faults.rules.blame_state import Suspected
from mpsd.faults.rules.settings import FaultSettings
from mpsd.faults.rules.verdict import confirms
from mpsd.model.fault import Confidence, Source
from tests.seeds import seeds
from tests.unit.faults.rules.fault_world import HOST, SM, Sources, World

SETTINGS = FaultSettings()
FAULTS = 50
ABSENT = [
    frozenset(),
    frozenset({Source.UVM_EVENTS, Source.CORE_DUMP}),
    frozenset({Source.KERNEL_LOG, Source.NVML}),
    frozenset({Source.UVM_EVENTS, Source.CORE_DUMP, Source.KERNEL_LOG, Source.NVML}),
    frozenset({Source.VENDOR_LOG, Source.CORE_DUMP}),
]


def one_fault(world: World) -> None:
    """A fault of a random client; sometimes two at once, sometimes a kill, sometimes the GPU."""
    random = world.random
    places = [each for each in world.places.values() if each.clients and not each.failed]
    if not places:
        return
    place = random.choice(places)
    guilty = [who for who, program in place.clients.items() if program.habit is not None]
    chance = random.random()
    if chance < 0.08:
        world.kill(place, random.choice(list(place.clients)), hurts=True)
    elif chance < 0.16:
        world.kill(place, random.choice(list(place.clients)), hurts=False)
    elif chance < 0.20:
        world.fail_device(place, random.choice([48, 79, 95]))
    elif chance < 0.25 and not guilty:
        world.restart_mpsd()
    elif guilty:
        if random.random() < 0.3:  # just before it, a harmless kill: it must not be taken for the cause, nor be missed
            other = random.choice(list(place.clients))
            if other not in guilty:
                world.kill(place, other, hurts=False)
        for who in random.sample(guilty, k=min(len(guilty), 1 + (random.random() < 0.2))):
            world.fault(place, who, place.clients[who].habit)
        if random.random() < 0.1:
            world.after(random.uniform(0.0, 3.0), world.restart_mpsd)


TO_A_KILL_AND_BACK = 1546471806  # an incident is taken for a kill, which accuses no client, and then for an exception again


@pytest.mark.parametrize("seed", [*seeds(10, 10), TO_A_KILL_AND_BACK])
def test_no_wrong_conviction_in_a_thousand_faults(seed):
    """20 x 50 random faults."""
    world = World(seed, 4 + seed % 9, Sources(absent=ABSENT[seed % len(ABSENT)]), SETTINGS)
    for program in world.programs:
        for _ in range(1 + (world.random.random() < 0.3)):  # two processes of one key
            world.start(program)
    while world.faults < FAULTS:
        world.run(world.random.choice([0.05, 0.5, 2.0, 8.0, 40.0]))
        one_fault(world)
        assert len(world.fusion) < 200
    world.run(120.0)
    assert all(each.is_settled for each in world.incidents.values() if each.number in world.fusion._dossiers)
    assert not world.fusion._dossiers
    assert len(world.incidents) > FAULTS / 4  # faults that some source reported
    assert len(world.blame.state.cases) <= MOST_CASES
    world.run(4 * 86_400.0)
    state = world.blame.state
    assert (state.cases, state.convictions, state.records) == ((), (), ())


def test_the_thousand_faults_were_not_for_nothing():
    """Together they convict by proof, alone and by group testing, and meet every other outcome: else they test little."""
    found, convictions, killed = set(), 0, 0
    for seed in range(0, 20, 2):
        world = World(seed, 4 + seed % 9, Sources(absent=ABSENT[seed % len(ABSENT)]), SETTINGS)
        for program in world.programs:
            world.start(program)
        while world.faults < FAULTS:
            world.run(world.random.choice([0.05, 0.5, 2.0, 8.0, 40.0]))
            one_fault(world)
        world.run(120.0)
        found |= {each.confidence for each in world.incidents.values()}
        convictions += len(world.convictions)
        killed += sum(each.fault_class is HOST for each in world.incidents.values())
    assert found >= {Confidence.PROVEN, Confidence.ALONE, Confidence.SUSPECTED, Confidence.UNKNOWN}
    assert convictions > 50
    assert killed > 3


def confirmed(world: World) -> int:
    """Incidents of which a domain's own server has spoken."""
    return sum(any(map(confirms, each.evidence)) for each in world.incidents.values())


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_who_faults_each_time_is_convicted_within_the_bound(seed, groups):
    """No source can prove; everybody starts again, and the culprit faults whenever all are back."""
    absent = frozenset({Source.UVM_EVENTS, Source.CORE_DUMP})
    settings = FaultSettings(groups=groups)
    world = World(seed, 2 + seed, Sources(lost=0.3, late=0.0, absent=absent), settings)
    guilty = world.random.choice(world.programs)
    for program in world.programs:
        program.habit = SM if program is guilty else None
        world.places.clear()
    for program in world.programs:  # all in one domain at first
        world.start(program)
    first = next(iter(world.places.values()))
    for place in list(world.places.values())[1:]:
        first.clients |= place.clients
        del world.places[place.name]
    seen = 0
    while not world.convictions:
        before = confirmed(world)
        place, who = next((p, w) for p in world.places.values() for w, program in p.clients.items() if program is guilty)
        world.fault(place, who, SM)
        world.run(120.0)
        seen += confirmed(world) > before  # the domain's own report can be lost
        assert seen <= 1 + math.ceil(math.log(len(world.programs), groups)) + 1
    assert [each.key for each in world.convictions] == [guilty.party.key]
    world.run(10.0)
    assert not world.blame.state.cases
    assert world.blame.placement(guilty.party.key, world.now) == f"quarantine:{guilty.party.key}"
    innocents = {world.blame.placement(each.party.key, world.now) for each in world.programs if each is not guilty}
    assert innocents == {""}
    assert any(isinstance(change, Suspected) for change in world.changes)
