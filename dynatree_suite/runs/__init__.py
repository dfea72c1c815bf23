"""Runs of notebooks: which to run, running them, their receipts, and the report.

`plan` decides, `run` executes, on several workers by `cluster`, as `sweep` does; `receipts` remembers, `report` shows.
The notebooks themselves call `notebook`, and `real` where they show a model beside the bundled pair.
"""
