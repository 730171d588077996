//! The naive reference: every codec again, written for clarity.
