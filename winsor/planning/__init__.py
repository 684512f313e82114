"""Plans: what a run will release, what noise it needs, and what it will have spent. No torch."""
