"""Why a language-model server is slow: each request and each engine step, from the files of a served run.

`readers` turn files into records, `membership` says which request was in which engine step, `request_ledger` and
`step_ledger` split the time, `rules` name causes, `replay` plays the scheduler with other settings.
"""
