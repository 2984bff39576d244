"""Every event into and effect out of a core: the whole interface between deciding and doing.

A driver turns what happens (bytes, closed connections, calls, finished attempts) into events, hands them to
`handle(event, now)`, and carries out the effects in the order given. It decides nothing: an effect that takes time is
started and answered later by the event its docstring names. Between two events the driver calls `handle(Tick(), now)`
as soon as `next_deadline()` has passed.
"""
