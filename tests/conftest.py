"""For all tests: how long an example of hypothesis takes is a fact about the machine, not about the code."""

from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
