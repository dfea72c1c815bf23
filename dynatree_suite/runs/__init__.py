"""The suite: which notebooks to run, running them, their receipts, and the report.

`plan` decides, `run` executes, on several workers by `cluster`, as `sweep` does; `receipts` remembers, `report` shows.
The notebooks themselves call `notebook`.
Decoding, measuring and drawing belong to the other rooms: nothing here knows a token.
"""
