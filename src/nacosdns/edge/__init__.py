"""The rooms that act: one file per neighbour, no policy. Edges never import each other."""
