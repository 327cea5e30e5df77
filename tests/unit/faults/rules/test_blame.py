"""Blame: who is placed apart, who is cleared, who is convicted, and for how long.  Processes here are called by their keys."""

import math

import pytest
from msgspec.structs import replace

from mpsd.faults.rules.blame import MOST_CASES, MOST_KEYS, Blame
from mpsd.faults.rules.blame_state import Cleared, Convicted, Released, Suspected
from mpsd.faults.rules.incident_json import blame_of, blame_text
from mpsd.faults.rules.settings import FaultSettings
from mpsd.model.fault import Confidence, FaultClass, Incident, Party
from mpsd.model.process import ProcessId

SETTINGS = FaultSettings()
ACCUSED = (Confidence.PROVEN, Confidence.ALONE, Confidence.LEFT)


def key(name: str) -> str:
    return f"user:0:{name}"


def incident(number, names, confidence=Confidence.SUSPECTED, settled=True, unknown=0, **facts) -> Incident:
    """names: a letter for each process; a repeated letter is two processes of one key. unknown: unidentified processes."""
    processes = [ProcessId(number * 100 + index, 1) for index in range(len(names) + unknown)]
    parties = tuple(Party(process, 0, name) for process, name in zip(processes, names, strict=False))
    culprit = processes[0] if confidence in ACCUSED else None
    suspects = tuple(processes) if confidence is Confidence.SUSPECTED else ()
    made = Incident(
        number, 1, 0, 0.0, settled, FaultClass.SM, "", "d", culprit, confidence, suspects, (),
        None, "", "", None, (), (), (), parties,
    )  # fmt: skip
    return replace(made, **facts)


def alone(number, name, **facts):
    return incident(number, name, Confidence.ALONE, **facts)


def proven(number, name, **facts):
    return incident(number, name, Confidence.PROVEN, **{"settled": False} | facts)


def convicted(blame: Blame, now: float = 0.0) -> set[str]:
    keys = (each.key for each in blame.state.convictions)
    return {each.removeprefix("user:0:") for each in keys if blame.placement(each, now).startswith("quarantine:")}


def suspected(blame: Blame) -> set[str]:
    return {each.removeprefix("user:0:") for case in blame.state.cases for each in case.keys}


def apart(blame: Blame, *names: str) -> set[str]:
    return {blame.placement(key(name), 0.0) for name in names}


FIRST = [
    pytest.param(proven(1, "a"), "a", "", id="a proof convicts"),
    pytest.param(alone(1, "a"), "a", "", id="who was alone is convicted"),
    pytest.param(incident(1, "a", Confidence.LEFT), "a", "", id="who is left is convicted"),
    pytest.param(alone(1, "a", settled=False), "", "a", id="not before it is settled"),
    pytest.param(incident(1, "abcd"), "", "abcd", id="several are suspects"),
    pytest.param(incident(1, "abcd", settled=False), "", "abcd", id="at once: they start again before it is settled"),
    pytest.param(incident(1, "aaa"), "a", "", id="processes of one key are one"),
    pytest.param(incident(1, "aab"), "", "ab", id="beside others too"),
    pytest.param(incident(1, "a", unknown=1), "", "a", id="somebody whom nobody knows was there"),
    pytest.param(alone(1, "", unknown=1), "", "", id="nobody knows who was alone"),
    pytest.param(incident(1, "", Confidence.UNKNOWN), "", "", id="nobody is accused"),
    pytest.param(proven(1, "a", fault_class=FaultClass.DEVICE), "", "", id="the GPU did it"),
    pytest.param(alone(1, "a", fault_class=FaultClass.HOST), "", "", id="being killed is nobody's habit"),
    pytest.param(incident(1, "ab", fault_class=FaultClass.HOST), "", "", id="whoever it was"),
]


@pytest.mark.parametrize(("first", "guilty", "suspects"), FIRST)
def test_what_an_incident_does(first, guilty, suspects):
    blame = Blame(SETTINGS)
    blame.take(first, 0.0)
    assert (convicted(blame), suspected(blame)) == (set(guilty), set(suspects))


