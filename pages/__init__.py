"""The dashboard: one page, one file. Pages read the store, send requests to the worker, and show; they load no model."""
