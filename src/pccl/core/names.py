"""What people call peers: `tokyo-2 (1a3ab67f)` in every sentence that leaves a core.

Sentences are written with the first digits of ids. `spell` puts the names in, in one place on each side, so that no
sentence can be without them: not even a cause that another peer sent. A name is text from the network: it is cut, what
a terminal would act on is replaced, and one that is not a single plain word is quoted, so that no name can pass for a
part of the sentence. Knows nothing of what the sentences are about.
"""

import re
from collections import deque
from collections.abc import Iterable

from pccl.core.text import clip
from pccl.types import PeerId, short

NAME_MAX = 48
"""Characters of a name: a host name of a cloud and a process number fit, and a line of a log stays one line."""

GONE_KEPT = 256
"""Names of peers that are gone: sentences about them follow for a while."""

_PLAIN = re.compile(rf"[\w.:@+-]{{1,{NAME_MAX}}}")
_SHORT_ID = re.compile(r"(\()?(?<![\w-])[\w-]{8}(?![\w-])(\))?")


def clean(name: str) -> str:
    """A name as it may be kept and shown: printable, and not long."""
    text = clip(name[: 4 * NAME_MAX].strip()).strip()
    return text if len(text) <= NAME_MAX else text[: NAME_MAX - 1] + "…"


def shown(name: str) -> str:
    """A name in a sentence: as it is if it is one plain word, else in quotation marks."""
    return name if _PLAIN.fullmatch(name) else f'"{name.replace(chr(34), chr(39))}"'


class Names:
    """The names that are known, by id."""

    def __init__(self, named: Iterable[tuple[str, str]] = ()) -> None:
        self._names: dict[PeerId, str] = {}
        self._spelled: dict[str, str] = {}
        """`name (id8)` by the first digits of an id."""
        self._gone: deque[PeerId] = deque()
        self.learn_all(named)

    def learn(self, peer: PeerId, name: str) -> None:
        """This peer is called so."""
        name, digits = clean(name), short(peer)
        if peer in self._gone:
            self._gone.remove(peer)
        # Only what looks like an id of ours is looked for: one that is an English word would be found in any sentence.
        # And a peer whose id begins like that of another does not give it its own name.
        taken = digits in self._spelled and peer not in self._names
        if name and any(letter.isdigit() for letter in digits) and not taken:
            self._names[peer] = name
            self._spelled[digits] = f"{shown(name)} ({digits})"

    def learn_all(self, named: Iterable[tuple[str, str]]) -> None:
        """These peers are called so."""
        for peer, name in named:
            self.learn(PeerId(peer), name)

    def retire(self, peer: PeerId) -> None:
        """This peer is gone, or was not let in; it may still be spoken of."""
        self._gone.append(peer)
        while len(self._gone) > GONE_KEPT:
            gone = self._gone.popleft()
            if self._names.pop(gone, None) is not None:
                del self._spelled[short(gone)]

    def name(self, peer: PeerId) -> str:
        """What this peer is called; empty if it has no name."""
        return self._names.get(peer, "")

    def full(self, peer: PeerId) -> str:
        """`name (id8)`, or the first digits of the id alone."""
        return self._spelled.get(short(peer), short(peer))

    def spell(self, sentence: str) -> str:
        """The same sentence with the names of the peers in it. What has a name already is left as it is."""
        if not self._spelled:
            return sentence
        return _SHORT_ID.sub(self._spell_one, sentence)

    def _spell_one(self, found: "re.Match[str]") -> str:
        before, after = found[1] or "", found[2] or ""
        digits = found[0][len(before) : len(found[0]) - len(after)]
        if before and after:
            return found[0]
        return f"{before}{self._spelled.get(digits, digits)}{after}"
