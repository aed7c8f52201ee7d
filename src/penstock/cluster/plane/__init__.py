"""The control plane: consensus, the state that it agrees on, and what its leader does about it."""