def test_suspects_are_apart_from_each_other_and_from_everybody():
    blame = Blame(SETTINGS)
    assert blame.take(incident(1, "abcd"), 0.0) == (Suspected(1, ((key("a"), key("b")), (key("c"), key("d")))),)
    assert len(apart(blame, "a", "b")) == len(apart(blame, "c", "d")) == 1
    assert len(apart(blame, "a", "c")) == 2
    assert "" not in apart(blame, "a", "b", "c", "d")
    assert apart(blame, "x") == {""}


def test_a_fault_within_a_group_clears_all_others_and_splits_it():
    blame = Blame(SETTINGS)
    blame.take(incident(1, "abcdefgh"), 0.0)
    before = apart(blame, "a", "b", "c", "d")
    changes = blame.take(incident(2, "abc"), 1.0)
    assert changes[0] == Cleared(1, tuple(map(key, "defgh")), "others faulted without them")
    assert suspected(blame) == set("abc")
    assert apart(blame, "d", "e", "h") == {""}
    assert not apart(blame, "a", "b", "c") & before  # old clients may still be where the group was


@pytest.mark.parametrize("groups", [2, 3, 4])
@pytest.mark.parametrize("count", [2, 3, 5, 8, 13, 48])
def test_rounds_are_bounded(count, groups):
    """For any culprit: it faults each time, and all of its group are present."""
    for guilty in range(count):
        blame, names = Blame(replace(SETTINGS, groups=groups)), [chr(ord("A") + index) for index in range(count)]
        blame.take(incident(1, names), 0.0)
        rounds = 0
        while not convicted(blame):
            rounds += 1
            here = blame.placement(key(names[guilty]), 0.0)
            beside = [name for name in names if blame.placement(key(name), 0.0) == here]
            blame.take(incident(1 + rounds, beside) if len(beside) > 1 else alone(1 + rounds, beside), 0.0)
            assert rounds <= math.ceil(math.log(count, groups)) + 1
        assert convicted(blame) == {names[guilty]}
        assert not suspected(blame)


def test_two_culprits_are_found_one_after_the_other():
    blame = Blame(SETTINGS)
    for taken in (incident(1, "abcd"), incident(2, "ab"), alone(3, "a"), incident(4, "bcd"), incident(5, "cd"), alone(6, "d")):
        blame.take(taken, 0.0)
    assert convicted(blame) == {"a", "d"}
    assert not suspected(blame)


def test_members_that_do_not_come_back_are_cleared_by_the_next_fault():
    blame = Blame(SETTINGS)
    blame.take(incident(1, "abcdefgh"), 0.0)
    blame.take(alone(2, "c"), 1.0)
    assert (convicted(blame, 1.0), suspected(blame)) == ({"c"}, set())


def test_a_newcomer_in_a_group_is_suspected_with_it_and_nobody_is_cleared():
    """It could not be placed elsewhere, and may be the one."""
    blame = Blame(SETTINGS)
    blame.take(incident(1, "abcd"), 0.0)
    changes = blame.take(incident(2, "abx"), 1.0)
    assert suspected(blame) == set("abcdx")
    assert len(blame.state.cases) == 2
    assert not [each for each in changes if isinstance(each, Cleared)]


def test_a_newcomer_that_nobody_knows_convicts_and_clears_nobody():
    blame = Blame(SETTINGS)
    blame.take(incident(1, "ab"), 0.0)
    for number in range(2, 6):
        blame.take(incident(number, "a", unknown=1), 1.0)
    assert (convicted(blame), suspected(blame)) == (set(), set("ab"))
    blame.take(incident(9, "", unknown=2), 2.0)
    assert suspected(blame) == set("ab")


