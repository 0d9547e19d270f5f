"""Capability Enhancement Localization: which few attention heads, once removed, make a model better at a task."""
