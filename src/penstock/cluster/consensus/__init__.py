"""Raft, pure: the small replicated log, among at most five voters, that holds the cluster map."""