NARROWED = (incident(2, "abcd", settled=False), incident(3, "ab", settled=False))
REVISIONS = [
    pytest.param(
        [incident(1, "abcd", settled=False), proven(1, "b")], "b", "", id="the proof comes later: all others are free"
    ),
    pytest.param([incident(1, "abcd", settled=False), incident(1, "ab", settled=False)], "", "ab", id="some are cleared"),
    pytest.param(
        [incident(1, "ab", settled=False), incident(1, "abc", settled=False)], "", "abc", id="somebody else was there"
    ),
    pytest.param([alone(1, "a", settled=False), incident(1, "ab")], "", "ab", id="it was not alone after all"),
    pytest.param([alone(1, "a", settled=False), alone(1, "a")], "a", "", id="it was"),
    pytest.param([alone(1, "a"), proven(1, "b")], "b", "", id="another did it, though settled"),
    pytest.param([proven(1, "a"), proven(1, "a", fault_class=FaultClass.DEVICE)], "", "", id="it was the GPU"),
    pytest.param([incident(1, "ab"), incident(1, "ab", fault_class=FaultClass.HOST)], "", "", id="somebody was killed"),
    pytest.param([incident(1, "ab"), incident(1, "", Confidence.UNKNOWN)], "", "", id="it is not known who was there"),
    pytest.param([incident(1, "abcd"), incident(2, "ab"), proven(2, "x")], "x", "", id="a stranger did it"),
    pytest.param([proven(1, "a"), proven(1, "a"), proven(1, "a", settled=True)], "a", "", id="said three times"),
    pytest.param([alone(1, "a"), incident(1, "ab")], "", "ab", id="somebody else was there after all"),
    pytest.param([alone(1, "a"), incident(1, "a", unknown=1)], "", "a", id="somebody whom nobody knows"),
    pytest.param([*NARROWED, incident(2, "abcd")], "", "ab", id="an older incident is settled"),
    pytest.param([*NARROWED, incident(2, "abcde")], "", "ab", id="somebody else was at the older one"),
    pytest.param([*NARROWED, incident(2, "cd")], "", "ab", id="or fewer"),
    pytest.param([*NARROWED, incident(2, "abcd", unknown=1)], "", "ab", id="or somebody unknown"),
    pytest.param([*NARROWED, alone(4, "a"), incident(3, "ab"), incident(2, "abcd")], "a", "", id="and it is over"),
    pytest.param([*NARROWED, proven(2, "c")], "c", "", id="a proof of the older one still counts"),
    pytest.param([*NARROWED, alone(2, "a")], "a", "", id="and who was alone at it"),
    pytest.param([*NARROWED, incident(4, "abcd")], "", "abcd", id="a new incident is another thing"),
    pytest.param(
        [incident(1, "ab", settled=False), incident(1, "", Confidence.UNKNOWN), incident(1, "ab")], "", "ab", id="back again"
    ),
]


@pytest.mark.parametrize(("revisions", "guilty", "suspects"), REVISIONS)
def test_later_revisions_of_an_incident(revisions, guilty, suspects):
    blame = Blame(SETTINGS)
    for each in revisions:
        blame.take(each, 0.0)
    assert (convicted(blame), suspected(blame)) == (set(guilty), set(suspects))
    assert all(each.times == 1 for each in blame.state.convictions)


def test_a_proof_against_one_of_a_case_ends_it():
    blame = Blame(SETTINGS)
    blame.take(incident(1, "abcd"), 0.0)
    changes = blame.take(proven(2, "a"), 0.0)
    assert changes[0] == Cleared(1, tuple(map(key, "bcd")), f"{key('a')} did it")
    assert changes[1] == Convicted(key("a"), 2, 1, 3600.0)


def test_suspicion_decays_unless_there_is_a_further_fault():
    blame = Blame(SETTINGS)
    blame.take(incident(1, "abcd"), 0.0)
    blame.take(incident(2, "ab"), 1000.0)
    assert blame.next_decay_at() == 2800.0
    assert blame.decay(2799.0) == ()
    assert blame.placement(key("a"), 2799.0)
    assert blame.placement(key("a"), 2800.0) == ""
    assert blame.decay(2800.0) == (Cleared(1, (key("a"), key("b")), "no further fault"),)
    assert blame.state.cases == ()


