"""Diagnostics: their model, codes, messages and explanations."""
