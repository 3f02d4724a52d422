"""From a network and a target description to a plan: which neurons live on which tile."""
