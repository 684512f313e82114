"""Plans: what a run will release, how much noise it needs, and what it will have spent. No torch."""
