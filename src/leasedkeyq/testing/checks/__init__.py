"""The checks of the conformance kit, by theme."""
