"""Names of peers are text: cut, printable, quoted where they are no plain word, and in every sentence."""

import pytest

from pccl.core.names import GONE_KEPT, NAME_MAX, Names, clean, shown
from pccl.types import PeerId

TOKYO, OSLO = PeerId("1a3ab67f" + "0" * 24), PeerId("2b4bc78a" + "0" * 24)


@pytest.fixture
def names():
    return Names([(TOKYO, "tokyo-2"), (OSLO, "gpu 7")])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("tokyo-2", "tokyo-2"),
        ("  tokyo-2 ", "tokyo-2"),
        ("", ""),
        (" \n ", ""),
        ("a\nb", "a?b"),
        ("\x1b[31mred\x07", "?[31mred?"),
        ("\u202egnp.exe", "?gnp.exe"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("bücher", "bücher"),
        ("\ud800", "?"),
        ("x" * 10_000, "x" * (NAME_MAX - 1) + "…"),
        ("\n" * 10_000, ""),
    ],
)
def test_a_name_is_cut_and_printable(given, kept):
    assert clean(given) == kept
    assert clean(kept) == kept
    assert len(kept) <= NAME_MAX


@pytest.mark.parametrize(
    ("name", "word"),
    [("tokyo-2", "tokyo-2"), ("a.b:1", "a.b:1"), ("gpu 7", '"gpu 7"'), ('a" is gone', '"a\' is gone"'), ("", '""')],
)
def test_what_is_no_plain_word_is_quoted(name, word):
    assert shown(name) == word


@pytest.mark.parametrize(
    ("sentence", "spelled"),
    [
        ("waits for 1a3ab67f, 2b4bc78a (1 of 3)", 'waits for tokyo-2 (1a3ab67f), "gpu 7" (2b4bc78a) (1 of 3)'),
        ("reach each other (1a3ab67f could not dial)", "reach each other (tokyo-2 (1a3ab67f) could not dial)"),
        ("refused (neighbour 1a3ab67f)", "refused (neighbour tokyo-2 (1a3ab67f))"),
        ("the link 1a3ab67f–2b4bc78a: no", 'the link tokyo-2 (1a3ab67f)–"gpu 7" (2b4bc78a): no'),
        ("tokyo-2 (1a3ab67f) is gone", "tokyo-2 (1a3ab67f) is gone"),
        (f"id {TOKYO} is taken", f"id {TOKYO} is taken"),
        ("x-1a3ab67f 1a3ab67f-x", "x-1a3ab67f 1a3ab67f-x"),
        ("deadbeef is unknown", "deadbeef is unknown"),
        ("", ""),
    ],
)
def test_a_sentence_gets_the_names(names, sentence, spelled):
    assert names.spell(sentence) == spelled
    assert names.spell(spelled) == spelled


def test_an_id_that_is_a_word_is_not_looked_for():
    names = Names([("revision", "evil")])
    assert names.spell("revision 3 goes from here") == "revision 3 goes from here"
    assert names.full(PeerId("revision")) == "revision"


def test_a_peer_without_a_name_is_called_by_its_id():
    names = Names([(TOKYO, "")])
    assert (names.full(TOKYO), names.name(TOKYO)) == ("1a3ab67f", "")


def test_names_of_those_who_are_gone_are_kept_for_a_while(names):
    names.retire(TOKYO)
    assert names.full(TOKYO) == "tokyo-2 (1a3ab67f)"
    for number in range(GONE_KEPT):
        peer = PeerId(f"{number:032x}")
        names.learn(peer, "x")
        names.retire(peer)
    assert names.full(TOKYO) == "1a3ab67f"
    assert names.full(OSLO) == '"gpu 7" (2b4bc78a)'


def test_one_who_comes_again_is_not_forgotten(names):
    names.retire(TOKYO)
    names.learn(TOKYO, "tokyo-2")
    for number in range(GONE_KEPT + 1):
        names.retire(PeerId(f"{number:032x}"))
    assert names.full(TOKYO) == "tokyo-2 (1a3ab67f)"
