"""The suite: which notebooks to run, running them, their receipts, and the report.

`plan` decides, `run` executes, `receipts` remembers, `report` shows; `notebook` is what the notebooks themselves call.
Decoding, measuring and drawing belong to the other rooms: nothing here knows what a token is.
"""