def test_convictions_decay_and_are_longer_each_time():
    blame = Blame(SETTINGS)
    blame.take(proven(1, "a"), 0.0)
    assert blame.decay(3599.0) == ()
    assert blame.decay(3600.0) == (Released(key("a"), "its time is over"),)
    assert blame.decay(3601.0) == ()
    assert blame.placement(key("a"), 3600.0) == ""
    assert blame.take(proven(2, "a"), 4000.0) == (Convicted(key("a"), 2, 2, 4000.0 + 7200.0),)
    blame.decay(4000.0 + 2 * 7200.0)
    assert blame.state.convictions == ()  # it has been good for as long again
    assert isinstance(blame.take(proven(3, "a"), 1e6)[0], Convicted)
    assert blame.state.convictions[0].times == 1


def test_quarantine_has_a_longest_time():
    blame = Blame(SETTINGS)
    for number in range(1, 200):
        blame.take(proven(number, "a"), 0.0)
    assert blame.state.convictions[0].until == 86_400.0


PAUSES = [
    pytest.param(2, 0.0, 0.0, id="two faults: none"),
    pytest.param(3, 0.0, 1.0, id="three"),
    pytest.param(4, 0.0, 2.0, id="four"),
    pytest.param(6, 0.0, 8.0, id="six"),
    pytest.param(6, 5.0, 3.0, id="six, and it has waited"),
    pytest.param(6, 8.0, 0.0, id="and waited enough"),
    pytest.param(31, 0.0, 300.0, id="no longer than that"),
    pytest.param(31, 601.0, 0.0, id="long ago"),
]


@pytest.mark.parametrize(("faults", "later", "pause"), PAUSES)
def test_crash_loops_are_slowed_down(faults, later, pause):
    blame = Blame(SETTINGS)
    for number in range(1, faults + 1):
        blame.take(proven(number, "a"), 1000.0)
        blame.take(incident(100 + number, "xy"), 1000.0)
    assert blame.pause(key("a"), 1000.0 + later) == pause
    assert blame.pause(key("x"), 1000.0 + later) == 0.0  # suspicion alone delays no client


def test_without_quarantine_nobody_is_convicted_or_placed_apart():
    """Earlier decisions are kept, and take effect when it is on again. Crash loops have another setting."""
    blame = Blame(SETTINGS)
    blame.take(proven(1, "z"), 0.0)
    blame = Blame(replace(SETTINGS, quarantine=False), blame.state)
    for number in (2, 3, 4):
        assert blame.take(proven(number, "a"), 0.0) == ()
    assert blame.take(incident(5, "bc"), 0.0) == ()
    assert apart(blame, "a", "b", "c", "z") == {""}
    assert blame.pause(key("a"), 0.0) == 1.0
    assert convicted(Blame(SETTINGS, blame.state)) == {"z"}


def test_a_pardon_ends_everything_at_once():
    blame = Blame(SETTINGS)
    for number in (1, 2, 3):
        blame.take(proven(number, "a"), 0.0)
    blame.take(incident(4, "bc"), 0.0)
    assert blame.pardon(key("a")) == (Released(key("a"), "pardoned"),)
    assert blame.pardon(key("b")) == (Cleared(4, (key("b"),), "pardoned"),)
    assert (blame.pause(key("a"), 0.0), apart(blame, "a", "b")) == (0.0, {""})
    assert suspected(blame) == {"c"}
    blame.take(proven(3, "a", settled=True), 1.0)  # no news: the same fault
    assert apart(blame, "a") == {""}
    blame.take(proven(5, "a"), 2.0)
    assert (convicted(blame), blame.state.convictions[0].times) == ({"a"}, 1)
    assert blame.pardon(key("nobody")) == ()


def test_one_that_is_given_the_state_goes_on():
    """A restart of mpsd between any two faults."""
    blame = Blame(SETTINGS)
    for taken in (incident(1, "abcd"), proven(2, "x"), incident(3, "ab"), alone(4, "a")):
        blame = Blame(SETTINGS, blame.state)
        blame.take(taken, 0.0)
    assert convicted(blame) == {"x", "a"}


