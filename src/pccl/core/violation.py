"""How a core says that a message breaks the protocol: raised before any state changes."""


class Violation(Exception):
    """The sender broke a rule; the text is what it and the operator read. The master kicks, a peer leaves."""
