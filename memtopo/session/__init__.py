"""From a spec and a machine to a plan: one composition for every user of a plan."""
