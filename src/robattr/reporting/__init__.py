"""Renderings of records: tables, publication figures and one self-contained page. Nothing here computes a result."""