def test_other_settings_forget_nothing():
    """Pardons, and the list of handled incidents, are not part of its state."""
    blame = Blame(SETTINGS)
    for each in (*NARROWED, proven(5, "x")):
        blame.take(each, 0.0)
    blame.pardon(key("x"))
    blame.configure(replace(SETTINGS, groups=3, crash_faults=1))
    blame.take(incident(2, "abcd"), 0.0)
    blame.take(proven(5, "x", settled=True), 0.0)
    assert (convicted(blame), suspected(blame)) == (set(), set("ab"))
    blame.take(incident(6, "mno"), 0.0)
    assert len(blame.state.cases[-1].groups) == 3


def test_what_is_remembered_is_bounded():
    """Cases are dropped before convictions, and expired ones before others."""
    blame = Blame(SETTINGS)
    blame.take(proven(1, "a"), 0.0)
    blame.decay(3600.0)
    blame.take(proven(2, "b"), 3600.0)
    for number in range(3, 3 + MOST_KEYS):
        blame.take(proven(number, [f"p{number}"]), 3600.0)
        blame.take(incident(10_000 + number, [f"s{number}", f"t{number}"]), 3600.0)
    state = blame.state
    assert (len(state.cases), len(state.convictions), len(state.records)) == (MOST_CASES, MOST_KEYS, MOST_KEYS)
    assert key("a") not in {each.key for each in state.convictions}
    assert state.cases[-1].number == 10_000 + 2 + MOST_KEYS


def of_user(number, program, uid=7):
    process = ProcessId(number, 1)
    return replace(alone(number, program), culprit=process, parties=(Party(process, uid, program, "", None, f"pod:{number}"),))


def placed(blame: Blame, program: str, now: float = 0.0, uid: int = 7, pod: str = "new") -> str:
    party = Party(ProcessId(999, 1), uid, program, "", None, f"pod:{pod}")
    return blame.placement(party.key, now, party.wider_keys)


def test_two_of_one_program_place_its_next_start_apart_whatever_its_pod() -> None:
    blame = Blame(SETTINGS)
    blame.take(of_user(1, "a"), 0.0)
    assert placed(blame, "a") == ""
    blame.take(of_user(2, "a"), 0.0)
    assert placed(blame, "a") == "quarantine:user:7:a"
    assert placed(blame, "a", pod="1") == "quarantine:pod:1:7", "its own key counts first"
    assert placed(blame, "b") == ""
    assert placed(blame, "a", uid=8) == ""
    assert blame.pause("pod:new:7", 0.0) == 0.0


def test_three_names_of_one_user_place_all_their_new_ones_apart_until_they_end() -> None:
    blame = Blame(SETTINGS)
    for number, program in enumerate("abc", 1):
        assert placed(blame, "d") == ""
        blame.take(of_user(number, program), 0.0)
    blame = Blame(SETTINGS, blame_of(blame_text(blame.state)))
    assert placed(blame, "d") == "quarantine:user:7"
    assert placed(blame, "d", uid=8) == ""
    assert placed(blame, "d", now=SETTINGS.quarantine_seconds) == ""
    assert [change.key for change in blame.pardon("user:7")] == ["pod:1:7", "pod:2:7", "pod:3:7"]
    assert placed(blame, "d") == ""


def test_a_proof_withdrawn_withdraws_the_wider_quarantine() -> None:
    blame = Blame(SETTINGS)
    blame.take(of_user(1, "a"), 0.0)
    blame.take(of_user(2, "a"), 0.0)
    blame.take(replace(of_user(2, "a"), fault_class=FaultClass.HOST, revision=2), 0.0)
    assert placed(blame, "a") == ""


def test_a_user_with_many_names_pushes_out_no_other_users_conviction() -> None:
    blame = Blame(SETTINGS)
    blame.take(of_user(1, "other", uid=8), 0.0)
    for number in range(2, MOST_KEYS + 3):
        blame.take(of_user(number, "a"), 1.0)
    assert len(blame.state.convictions) == MOST_KEYS
    assert placed(blame, "other", now=1.0, uid=8, pod="1") == "quarantine:pod:1:8"
