"""Artefacts on disk: files, manifests, stores, trained models and maps, the zoo."""
