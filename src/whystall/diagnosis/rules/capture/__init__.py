"""Causes of the family ``capture``: recordings that say too little."""
