"""The suite: which notebooks to run, running them, their receipts, and the report.

`plan` decides, `run` executes, `receipts` remembers, `report` shows; the notebooks themselves call `notebook`.
Decoding, measuring and drawing belong to the other rooms: nothing here knows a token.
"""
