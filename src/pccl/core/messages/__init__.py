"""Every control message, one frozen struct each, in a module for each direction; `report` has what a returning
peer knew last.

A struct is the whole truth about its message: `wire/` encodes and validates it from these annotations, so a field's
type and bounds (`fields`) are the only checks its receiver gets before the core sees it.
"""
