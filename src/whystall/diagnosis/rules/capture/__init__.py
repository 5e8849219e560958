"""Causes of the family ``capture``: recordings with too little evidence."""
