"""A master, and processes that are gone after the test."""

from tests.training.test_processes import master, processes

__all__ = ["master", "processes"]
