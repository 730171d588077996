"""One line for those who train with a framework, with memories in the framework's own checkpoints.

:mod:`gradwire.integrations.lightning`, :mod:`gradwire.integrations.transformers` and :mod:`gradwire.integrations.accelerate`
each need the framework of that name. See docs/pytorch.md.
"""
