"""Carries a plan out on a model, and takes it back."""
