"""Recorded steps whose times are worked out anew with a fault in them: truth by construction, of any size and place.

A step of a recording is read as what the host does, what it launches and what waits for what (``unit``); it is
repeated and timed by a replay of host, streams and ranks that shares nothing with whystall (``replay``), with and
without a fault (``host``, ``device``, ``ranks``), and written as traces (``traces``).
The gain is the one time over the other. The base is judged as well: what a recording has of its own is not held
against the verdict (``judged``), nor is what the fault brings out of it where the replay without that gains as much
as without the fault (``own``).
"""
