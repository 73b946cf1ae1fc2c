"""A federated experiment."""
