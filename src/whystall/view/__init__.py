"""The report and the timeline in a browser: evidence cut around findings, a server that only this machine reaches."""
