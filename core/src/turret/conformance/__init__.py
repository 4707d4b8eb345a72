"""The suite that decides whether a backend, ours or a stranger's, keeps the contract."""
