"""The demo: a master and real peers on this machine that train, die and come later."""
