"""Errors of the records' layer that are no message's fault; a module without imports, for the command's entry."""


class RegistryError(RuntimeError):
    """The registry did not answer, or not with what was asked for."""
