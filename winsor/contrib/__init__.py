"""Whole ideas that span rooms, plugged in by entry points: nothing else names them."""
