"""Federated data: each module has plain functions that make a `FederatedData` from the files under a folder."""
