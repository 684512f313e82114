"""Audits of winsor itself: honest mechanisms that must pass, and planted mistakes that must not."""
