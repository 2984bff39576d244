"""The shells: sockets, timers and threads around the cores.

Owns connections and the loop event → core → effects. Must not know why anything is decided: there is no `if` about the
protocol in here.
"""
