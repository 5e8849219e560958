"""Causes of the family ``compute``: precision, shapes, fusion, layout, work done twice."""
