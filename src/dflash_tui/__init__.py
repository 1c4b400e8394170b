"""The terminal side: command line, app, screens and widgets."""

__version__ = "0.1.0"
