"""Reads SQLite exports of Nsight Systems."""
